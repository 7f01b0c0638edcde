"""Chains (section 19)."""
import itertools
import json
import tempfile
import unittest
from base64 import b64encode

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deltachain_py import documents, signatures, writer
from deltachain_py.chain import ASSET, COMMIT, FILE, ROUTES, Held, MinimalReader, Reader, Store, cost, direct_cost
from deltachain_py.errors import CHAIN_RULES
from deltachain_py.model import state_digest
from tests.helper import one_tensor, remake, rule_of, seeded
from tests.publisher import init, make_routes, publish, put, put_routes

SEEN = set()
HEX = "0123456789abcdef" * 4


def rule(function, *arguments):
    SEEN.add(result := rule_of(function, *arguments))
    return result


class ChainCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.store = Store(folder.name)
        self.states, self.commits = [], []

    def chain(self, *versions, shards=1):
        """Makes a chain. Each argument lists the versions that the routes of a version start from."""
        rng = seeded(8)
        init(self.store)
        for starts in versions:
            self.states.append([{f"t{i}": one_tensor(values=rng.randbytes(9))["t"]} for i in range(shards)])
            bases = {start: None if start is None else self.states[start] for start in starts}
            self.commits.append(publish(self.store, self.states[-1], bases)[1])

    def held(self, version):
        chain = blake3(self.store.get("chain.json")).hexdigest()
        return Held(version, self.commits[version], chain, self.states[version])

    def there(self, version=None, held=None, path=None):
        """Asserts that the version can be replayed, and by this path if one is given."""
        wanted = len(self.states) - 1 if version is None else version
        if path is not None:
            self.assertEqual([step.version for step in Reader(self.store, held).plan(version)[1]], path)
        result = Reader(self.store, held).replay(version)
        self.assertEqual((result.version, [*result.shards.values()]), (wanted, self.states[wanted]))

    def refused(self, expected, version=None, held=None, plan=True):
        self.assertEqual(rule(Reader(self.store, held).replay, version), expected)
        self.assertEqual(rule(Reader(self.store, held).plan, version), expected if plan else None)

    def remove(self, name):
        (self.store.folder / name).unlink()

    def damage(self, name):
        data = self.store.get(name)
        put(self.store, name, data[:-1] + bytes([data[-1] ^ 1]))

    def file(self, version, start, shard=0):
        for route in Reader(self.store).commit(version)[0]["routes"]:
            if route["from"] == start:
                return FILE.format(route["files"][shard]["digest"])

    def change(self, version, repair=True, /, **members):
        """Replaces a commit; with `repair`, later commits are made to fit."""
        digest = None
        for number in range(version, len(self.commits) if repair else version + 1):
            name = COMMIT.format(number)
            commit = json.loads(self.store.get(name)) | (members if number == version else {"parent": digest})
            data = documents.encode(commit)
            put(self.store, name, data)
            digest = blake3(data).hexdigest()


class Chains(ChainCase):
    def test_reading(self):
        for shards in (1, 3):
            with self.subTest(shards=shards):
                self.setUp()
                self.chain([None], [0], [1], [None, 2], shards=shards)
                for version in range(4):
                    self.there(version)
                    for held in range(4):
                        self.there(version, self.held(held), path=[] if held == version else None)
                self.there(2, path=[0, 1, 2])
                self.there(2, self.held(1), path=[2])
                self.there(2, self.held(3), path=[0, 1, 2])
                self.there(path=[3])
                self.refused("R-CHN-03", 4)

    def test_chain_and_head(self):
        self.refused("R-CHN-01")
        init(self.store)
        self.refused("R-CHN-03")
        self.remove("chain.json")
        self.chain([None], [0])
        for name in ("commits/2.json", "commits/00000000000000000009.jsn", "commits/x", "files/x.dcf", "other"):
            put(self.store, name, b"")
        self.there(1)
        self.damage("chain.json")
        self.refused("R-DOC-03")
        put(self.store, "chain.json", b'{"deltachain":7,')
        self.refused("R-DOC-02", held=self.held(1))

    def test_commits(self):
        self.chain([None], [0], [0, 1], [None, 2], [3], [3, 4])
        self.remove(COMMIT.format(1))  # a gap
        self.refused("R-CHN-03", 1)
        self.refused("R-CHN-03", 2)
        self.refused("R-CHN-03", 2, self.held(0))
        self.there(0)
        self.there(5, path=[3, 5])
        self.refused("R-CHN-03", 5, self.held(0))  # whatever the path: the reader's own chain is damaged
        self.there(5, path=[3, 5])
        self.change(4, False, metadata={"x": ""})  # a fork: 5 does not follow it
        self.there(4)
        self.refused("R-CHN-04", 5)
        self.refused("R-CHN-04", 5, self.held(3))
        self.refused("R-CHN-05", 4, self.held(4))
        self.there(5, self.held(5), path=[])
        self.change(4, True, version=5)
        self.refused("R-CHN-02", 4)
        self.refused("R-CHN-02", 5)

    def test_held_version_replaced(self):
        self.chain([None], [0], [1], [None, 2])
        held = self.held(1)
        self.change(1, metadata={"x": ""})
        self.refused("R-CHN-05", 1, held)
        self.refused("R-CHN-05", 2, held)
        self.refused("R-CHN-05", 3, held)
        self.there(3, path=[3])
        self.there(2)

    def test_wrong_chain(self):
        self.chain([None], [None, 0])
        held = self.held(1)
        put(self.store, "chain.json", documents.encode({"deltachain": 1, "chain": "0" * 32, "metadata": {}}))
        self.refused("R-CHN-04", 0)
        self.there(1, path=[1])
        self.refused("R-CHN-13", held=held)
        self.there(1, self.held(1), path=[])

    def test_routes_documents(self):
        self.chain([None], [0], [1])
        files = make_routes(self.store, self.states[2], {None: None})
        put_routes(self.store, 2, files)
        self.there(path=[2])
        name = ROUTES.format(2, 2)
        for expected, change in (("R-CHN-02", {"version": 3}), ("R-CHN-02", {"generation": 3}),
                                 ("R-CHN-06", {"commit": HEX}), ("R-DOC-02", {"deltachain": 2}),
                                 ("R-DOC-03", {"routes": None}), (None, {"routes": []})):
            document = {"deltachain": 1, "version": 2, "generation": 2, "commit": self.commits[2], "routes": [],
                        "metadata": {}}
            put(self.store, name, documents.encode(document | change))
            if expected:
                reader = Reader(self.store)
                self.assertEqual(reader.replay()[0], 2)  # skipped in favour of the previous generation
                self.assertEqual(reader.failures[0].rule, expected)
                SEEN.add(expected)
        self.refused("R-CHN-08")  # pruned
        self.there(2, self.held(2))
        self.damage(name)
        self.damage(ROUTES.format(2, 1))
        self.there(path=[0, 1, 2])
        self.remove(self.file(1, 0))
        self.refused("R-DOC-03", plan=False)  # the first failure

    def test_number_of_shards(self):
        self.chain([None], [0], shards=2)
        state = {name: tensor for shard in self.states[1] for name, tensor in shard.items()}
        self.states.append([state])
        publish(self.store, [state], {None: None})
        self.there(path=[2])
        put_routes(self.store, 1, make_routes(self.store, [state], {None: None}))
        self.refused("R-CHN-07", 1)
        put_routes(self.store, 2, make_routes(self.store, [state], {None: None})[:0] + [
            {"from": 1, "files": make_routes(self.store, [state], {None: None})[0]["files"]}])
        self.refused("R-CHN-07", 2)

    def test_files(self):
        self.chain([None], [0], [0, 1], [None, 2], shards=2)
        self.remove(self.file(3, None, 1))
        self.there(3, path=[3])  # planned, and then replayed by 0 and 2
        self.damage(self.file(2, 0))
        self.there(2)
        self.remove(self.file(2, 1))
        self.refused("R-CHN-10", 2, plan=False)
        self.refused("R-CHN-09", 3, plan=False)
        self.there(3, self.held(2), path=[3])

    def test_wrong_links(self):
        self.chain([None], [0], [1])
        routes = make_routes(self.store, self.states[0], {None: None})
        put_routes(self.store, 2, routes)
        self.refused("R-CHN-11", 2, plan=False)
        put_routes(self.store, 2, [{"from": 1, "files": make_routes(self.store, self.states[2], {0: self.states[0]})
                                    [0]["files"]}])
        self.refused("R-APP-01", 2, plan=False)
        for wrong in (self.states[2], [], self.states[0] * 2):  # a path from nothing is left
            self.there(1, self.held(0)._replace(shards=wrong))
            self.there(0, self.held(0)._replace(shards=wrong))
        self.remove(self.file(0, None))
        for wrong in (self.states[2], [], self.states[0] * 2):
            self.refused("R-APP-01", 1, self.held(0)._replace(shards=wrong), plan=False)
            self.refused("R-APP-01", 0, self.held(0)._replace(shards=wrong), plan=False)
        self.there(1, self.held(0))

    def test_shards_make_the_state(self):
        self.chain([None], shards=2)
        commit = json.loads(self.store.get(COMMIT.format(0)))
        same = commit["shards"][:1] * 2
        self.change(0, shards=same, routes=[{"from": None, "files": commit["routes"][0]["files"][:1] * 2}],
                    state=state_digest(self.states[0][0]).hex())
        self.refused("R-CHN-12", plan=False)
        self.change(0, shards=commit["shards"], routes=commit["routes"])
        self.refused("R-CHN-12", plan=False)

    def test_lost_objects_and_publishing_again(self):
        self.chain([None], [0], [1])
        with self.assertRaises(AssertionError):
            publish(self.store, self.states[2], {1: self.states[1]})  # not the parent
        names = [COMMIT.format(2), self.file(2, 1)]
        self.remove(names[0])  # the newest object is lost
        self.there(1)
        self.refused("R-CHN-14", held=self.held(2))
        self.refused("R-CHN-03", 1, held=self.held(2))
        self.remove(names[1])
        self.assertEqual(publish(self.store, self.states[2], {1: self.states[1]})[0], 2)
        self.there(2)

    def test_far_versions(self):
        self.chain([None], [0])
        far = 2**53 - 1
        commit = json.loads(self.store.get(COMMIT.format(1)))
        put(self.store, COMMIT.format(far), documents.encode(commit | {"version": far}))
        self.refused("R-CHN-03")
        commit["routes"] = make_routes(self.store, self.states[1], {None: None})
        put(self.store, COMMIT.format(far), documents.encode(commit | {"version": far}))
        result = Reader(self.store).replay()
        self.assertEqual((result.version, [*result.shards.values()]), (far, self.states[1]))


    def test_way_back(self):
        self.chain([None], [None, 0], [1], [2])
        held = self.held(2)
        self.remove(COMMIT.format(3))
        self.there(2, held, path=[])
        self.remove(COMMIT.format(2))
        self.refused("R-CHN-14", held=held)
        for version in (0, 1):  # by number: the commits up to the held one are checked
            self.refused("R-CHN-03", version, held)
            self.there(version, self.held(1))
        put(self.store, "chain.json", documents.encode({"deltachain": 1, "chain": "0" * 32, "metadata": {}}))
        self.refused("R-CHN-13", held=held)
        self.refused("R-CHN-13", 1, held)
        for accept, expected in ((self.commits[1], None), (self.commits[0], "R-CHN-13"), (self.commits[2], "R-CHN-13")):
            self.assertEqual(rule(Reader(self.store, held, accept=accept).plan), expected)
        for version in (0, 1):
            self.remove(COMMIT.format(version))
        self.refused("R-CHN-13", held=held)
        self.assertEqual(rule(Reader(self.store, held, accept=HEX).plan), "R-CHN-03")

    def test_lower_version(self):
        self.chain([None], [0], [1], [None, 2])
        self.there(1, self.held(3), path=[0, 1])
        self.change(2, False, metadata={"x": ""})
        for version in (0, 1):
            self.refused("R-CHN-04", version, self.held(3))
            self.refused("R-CHN-05", version, self.held(2))
        self.there(1, self.held(1), path=[])

    def test_routes_below_what_is_held(self):
        self.chain([None], [0], [1], [2])
        put_routes(self.store, 1, make_routes(self.store, self.states[1], {None: None}))
        put_routes(self.store, 2, [])
        self.there(3, self.held(2), path=[3])
        self.refused("R-CHN-08", 2, self.held(1))
        self.refused("R-CHN-08", 3, self.held(1))
        self.there(1, path=[1])
        self.there(1, self.held(0), path=[1])

    def test_routes_from_the_same_version(self):
        self.chain([None], [0, None])
        other = writer.diff(self.states[0][0], self.states[1][0], metadata={"x": "y" * 99})
        put(self.store, FILE.format(blake3(other).hexdigest()), other)
        route = Reader(self.store).commit(1)[0]["routes"][1]
        file = {"digest": blake3(other).hexdigest(), "size": len(other)}
        put_routes(self.store, 1, [route, route | {"files": [file]}])
        self.remove(self.file(1, 0))
        self.there(1)
        self.remove(FILE.format(blake3(other).hexdigest()))
        self.refused("R-CHN-09", 1, plan=False)

    def test_symbolic_links(self):
        self.chain([None], [0])
        for name in ("chain.json", COMMIT.format(1), self.file(1, 0)):
            path = self.store.folder / name
            path.rename(path.with_name("elsewhere"))
            path.symlink_to("elsewhere")
        self.there(1)
        (self.store.folder / self.file(1, 0)).with_name("elsewhere").unlink()
        self.refused("R-CHN-09", 1, plan=False)

    def test_layouts(self):
        self.chain([None], [0])
        good = '{"files":[{"name":null,"metadata":null,"tensors":null}]}'
        for layout, expected in (("{}", "R-LAY-01"), (good, None)):
            link = writer.diff(self.states[0][0], self.states[1][0], metadata={"deltachain.layout": layout})
            digest = blake3(link).hexdigest()
            put(self.store, FILE.format(digest), link)
            put_routes(self.store, 1, [{"from": 0, "files": [{"digest": digest, "size": len(link)}]}])
            self.refused("R-LAY-01", 1, plan=False) if expected else self.there(1)

    def test_assets(self):
        self.chain([None])
        assets = {"config.json": b"{}", "empty": b"", "same": b"{}"}
        publish(self.store, self.states[0], {0: self.states[0]}, assets=assets)
        self.assertEqual(Reader(self.store).replay().assets, assets)
        self.assertEqual(Reader(self.store).replay(0).assets, {})
        name = ASSET.format(blake3(b"{}").hexdigest())
        for data, expected in ((b"[]", "R-CHN-16"), (b"{} ", "R-CHN-16"), (None, "R-CHN-15")):
            self.remove(name) if data is None else put(self.store, name, data)
            self.refused(expected, 1, plan=False)
        self.there(0)

    def take(self, shards, tensors, held=None, version=None):
        return Reader(self.store, held, shards=shards, tensors=tensors).replay(version).shards

    def test_taking_a_part(self):
        rng, states = seeded(11), []
        init(self.store)
        for version in range(3):
            states.append([{f"{i}{name}": one_tensor("BF16", [rng.randrange(2**16) for _ in range(9)])["t"]
                            for name in "abc"} for i in range(2)])
            bases = {None: None} if version == 0 else {version - 1: states[-2]}
            self.commits.append(publish(self.store, states[-1], bases)[1])
        self.states, held = states, None
        for version in range(3):
            for shards in (None, [0], [1], [0, 1], []):
                for tensors in (None, ["0a", "1c", "none"], []):
                    expected = {i: {name: tensor for name, tensor in states[version][i].items()
                                    if tensors is None or name in tensors} for i in shards or range(2)}
                    if shards == []:
                        expected = {}
                    self.assertEqual(self.take(shards, tensors, held, version), expected)
            held = self.held(version)
        for shards in ([2], [0, 9]):
            self.assertEqual(rule(self.take, shards, ["0a"]), "R-CHN-17")
            self.assertEqual(rule(self.take, shards, None, self.held(2)), "R-CHN-17")
        self.remove(self.file(2, 1, 1))
        self.assertEqual([*self.take([0], None)], [0])
        self.assertEqual(rule(self.take, [2], None), "R-CHN-17")
        self.refused("R-CHN-09", 2, plan=False)

    def with_link(self, change, tensors):
        """Returns the answer of a reader of some tensors about version 1, with its link from 0 changed."""
        link = self.store.get(self.file(1, 0))
        bad = remake(link, **change)
        digest = blake3(bad).hexdigest()
        put(self.store, FILE.format(digest), bad)
        put_routes(self.store, 1, [{"from": 0, "files": [{"digest": digest, "size": len(bad)}]}])
        return rule(self.take, None, tensors)

    def test_proof_of_a_part(self):
        rng = seeded(12)
        init(self.store)
        for version in range(2):
            self.states.append([{name: one_tensor(dtype, [rng.randrange(256) for _ in range(9)])["t"]
                                 for name, dtype in (("a", "U8"), ("b", "BF16"))}])
            bases = {0: self.states[0]} if version else {None: None}
            self.commits.append(publish(self.store, self.states[-1], bases)[1])

        def promise_other(index):
            index.tensors[1].digests = [bytes(32)]

        def damage(bodies):
            bodies[1] = bodies[1][:-1] + bytes([bodies[1][-1] ^ 1])

        for tensors, damaged in ((["a"], None), (["b"], "R-APP-04"), ([], None)):
            self.assertEqual(self.with_link({"change_index": promise_other}, tensors), "R-APP-05")
            self.assertEqual(self.with_link({"change_segments": damage}, tensors), damaged)


    def minimal(self, held=None, version=None):
        return rule(MinimalReader(self.store, held).replay, version)

    def test_minimal_reader(self):
        self.chain([None], [0], [None, 1], [2])
        put_routes(self.store, 3, [])
        self.refused("R-CHN-08")
        self.assertIsNone(self.minimal())  # a minimal reader ignores routes documents
        self.assertIsNone(self.minimal(self.held(1)))
        self.assertEqual(self.minimal(self.held(3)._replace(shards=[])), "R-APP-01")
        self.damage(self.file(2, None))
        self.there(2, path=[2])
        self.assertEqual(self.minimal(version=2), "R-CHN-10")
        self.assertIsNone(self.minimal(self.held(2)))


class RandomDamage(ChainCase):
    """A version can be read exactly if its commits and the files of some path to it are good."""

    def good(self, name):
        data = self.store.get(name)
        return data is not None and blake3(data).hexdigest() in name

    def paths(self, version, held):
        """Yields the versions where paths begin, by the routes in force and the good files."""
        if version == held:
            yield version
        for route in self.routes[version]:
            if all(self.good(FILE.format(file["digest"])) for file in route["files"]):
                if route["from"] is None:
                    yield version
                else:
                    yield from self.paths(route["from"], held)

    def test_all(self):
        rng, verdicts = seeded(10), {True: 0, False: 0}
        for _ in range(120):
            self.setUp()
            starts = [[start for start in (None, *range(version)) if rng.random() < 0.4] for version in range(5)]
            self.chain(*([*some, version - 1 if version else None] if not {None, version - 1} & {*some} else some
                         for version, some in enumerate(starts)), shards=rng.choice([1, 2]))
            self.routes = [Reader(self.store).commit(version)[0]["routes"] for version in range(5)]
            for version in rng.sample(range(5), 2):
                routes = [route for route in self.routes[version] if rng.random() < 0.6]
                put_routes(self.store, version, routes)
                if rng.random() < 0.3:
                    self.damage(ROUTES.format(version, 1))
                else:
                    self.routes[version] = routes
            bad, forks = set(), set()
            for _ in range(rng.randrange(4)):
                version, kind = rng.randrange(5), rng.randrange(4)
                name = COMMIT.format(version)
                if kind == 0 and version not in bad | forks:
                    forks.add(version)
                    self.change(version, False, metadata={"fork": ""})
                    self.routes[version] = Reader(self.store).commit(version)[0]["routes"]
                elif kind == 1 and version not in bad:
                    bad.add(version)
                    rng.choice([self.remove, self.damage])(name)
                else:
                    (self.remove if kind == 2 else self.damage)("files/" + rng.choice(
                        [path.name for path in self.store.folder.glob("files/*")] or [""]))
            version, held = rng.randrange(5), rng.choice([None, *range(5)])
            floor = max([0, *(v + 1 for v in bad if v <= version), *(v + 1 for v in forks if v < version)])
            checked = range(min(held, version), max(held, version) + 1) if held is not None else ()
            final = any(v in bad or (v in forks and (v == held or v + 1 in checked)) for v in checked)
            there = floor <= version and not final and any(floor <= start for start in self.paths(version, held))
            verdicts[there] += 1
            reader = Reader(self.store, None if held is None else self.held(held))
            if there:
                self.assertEqual([*reader.replay(version).shards.values()], self.states[version])
            else:
                self.assertIsNotNone(rule_of(reader.replay, version))
        self.assertGreater(min(verdicts.values()), 30)


class Cheapest(unittest.TestCase):
    """The cheapest path, compared with all paths, on graphs in which most paths cost the same."""

    def test_random_graphs(self):
        rng, found = seeded(9), 0
        for _ in range(150):
            with tempfile.TemporaryDirectory() as folder:
                store, count, edges = Store(folder), rng.randrange(1, 7), {}
                init(store, "0" * 32)
                parent = blake3(store.get("chain.json")).hexdigest()
                digests = []
                for version in range(count):
                    routes, metadata = [], {}
                    for start in (None, *range(version)):
                        sizes = sorted(rng.randrange(1, 4) for _ in range(rng.choice([0, 0, 1, 1, 2])))
                        direct = [start is None or rng.random() < 0.5 for _ in sizes]
                        edges[start, version] = [(size * (not direct[i]), size, len(routes) + i)
                                                 for i, size in enumerate(sizes)]
                        marks = [str(len(routes) + i) for i, mark in enumerate(direct) if mark and start is not None]
                        metadata["deltachain.direct"] = " ".join([*metadata.values(), *marks]).strip()
                        routes += [{"from": start, "files": [{"digest": f"{i:064}", "size": size}]}
                                   for i, size in enumerate(sizes)]
                    commit = {"deltachain": 1, "version": version, "parent": parent, "state": HEX, "shards": [HEX],
                              "routes": [{"from": None, "files": [{"digest": HEX, "size": 1}]}], "assets": [],
                              "metadata": {}}
                    put(store, COMMIT.format(version), documents.encode(commit))
                    digests.append(parent := blake3(store.get(COMMIT.format(version))).hexdigest())
                    put_routes(store, version, routes, metadata)
                wanted = rng.randrange(count)
                held = rng.choice([None, *range(count)])
                found += self.compare(store, edges, wanted, held, digests)
        self.assertGreater(found, 50)

    def compare(self, store, edges, wanted, held, digests):
        paths = []
        for start in (None, held) if held is not None and held <= wanted else (None,):
            lower = range(0 if start is None else start + 1, wanted)
            for middle in itertools.chain.from_iterable(itertools.combinations(lower, n) for n in range(wanted + 1)):
                stops = [start, *middle, wanted]
                for steps in itertools.product(*(edges.get(pair, ()) for pair in zip(stops, stops[1:]))):
                    if start != wanted:
                        marked, sizes, places = zip(*steps)
                        paths.append((sum(marked), sum(sizes), len(steps), stops[1:], list(places)))
        if held == wanted:
            paths.append((0, 0, 0, [], []))
        chain = blake3(store.get("chain.json")).hexdigest()
        for price, answers in ((cost, [path[1:] for path in paths]), (direct_cost, paths)):
            reader = Reader(store, None if held is None else Held(held, digests[held], chain, None), cost=price)
            if paths:
                self.assertEqual(price(reader.plan(wanted)[1]), min(answers))
            else:
                self.assertEqual(rule(reader.plan, wanted), "R-CHN-08")
        return len(paths) > 1


class Signed(ChainCase):
    """Section 23.3."""

    def sign(self, *versions):
        """Makes a trusted key, which signs these versions."""
        private = Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        name, id = "a-test", signatures.key_hash("a-test", public)[:4]
        chain = blake3(self.store.get("chain.json")).hexdigest()
        for version in versions:
            text = signatures.note_text(chain, version, self.commits[version])
            line = f"\u2014 {name} {b64encode(id + private.sign(text.encode())).decode()}\n"
            note = f"{text}\n{line}".encode()
            named = f"signatures/{version:020}-{self.commits[version]}-{blake3(note).hexdigest()}"
            put(self.store, named, note)
        return signatures.Trust([f"{name}+{id.hex()}+{b64encode(bytes([1]) + public).decode()}"], 1)

    def test_what_is_signed_is_taken(self):
        self.chain([None], [0], [1], [2])
        trust = self.sign(0, 2)
        for held, path in ((None, [0, 1, 2]), (self.held(1), [2]), (self.held(2), [])):
            version, found = Reader(self.store, held, trust=trust).plan()
            self.assertEqual((version, [step.version for step in found]), (2, path))
        for number, expected in ((0, None), (1, "R-SIG-01"), (3, "R-SIG-01"), (4, "R-CHN-03")):
            self.assertEqual(rule(Reader(self.store, trust=trust).plan, number), expected)
        self.assertEqual(rule(Reader(self.store, self.held(3), trust=trust).plan), "R-CHN-14")
        self.assertEqual(rule(Reader(self.store, trust=self.sign()).plan), "R-SIG-01")
        key = self.sign(3).keys[0]
        elsewhere = f"{key.name}+{key.id.hex()}+{b64encode(bytes([1]) + key.public).decode()} {HEX}"
        self.assertEqual(rule(Reader(self.store, trust=signatures.Trust([elsewhere], 1)).plan), "R-SIG-05")
        trust.seen = signatures.Seen(3, self.commits[3])
        self.assertEqual(rule(Reader(self.store, trust=trust).plan), "R-CHN-14")
        trust.seen = signatures.Seen(1, HEX)
        self.assertEqual(rule(Reader(self.store, trust=trust).plan), "R-CHN-05")


class ZAll(unittest.TestCase):
    def test_every_rule_was_seen(self):
        self.assertEqual({rule for rule in CHAIN_RULES if rule.startswith(("R-CHN", "R-SIG"))} - SEEN, set())


if __name__ == "__main__":
    unittest.main()
