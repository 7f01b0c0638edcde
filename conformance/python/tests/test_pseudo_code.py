"""The pseudo-code of section 19.1, as it stands in the text, gives the answers of the vectors. So does that of section
23.3, which replaces one of its functions if there is trust, and that of layouts (sections 12 and 25.2).

Of several failures, the last one remembered is reported, which the text allows. So where a failure has to be chosen,
the test compares only that both readers fail.
"""
import io
import json
import tarfile
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from blake3 import blake3

from deltachain_py import documents, layout, safetensors
from deltachain_py import link as dcf
from deltachain_py.chain import COMMIT, ROUTES, Held, Reader, Step, Store
from deltachain_py.errors import DcfError, check
from deltachain_py.names import ascending, distinct, folder, folders, is_path
from deltachain_py.signatures import Seen, Trust

from .pseudo_code import block, defined

CONFORMANCE = Path(__file__).resolve().parents[2]
PLAIN = block("SPEC.md", "pseudo-code")
WITH_TRUST = PLAIN + [line[2:] for line in block("spec/signatures.md", "pseudo-code with trust")]
SHARED = ["chain", "lowest", "floor", "unusable"]


class Planned(Exception):
    """Ends *plan*, with the path."""


class Names:
    """The names that the pseudo-code uses, from the parts of the reader. Steps 6 and 7 are left out."""

    def __init__(self, folder, only_plan, trust):
        self.store, self.only_plan, self.trust = Store(folder), only_plan, trust
        self.reader = Reader(self.store, trust=trust)
        self.remembered, self.path, self.named = [], None, []

    def need(self, condition, rule):
        check(condition, rule, "pseudo-code")

    def tried(self, function):
        try:
            return function()
        except DcfError as failure:
            self.remembered.append(failure)
            return None

    def fail(self):
        raise self.remembered[-1] if self.remembered else DcfError("CHAIN", "R-CHN-08", "no path")

    def document(self, name, kind, missing):
        data = self.store.get(name)
        check(data is not None, missing, "missing", name)
        return SimpleNamespace(digest=blake3(data).hexdigest(), **documents.parse(data, kind, name))

    def chain_document(self):
        chain = self.document("chain.json", "chain", "R-CHN-01")
        self.reader.chain_digest = chain.digest
        self.reader.keys = self.trust.keys_of(chain.digest) if self.trust else None
        return chain

    def commit(self, v):
        commit = self.document(COMMIT.format(v), "commit", "R-CHN-03")
        check(commit.version == v, "R-CHN-02", "version")
        commit.routes = self.steps(v, commit.routes, COMMIT.format(v))
        return commit

    def steps(self, v, routes, source):
        return [Step(v, route["from"], route["files"], source, place, direct=False)
                for place, route in enumerate(routes)]

    def exists(self, v):
        return v is not None and self.store.get(COMMIT.format(v), 0) is not None

    def newest(self):
        return max(self.store.numbers("commits/", 20), default=None)

    def documents(self, v):
        numbers = self.store.numbers(f"routes/{v:020}-", 10)
        return [(v, generation) for generation in reversed(numbers) if generation]

    def checked(self, document):
        v, generation = document
        name = ROUTES.format(v, generation)
        routes = self.document(name, "routes", "R-CHN-09")
        check((routes.version, routes.generation) == document, "R-CHN-02", "name")
        check(routes.commit == self.commit(v).digest, "R-CHN-06", "commit")
        return self.steps(v, routes.routes, name)

    def least(self, ways):
        return min(ways, key=lambda way: (sum(file["size"] for step in way for file in step.files), len(way),
                                          [step.version for step in way], [step.place for step in way]))

    def is_as_recorded(self, held):
        return self.only_plan or self.shards_of(held) is not None

    def shards_of(self, held):
        self.reader.held = held
        if held is None:
            return None  # of as many shards as the first route has files
        return self.reader.begin([])

    def step_5(self, route, shards):
        return self.reader.follow(route, self.reader.begin([route]) if shards is None else shards)

    def steps_6_and_7(self, n, _shards):
        return n

    # With trust:

    def trusted_keys(self):
        return len(self.reader.keys)

    def newest_signed(self):
        return max(filter(self.signed, self.store.numbers("commits/", 20)), default=None)

    def signed(self, v):
        return self.reader.is_signed(v)

    def record(self, v):
        self.recorded = v


def functions(names):
    """Returns the functions of the pseudo-code, with or without trust."""
    known = {name: getattr(names, name) for name in dir(names) if not name.startswith("_")}
    trust = names.trust
    if trust:
        known |= {"seen": trust.seen, "quorum": trust.quorum}
    return defined(WITH_TRUST if trust else PLAIN, SHARED + (["seen"] if trust else []), known)


def run(names, held, accepted, wanted):
    """Returns the version, and the path that led to it."""
    text = functions(names)
    follow = text["follow"]

    def with_path(path, start):
        names.path = path
        if names.only_plan:
            raise Planned
        return follow(path, start)
    text["follow"] = with_path
    try:
        version = text["replay"](wanted, held, accepted)
    except Planned:
        version = wanted if wanted is not None else (text["newest_signed"] if names.trust else text["newest"])()
    return version, names.path


def unpack(vector, folder):
    """Writes the store of a vector into a folder."""
    data, grown = (CONFORMANCE / vector["file"]).read_bytes(), vector.get("grown")
    if grown:
        at = grown["at"]
        data = data[:at] + data[at:at + 1] * (grown["length"] - len(data)) + data[at:]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def held_of(vector):
    held = vector.get("held")
    if held is None:
        return None
    shards = [safetensors.read(CONFORMANCE / path) for path in held.get("shards", [])]
    layouts = [(shard["layout"], shard["proven"]) for shard in held.get("layouts", [])]
    return Held(held["version"], held["commit"], held["chain"], shards, layouts)


def trust_of(vector):
    trust = vector.get("trust")
    return trust and Trust(trust["keys"], trust["quorum"], trust["seen"] and Seen(**trust["seen"]))


def layout_of_the_text(text, tensors):
    """Like `layout.parse`, by the pseudo-code of section 12."""
    def such_a_text(value):
        files = documents.one_form(value.encode("utf-8"), layout.FORM)
        check(files, "R-LAY-01", "form")
        files, one = files["files"], len(files["files"]) == 1
        for file in files:
            check((file["tensors"] is None) == one and (one or file["name"] is not None), "R-LAY-01", "null")
        lists = [sorted(tensors) if one else file["tensors"] for file in files]
        check(one or all(map(ascending, [[file["name"] for file in files], *lists])), "R-LAY-01", "order")
        return [SimpleNamespace(**file | {"tensors": among, "own": file}) for file, among in zip(files, lists)]

    text_names = {
        "such_a_text": such_a_text, "is_path_name": is_path, "folders_above": folders, "folder_of": folder,
        "distinct_without_case": lambda listed: distinct([*listed]),
        "need": lambda condition, rule: check(condition, rule, "pseudo-code"),
    }
    made = defined(block("SPEC.md", "pseudo-code of a layout"), [], text_names)["layout"](text, tensors)
    return [file.own for file in made]


BLAMED = []


class Blaming(Reader):
    """Compares the routes that it makes unusable for their layouts with those that section 25.2 blames."""

    def begin(self, path):
        self.path, self.history = path, {}
        return super().begin(path)

    def link(self, step, number):
        self.number = number
        return super().link(step, number)

    def layout(self, step, link, base, files):
        states = layout.KEY in dict(link.index.metadata)
        self.history.setdefault(self.number, {})[step.version] = states, base.layout.proven
        return super().layout(step, link, base, files)

    def check_layout(self, good, step, message):
        if not good:
            own = self.history.get(self.number, {}) if self.path else {}
            text = defined(block("spec/layouts.md", "pseudo-code of blame"), [], {
                "states_a_layout": lambda route: own[route.version][0],
                "was_proven_before": lambda route: own[route.version][1],
                "stands_in_its_commit": self.stands_in_commit, "hashed_whole": lambda route: True})
            if "names another" in message:
                blamed = text["another_layout"]([route for route in self.path if route.version in own])
            else:
                blamed = text["not_proven"](self.path)
            BLAMED.append(blamed)
            assert blamed == step, (blamed, step)
        super().check_layout(good, step, message)


class PseudoCode(unittest.TestCase):
    def test_plans_and_paths_are_those_of_the_vectors(self):
        index, asked = json.loads((CONFORMANCE / "index.json").read_text()), 0
        for vector in index["vectors"]:
            # The pseudo-code does not include layouts, which section 25 adds.
            operations = {"plan"} if "layouts" in vector["features"] else {"plan", "replay"}
            for operation in operations & vector["expect"].keys():
                if vector.get("take") or vector.get("direct") or vector["expect"][operation].get("class") == "USAGE":
                    continue
                with self.subTest(vector["id"], operation=operation), tempfile.TemporaryDirectory() as folder:
                    asked += 1
                    self.compare(vector, operation, folder)
        self.assertGreater(asked, 500)

    def compare(self, vector, operation, folder):
        unpack(vector, folder)
        expected = vector["expect"][operation]
        names = Names(folder, operation == "plan", trust_of(vector))
        try:
            version, path = run(names, held_of(vector), vector.get("accept"), vector["version"])
        except DcfError as failure:
            if operation == "replay" and expected.get("rule") in ("R-CHN-12", "R-CHN-15", "R-CHN-16"):
                return
            self.assertIn("class", expected, f"{failure}")
            if not names.remembered:  # final: the first failure is reported
                self.assertEqual((failure.error_class, failure.rule), (expected["class"], expected["rule"]))
            return
        if expected.get("rule") in ("R-CHN-12", "R-CHN-15", "R-CHN-16", "R-LIM-04", "R-LIM-08"):  # steps 6, 7; limits
            return
        self.assertNotIn("class", expected, expected)
        self.assertEqual(version, expected["version"])
        if operation == "plan":
            size = sum(file["size"] for step in path for file in step.files)
            self.assertEqual((size, [step.version for step in path]), (expected["bytes"], expected["path"]))

    def test_layouts_are_those_of_the_vectors(self):
        index, asked = json.loads((CONFORMANCE / "index.json").read_text()), 0
        for vector in index["vectors"]:
            if vector["section"] == "12" and "apply" in vector["expect"] and not vector.get("then"):
                with self.subTest(vector["id"]), mock.patch.object(layout, "parse", layout_of_the_text):
                    asked += 1
                    base = safetensors.read(CONFORMANCE / vector["base"]) if vector["base"] else {}
                    try:
                        dcf.apply((CONFORMANCE / vector["file"]).read_bytes(), base)
                        rule = None
                    except DcfError as failure:
                        rule = failure.rule
                    self.assertEqual(rule, vector["expect"]["apply"].get("rule"))
        self.assertGreater(asked, 100)

    def test_the_route_to_blame_is_that_of_the_reader(self):
        index = json.loads((CONFORMANCE / "index.json").read_text())
        for vector in index["vectors"]:
            request = vector["expect"].get("replay")
            if request is None or "layouts" not in vector["features"] or vector.get("take"):
                continue
            with self.subTest(vector["id"]), tempfile.TemporaryDirectory() as folder:
                unpack(vector, folder)
                held, trust = held_of(vector), trust_of(vector)
                reader = Blaming(Store(folder), held, accept=vector.get("accept"), trust=trust, layouts=True)
                try:
                    reader.replay(vector["version"])
                except DcfError:
                    pass
        self.assertGreater(len(BLAMED), 10)
        self.assertEqual(set(map(type, BLAMED)), {Step, type(None)})


if __name__ == "__main__":
    unittest.main()
