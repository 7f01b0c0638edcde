"""The pseudo-code of section 19.1, line by line and nothing else, gives the answers of the vectors. So does that of
section 23.3, which replaces its beginning if there is trust.

Of several failures, the last one remembered is reported, which the text allows. So where a failure has to be chosen,
the test compares only that both readers fail.
"""
import io
import json
import tarfile
import tempfile
import unittest
from pathlib import Path

from blake3 import blake3

from deltachain_py import documents, safetensors
from deltachain_py.chain import COMMIT, ROUTES, Held, Reader, Step, Store
from deltachain_py.errors import DcfError, check, fail
from deltachain_py.signatures import Seen, Trust

CONFORMANCE = Path(__file__).resolve().parents[2]


class Literal:
    """`replay` of 19.1. Steps 5 to 7, and the check of signatures, are those of the reader; with `plan`, steps 5 to 7
    are left out."""

    def __init__(self, folder, held, accepted, plan, trust=None):
        self.store, self.held, self.accepted, self.only_plan = Store(folder), held, accepted, plan
        self.trust = trust
        self.remembered, self.floor, self.unusable = [], 0, []

    def document(self, name, kind, missing):
        data = self.store.get(name)
        check(data is not None, missing, "missing", name)
        return documents.parse(data, kind, name), blake3(data).hexdigest()

    def by_itself(self, version):
        commit, digest = self.document(COMMIT.format(version), "commit", "R-CHN-03")
        check(commit["version"] == version, "R-CHN-02", "version")
        return commit, digest

    def remembering(self, function, *arguments):
        """True if the call did not fail. Remembers a failure."""
        try:
            function(*arguments)
            return True
        except DcfError as failure:
            self.remembered.append(failure)
            return False

    def fits(self, version, parent):
        check(self.by_itself(version)[0]["parent"] == parent, "R-CHN-04", "parent")

    def checked_with_trust(self, wanted):
        """Does the steps up to 3, by 23.3. Returns n, the held version, the digest of chain.json, and the versions that
        were checked."""
        held, seen, accepted = self.held, self.trust.seen, self.accepted
        if held and held.commit == accepted:
            accepted = None
        if held and seen and held.version >= seen.version:
            seen = None
        known = [one for one in (held, seen) if one]
        waits = known and accepted
        _, chain = self.document("chain.json", "chain", "R-CHN-01")
        signed = Reader(self.store, trust=self.trust)
        signed.chain_digest, signed.keys = chain, self.trust.keys_of(chain)
        check(len(signed.keys) >= self.trust.quorum, "R-SIG-05", "chain.json")
        if held and not waits:
            check(chain == held.chain, "R-CHN-13", "chain.json")
        n = wanted
        if wanted is None:
            n = max(filter(signed.is_signed, self.store.numbers("commits/", 20)), default=None)
            if n is None:
                fail("R-CHN-14" if known and not waits else "R-SIG-01", "no signed version")
            check(waits or all(n >= one.version for one in known), "R-CHN-14", "head")
        check(self.store.get(COMMIT.format(n), 0) is not None, "R-CHN-03", "commit n")
        check(signed.is_signed(n), "R-SIG-01", "commit n")
        if waits:
            if self.by_itself(n)[1] == accepted:
                held, known = None, []
            else:
                check(not held or chain == held.chain, "R-CHN-13", "chain.json")
                check(wanted is not None or all(n >= one.version for one in known), "R-CHN-14", "head")
        versions = [n, *(one.version for one in known)]
        checked, before = range(min(versions), max(versions) + 1), chain
        for version in checked:
            commit, digest = self.by_itself(version)
            for one in known:
                check(version != one.version or digest == one.commit, "R-CHN-05", "commit held or seen")
            if version == 0 or version > checked[0]:
                check(commit["parent"] == before, "R-CHN-04", "parent")
            before = digest
        return n, held, chain, {*checked}

    def checked_without(self, wanted):
        """Like `checked_with_trust`, but without trust, by 19.1."""
        held, accepted = self.held, self.accepted
        if held and held.commit == accepted:
            accepted = None
        waits = held and accepted
        _, chain = self.document("chain.json", "chain", "R-CHN-01")
        if held and not waits:
            check(chain == held.chain, "R-CHN-13", "chain.json")
        n = wanted
        if wanted is None:
            n = max(self.store.numbers("commits/", 20), default=None)
            if n is None:
                fail("R-CHN-14" if held and not waits else "R-CHN-03", "no commit")
            if held and not waits:
                check(n >= held.version, "R-CHN-14", "head")
        check(self.store.get(COMMIT.format(n), 0) is not None, "R-CHN-03", "commit n")
        if waits:
            if self.by_itself(n)[1] == accepted:
                held = None
            else:
                check(chain == held.chain, "R-CHN-13", "chain.json")
                check(wanted is not None or n >= held.version, "R-CHN-14", "head")
        if held:
            before = chain
            for version in range(min(n, held.version), max(n, held.version) + 1):
                commit, digest = self.by_itself(version)
                if version == held.version:
                    check(digest == held.commit, "R-CHN-05", "commit held")
                if version == 0 or version > min(n, held.version):
                    check(commit["parent"] == before, "R-CHN-04", "parent")
                before = digest
        else:
            self.by_itself(n)
            if n == 0:
                self.fits(0, chain)
        checked = {n} | (set(range(min(n, held.version), max(n, held.version) + 1)) if held else set())
        return n, held, chain, checked

    def replay(self, wanted):
        n, held, chain, checked = (self.checked_with_trust if self.trust else self.checked_without)(wanted)
        start = held if held and n >= held.version else None
        reader = Reader(self.store, start)
        if start and not self.only_plan and not self.remembering(reader.begin, []):
            start = None
        while True:
            path = self.cheapest(n, start)
            if path is None:
                raise self.remembered[-1] if self.remembered else DcfError("CHAIN", "R-CHN-08", "no path")
            if path and path[0].start is None and not self.commits_are_right(n, path[0].version, checked, chain):
                continue
            if self.only_plan:
                return n, path
            shards = reader.begin(path)
            for step in path:
                try:
                    shards = reader.follow(step, shards)
                except DcfError as failure:
                    self.remembered.append(failure)
                    self.unusable.append(step)
                    break
            else:
                return n, path

    def commits_are_right(self, n, first, checked, chain):
        for version in range(n, first - 1, -1):
            if version in checked:
                continue
            if not (self.remembering(self.by_itself, version)
                    and self.remembering(self.fits, version + 1, self.by_itself(version)[1])):
                self.floor = version + 1
                return False
        if first == 0 and not self.remembering(self.fits, 0, chain):
            self.floor = 1
            return False
        return True

    def cheapest(self, n, start):
        ways, taken = [[]], set()
        while ways:
            way = min(ways, key=lambda steps: (sum(file["size"] for step in steps for file in step.files), len(steps),
                                               [step.version for step in steps], [step.place for step in steps]))
            ways.remove(way)
            if way and way[0].start is None:
                return way
            v = way[0].start if way else n
            if not self.remembering(self.by_itself, v):
                self.floor = v + 1
                return self.cheapest(n, start)
            shards = len(self.by_itself(v)[0]["shards"])
            if way and not self.remembering(check, len(way[0].files) == shards, "R-CHN-07", "files"):
                continue
            if start and v == start.version:
                return way
            if v in taken:
                continue
            taken.add(v)
            for step in self.routes(v):
                if step in self.unusable:
                    continue
                if not self.remembering(check, len(step.files) == shards, "R-CHN-07", "files"):
                    continue
                if step.start is None and v < self.floor:
                    continue
                if step.start is not None and step.start < self.floor and not (start and step.start == start.version):
                    continue
                ways.append([step, *way])
        return None

    def routes(self, v):
        commit, digest = self.by_itself(v)

        def usable(name, generation):
            document, _ = self.document(name, "routes", "R-CHN-09")
            check((document["version"], document["generation"]) == (v, generation), "R-CHN-02", "name")
            check(document["commit"] == digest, "R-CHN-06", "commit")
        routes, source = commit["routes"], COMMIT.format(v)
        for generation in sorted((g for g in self.store.numbers(f"routes/{v:020}-", 10) if g), reverse=True):
            name = ROUTES.format(v, generation)
            if self.remembering(usable, name, generation):
                routes, source = self.document(name, "routes", "R-CHN-09")[0]["routes"], name
                break
        return [Step(v, route["from"], route["files"], source, place, direct=False)
                for place, route in enumerate(routes)]


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
        data, grown = (CONFORMANCE / vector["file"]).read_bytes(), vector.get("grown")
        if grown:
            at = grown["at"]
            data = data[:at] + data[at:at + 1] * (grown["length"] - len(data)) + data[at:]
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(folder, filter="data")
        held = vector.get("held")
        if held:
            shards = [safetensors.read(CONFORMANCE / path) for path in held.get("shards", [])]
            held = Held(held["version"], held["commit"], held["chain"], shards)

        expected = vector["expect"][operation]
        trust = vector.get("trust")
        if trust:
            trust = Trust(trust["keys"], trust["quorum"], trust["seen"] and Seen(**trust["seen"]))
        literal = Literal(folder, held, vector.get("accept"), operation == "plan", trust)
        try:
            version, path = literal.replay(vector["version"])
        except DcfError as failure:
            if operation == "replay" and expected.get("rule") in ("R-CHN-12", "R-CHN-15", "R-CHN-16"):
                return
            self.assertIn("class", expected, f"{failure}")
            if not literal.remembered:  # final: the first failure is reported
                self.assertEqual((failure.error_class, failure.rule), (expected["class"], expected["rule"]))
            return
        if expected.get("rule") in ("R-CHN-12", "R-CHN-15", "R-CHN-16", "R-LIM-04", "R-LIM-08"):  # steps 6, 7; limits
            return
        self.assertNotIn("class", expected, expected)
        self.assertEqual(version, expected["version"])
        if operation == "plan":
            size = sum(file["size"] for step in path for file in step.files)
            self.assertEqual((size, [step.version for step in path]), (expected["bytes"], expected["path"]))


if __name__ == "__main__":
    unittest.main()
