"""Chains: the store (section 17) and its reader (sections 19, 23.3 and 25.2)."""
import re
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from . import documents, in_place, layout, signatures
from . import link as dcf
from .errors import DOCUMENT_BYTES, DcfError, Limits, check, fail
from .model import table_digest, table_of

COMMIT, ROUTES, FILE, ASSET = "commits/{:020}.json", "routes/{:020}-{:010}.json", "files/{}.dcf", "assets/{}"
NOTES = "signatures/{:020}-{}-[0-9a-f]{{64}}"  # the pattern of their names

# The held version of a reader: the digests of the commit and of chain.json, the states of all shards (only for
# `replay`), and the texts of their layouts, each with whether it is proven (only for a reader with layouts).
Held = namedtuple("Held", "version commit chain shards layouts", defaults=[()])
# A route on a path: the version that it starts from, or None for nothing; its place, which is a document and a number
# in it; and whether it is known to be direct.
Step = namedtuple("Step", "version start files document place direct")
Shard = namedtuple("Shard", "state table layout")  # the selected tensors; the table and the layout of all
# The files; whether they are proven; the steps that they come from, and that prove nothing (None: the held version).
Layout = namedtuple("Layout", "files proven origin unproven", defaults=[False, None, None])
Result = namedtuple("Result", "version digest shards assets layouts")  # {number: state}, {name: bytes}, digests


def direct_cost(path):
    """The cost of a path for readers that want absolute values."""
    return sum(file["size"] for step in path if not step.direct for file in step.files), *cost(path)


def cost(path):
    """The cost of a path: bytes, number of routes, versions, places in the documents."""
    return (sum(file["size"] for step in path for file in step.files), len(path), [step.version for step in path],
            [step.place for step in path])


class Store:
    """A directory as a store."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def get(self, name, limit=-1):
        """Returns at most `limit` bytes of an object; None if it does not exist. Symbolic links are followed, here and
        in `numbers`."""
        if not (self.folder / name).is_file():
            return None
        with open(self.folder / name, "rb") as file:
            return file.read(limit)

    def matches(self, pattern):
        """Returns matches for the names of objects FOLDER/NAME, in ascending order."""
        folder, _, pattern = pattern.partition("/")
        names = sorted(path.name for path in (self.folder / folder).glob("*") if path.is_file())
        return [*filter(None, (re.fullmatch(pattern, name) for name in names))]

    def numbers(self, prefix, digits):
        """Returns the numbers in the names of objects PREFIX NUMBER .json, in ascending order."""
        numbers = (int(name[1]) for name in self.matches(f"{prefix}([0-9]{{{digits}}})[.]json"))
        return [number for number in numbers if number <= documents.LARGEST]


class Reader:
    """Reads a version of a chain. Failures are skipped as long as there is another path.

    A reader takes the given shards (numbers) and of them the given tensors (names); None means all. `accept` is the
    digest of a commit for which it gives up the held version, unless it holds that commit. The cheapest path is that of
    `cost`. With `trust`, it takes versions that these keys have signed. With `layouts`, it checks them (section 25).
    """

    def __init__(self, store, held=None, limits=Limits(), shards=None, tensors=None, accept=None, cost=cost,
                 trust=None, layouts=False):
        self.store, self.held, self.limits, self.cost, self.trust = store, held, limits, cost, trust
        seen = trust.seen if trust else None
        self.seen = None if held and seen and held.version >= seen.version else seen
        self.accept = None if held and held.commit == accept else accept
        self.shards, self.layouts = shards, layouts
        self.takes_shard = lambda number: shards is None or number in shards
        self.takes = lambda name: tensors is None or name in tensors
        self.failures = []   # skipped failures, in the order in which they were met
        self.floor = 0       # lowest version at which a path may begin, raised by faults of commits (step 3)
        self.failed = []     # steps that failed in step 5; None: the held version is not what was recorded

    @contextmanager
    def passing_over(self):
        try:
            yield
        except DcfError as failure:
            self.failures.append(failure)

    def document(self, name, kind, missing):
        """Returns a document and its digest."""
        data = self.store.get(name, DOCUMENT_BYTES + 1)
        check(data is not None, missing, "object is missing", name)
        return documents.parse(data, kind, name), blake3(data).hexdigest()

    def commit(self, version):
        """Does steps 3.1 and 3.2."""
        name = COMMIT.format(version)
        commit, digest = self.document(name, "commit", "R-CHN-03")
        check(commit["version"] == version, "R-CHN-02", f"it is of version {commit['version']}", name)
        return commit, digest

    def plan(self, version=None):
        """Does steps 1 to 4. Returns the version (of the head for None) and the cheapest path to it, a list of
        steps."""
        _, self.chain_digest = self.document("chain.json", "chain", "R-CHN-01")
        if self.trust:
            self.keys = self.trust.keys_of(self.chain_digest)
            check(len(self.keys) >= self.trust.quorum, "R-SIG-05", "too few keys are trusted for this chain")
        number = version
        if version is None:
            signed = filter(self.is_signed, reversed(self.store.numbers("commits/", 20)))
            number = next(signed, -1)  # -1 has no commit either
        if self.known() and self.accept is not None:
            self.check_wanted(number)
            if self.commit(number)[1] == self.accept:
                self.held = self.seen = None
        if self.held:
            check(self.chain_digest == self.held.chain, "R-CHN-13", "not the chain that is held", "chain.json")
        versions = [number, *(known.version for known in self.known())]
        forward = version is not None or number == max(versions)
        check(forward, "R-CHN-14", f"version {max(versions)} is held or was seen, the head is {number}")
        self.check_wanted(number)
        self.check_commits(min(versions), max(versions), final=True)
        if self.held and self.held.version > number:
            self.held = None
        present = len(self.commit(number)[0]["shards"])
        check(all(shard < present for shard in self.shards or []), "R-CHN-17", f"the version has {present} shards")
        while True:
            path = self.cheapest(number)
            if not path or path[0].start is not None or self.check_commits(path[0].version, number):
                return number, path

    def known(self):
        """The versions that steps 2 and 3 compare with: the held one, and the one that was seen."""
        return [known for known in (self.held, self.seen) if known]

    def is_signed(self, version):
        """True if notes on the version's commit count for enough keys (section 23.3), or if the reader has no trust."""
        if self.trust is None:
            return True
        data = self.store.get(COMMIT.format(version), DOCUMENT_BYTES + 1)
        commit, counted = blake3(data).hexdigest(), set()
        text = signatures.note_text(self.chain_digest, version, commit)
        own = [signatures.own_note(version, commit, key) for key in self.keys]
        others = [name[0] for name in self.store.matches(NOTES.format(version, commit)) if name[0] not in own]
        for name in own + others[:signatures.NOTES]:
            note = self.store.get(f"signatures/{name}", signatures.NOTE_BYTES + 1)
            if note is not None and len(note) <= signatures.NOTE_BYTES and (
                    name in own or blake3(note).hexdigest() == name[-64:]):
                counted |= signatures.counts_for(note, text, self.keys)
        return len(data) <= DOCUMENT_BYTES and len(counted) >= self.trust.quorum

    def check_wanted(self, number):
        """Does step 2: the commit must exist, and be signed."""
        missing = "R-CHN-03" if self.trust is None or number >= 0 else "R-SIG-01"
        check(self.store.get(COMMIT.format(number), 0) is not None, missing, f"version {number} has no commit")
        check(self.is_signed(number), "R-SIG-01", f"version {number} is not signed by keys that are trusted")

    def check_commits(self, lowest, wanted, final=False):
        """Does step 3. Returns True. If failures are not final, a commit at fault raises `floor`, which rules out paths
        that need the commit, and the result is False."""
        parent = self.chain_digest if lowest == 0 else None
        for version in range(lowest, wanted + 1):
            floor = version + 1
            try:
                commit, digest = self.commit(version)
                same = all(digest == known.commit for known in self.known() if known.version == version)
                check(same, "R-CHN-05", "not the commit that is held or was seen", COMMIT.format(version))
                floor = max(version, 1)  # a path that begins here does not need the previous commit
                check(parent in (None, commit["parent"]), "R-CHN-04", "wrong parent", COMMIT.format(version))
            except DcfError as failure:
                if final:
                    raise
                self.failures.append(failure)
                self.floor = floor
                return False
            parent = digest
        return True

    def cheapest(self, wanted):
        """Does step 4, backwards from the wanted version. The cheapest incomplete path is extended first."""
        paths, seen = [[]], set()
        while paths:
            path = min(paths, key=self.cost)
            paths.remove(path)
            start = path[0].start if path else wanted
            with self.passing_over():
                for step in path[:1]:
                    same = all(len(self.commit(version)[0]["shards"]) == len(step.files)
                               for version in (step.version, start) if version is not None)
                    check(same, "R-CHN-07", f"{len(step.files)} files lead from {start} to {step.version}")
                if start is None or (self.held and start == self.held.version and None not in self.failed):
                    return path
                if start not in seen:
                    paths += [[step, *path] for step in self.routes(start)]
                    seen.add(start)
        if self.failures:
            raise self.failures[0]
        fail("R-CHN-08", f"no path leads to version {wanted}")

    def generations(self, version):
        """Returns the generations of the version's routes documents, highest first."""
        return [*filter(None, reversed(self.store.numbers(f"routes/{version:020}-", 10)))]

    def routes(self, version):
        """Returns the routes in force that have not failed, as steps."""
        commit, digest = self.commit(version)
        document, source = commit, COMMIT.format(version)
        for generation in self.generations(version):
            name = ROUTES.format(version, generation)
            with self.passing_over():  # for the one before, and finally for the commit
                newer, _ = self.document(name, "routes", "R-CHN-09")
                same = (newer["version"], newer["generation"]) == (version, generation)
                check(same, "R-CHN-02", "it is of another version or generation", name)
                check(newer["commit"] == digest, "R-CHN-06", "it belongs to another commit", name)
                document, source = newer, name
                break
        direct = documents.direct(document)
        steps = [Step(version, route["from"], route["files"], source, place, place in direct)
                 for place, route in enumerate(document["routes"])]
        return [step for step in steps
                if step not in self.failed and (step.start is None or step.start >= self.floor)]

    def replay(self, version=None):
        """Does all steps.

        Each plan reads again which routes are in force, so a prune in between does no harm.
        """
        while True:
            version, path = self.plan(version)
            self.at_fault = None
            with self.passing_over():
                shards = self.begin(path)
                for self.at_fault in path:
                    shards = self.follow(self.at_fault, shards)
                for shard in shards.values() if self.layouts and self.trust else ():
                    proven, unproven = shard.layout.proven, shard.layout.unproven
                    self.check_layout(proven, unproven, "no signed commit vouches for the layout")
                break
            self.failed.append(self.at_fault)
        commit = self.commit(version)[0]
        if len(shards) == len(commit["shards"]):  # step 6
            table = {}
            for shard in shards.values():
                check(not table.keys() & shard.table.keys(), "R-CHN-12", "shards with a common tensor name")
                table |= shard.table
            check(table_digest(table).hex() == commit["state"], "R-CHN-12", "the shards do not make up the state")
        assets = {}
        for asset in commit["assets"]:  # step 7
            assets[asset["name"]] = self.object(ASSET, asset, "R-CHN-15", "R-CHN-16")
        layouts = [layout.digest(shard.layout.files) for shard in shards.values()] if self.layouts else None
        states = {number: shard.state for number, shard in shards.items()}
        return Result(version, commit["state"], states, assets, layouts)

    def begin(self, path):
        """Returns the selected shards, {number: Shard}, at the beginning of the path: the empty state, or the held
        one."""
        if path and path[0].start is None:
            numbers = filter(self.takes_shard, range(len(path[0].files)))
            return {number: Shard({}, {}, Layout(layout.ONE_FILE)) for number in numbers}
        commit = self.commit(self.held.version)[0]
        shards, digests = {}, commit["shards"]
        check(len(self.held.shards) == len(digests), "R-APP-01", f"{len(self.held.shards)} shards are held")
        for number, (state, digest) in enumerate(zip(self.held.shards, digests)):
            if self.takes_shard(number):
                table = table_of(state)
                check(table_digest(table).hex() == digest, "R-APP-01", f"shard {number} is not that of the commit")
                found = Layout(layout.ONE_FILE)
                if self.layouts:
                    text, proven = self.held.layouts[number]
                    found = Layout(layout.parse(text, table), proven)
                    found = found if path else self.compare(found, commit, number)
                shards[number] = Shard({name: state[name] for name in state if self.takes(name)}, table, found)
        return shards

    def follow(self, step, bases):
        """Does step 5 for one route: returns the shards of the version that it leads to."""
        commit, shards = self.commit(step.version)[0], {}
        for number, base in bases.items():
            link = self.link(step, number)
            table, files = dcf.promise(link, base.table, base.layout.files)
            found = self.layout(step, link, base, files)
            found = self.compare(found, commit, number) if self.layouts else found
            shards[number] = Shard(dcf.build(link, base.state, self.takes), table, found)
        return shards

    def link(self, step, number):
        """Returns the link of a route for a shard."""
        file = step.files[number]
        link = dcf.parse(self.object(FILE, file, "R-CHN-09", "R-CHN-10"), self.limits)
        same = link.header.target.hex() == self.commit(step.version)[0]["shards"][number]
        check(same, "R-CHN-11", "it does not lead to the shard", FILE.format(file["digest"]))
        return link

    def layout(self, step, link, base, files):
        """Returns the layout of a shard after a link (section 25.2), before it is compared."""
        _, proven, origin, unproven = base.layout
        stands = self.stands_in_commit(step)
        new = layout.KEY in dict(link.index.metadata) or step.start is None
        return Layout(files, stands and (new or proven), step if new or proven else origin,
                      unproven if stands else step)

    def stands_in_commit(self, step):
        return {"from": step.start, "files": step.files} in self.commit(step.version)[0]["routes"]

    def compare(self, found, commit, number):
        """Returns the layout of a shard, which is proven if the commit of its version names it."""
        named = documents.layouts(commit)[number]
        same = named in (None, layout.digest(found.files))
        self.check_layout(same, found.origin, "the commit names another layout")
        return found._replace(proven=found.proven or named is not None)

    def check_layout(self, good, step, message):
        if not good:
            self.at_fault = step
        check(good, "R-LAY-03", message)

    def object(self, pattern, reference, missing, wrong):
        """Returns the bytes of a file or an asset that a document names by digest and size."""
        name = pattern.format(reference["digest"])
        data = self.store.get(name)
        check(data is not None, missing, "object is missing", name)
        same = len(data) == reference["size"] and blake3(data).hexdigest() == reference["digest"]
        check(same, wrong, "not the size or the digest that is named", name)
        return data


class InPlaceReader(Reader):
    """The held state is memory, to which links are applied in place (section 24.6), by routes of commits only
    (R-SUM-08)."""

    def begin(self, path):
        self.memory = super().begin(path)
        self.links = {number: [] for number in self.memory}
        return self.memory

    def follow(self, step, bases):
        in_place.refuse(not self.stands_in_commit(step), "the commit does not name this route")
        shards = {}
        for number, base in bases.items():  # from the beginning again: only that state was hashed
            link = self.link(step, number)
            self.links[number].append(link.data)
            state = in_place.in_place(self.links[number], self.memory[number].state, self.limits)
            table, own = dcf.promise(link, base.table, base.layout.files)
            shards[number] = Shard(state, table, Layout(own))
        return shards


class MinimalReader(Reader):
    """A minimal chain reader (section 14): it knows only the routes of commits, and reports the first failure."""

    @contextmanager
    def passing_over(self):
        yield

    def check_commits(self, lowest, wanted, final=True):
        return super().check_commits(lowest, wanted, True)

    def generations(self, version):
        return []
