"""Chains: the store (section 17) and its reader (section 19)."""
import re
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from . import documents
from . import link as dcf
from .errors import DOCUMENT_BYTES, DcfError, Limits, check, fail
from .model import state_digest

COMMIT, ROUTES, FILE = "commits/{:020}.json", "routes/{:020}-{:010}.json", "files/{}.dcf"

Held = namedtuple("Held", "version commit shards")  # digest of the commit, states of the shards (only for `replay`)
Step = namedtuple("Step", "version start files")    # a route on a path; it starts at a version or at None, nothing


def cost(path):
    """What makes a path cheap: bytes, number of routes, versions."""
    return sum(file["size"] for step in path for file in step.files), len(path), [step.version for step in path]


class Store:
    """A directory as a store."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def get(self, name, limit=-1):
        """The bytes of an object, at most `limit` of them; None if there is no such object."""
        if not (self.folder / name).is_file():
            return None
        with open(self.folder / name, "rb") as file:
            return file.read(limit)

    def numbers(self, prefix, digits):
        """The numbers in the names of objects PREFIX NUMBER .json, in ascending order."""
        folder, _, start = prefix.partition("/")
        names = (re.fullmatch(f"{start}([0-9]{{{digits}}})[.]json", path.name)
                 for path in (self.folder / folder).glob("*") if path.is_file())
        return sorted(int(name[1]) for name in names if name and int(name[1]) <= documents.LARGEST)


class Reader:
    """Reads a version of a chain. What fails is passed over, as long as there is another path."""

    def __init__(self, store, held=None, limits=Limits()):
        self.store, self.held, self.limits = store, held, limits
        self.failures = []   # what was passed over, in the order in which it was met
        self.floor = 0       # paths that begin below are ruled out by the fault of a commit (step 3)
        self.failed = []     # steps that failed in step 5

    @contextmanager
    def passing_over(self):
        try:
            yield
        except DcfError as failure:
            self.failures.append(failure)

    def document(self, name, kind, missing):
        """A document, and its digest."""
        data = self.store.get(name, DOCUMENT_BYTES + 1)
        check(data is not None, missing, "object is missing", name)
        return documents.parse(data, kind, name), blake3(data).hexdigest()

    def commit(self, version):
        """Steps 3.1 and 3.2."""
        name = COMMIT.format(version)
        commit, digest = self.document(name, "commit", "R-CHN-03")
        check(commit["version"] == version, "R-CHN-02", f"it is of version {commit['version']}", name)
        return commit, digest

    def plan(self, version=None):
        """Steps 1 to 4: the version (of the head for None) and the cheapest path to it, a list of steps."""
        _, self.chain_digest = self.document("chain.json", "chain", "R-CHN-01")
        versions = self.store.numbers("commits/", 20) if version is None else [version]
        check(versions, "R-CHN-03", "no version has a commit")
        version = versions[-1]
        self.commit(version)
        if self.held and self.held.version > version:
            self.held = None
        if self.held:
            self.check_commits(self.held.version, version, final=True)
        while True:
            path = self.cheapest(version)
            if not path or path[0].start is not None or self.check_commits(path[0].version, version):
                return version, path

    def check_commits(self, lowest, wanted, final=False):
        """Step 3. True; or, if failures are not final, paths that need the commit at fault are ruled out by raising
        `floor`."""
        parent = self.chain_digest if lowest == 0 else None
        for version in range(lowest, wanted + 1):
            floor = version + 1
            try:
                commit, digest = self.commit(version)
                if self.held and version == self.held.version:
                    check(digest == self.held.commit, "R-CHN-05", "not the commit that is held", COMMIT.format(version))
                floor = max(version, 1)  # a path that begins here does not look at the commit before
                check(parent in (None, commit["parent"]), "R-CHN-04", "wrong parent", COMMIT.format(version))
            except DcfError as failure:
                if final or floor > wanted:
                    raise
                self.failures.append(failure)
                self.floor = floor
                return False
            parent = digest
        return True

    def cheapest(self, wanted):
        """Step 4, backwards from the wanted version. The cheapest path that is not yet whole is extended first."""
        paths, seen = [[]], set()
        while paths:
            path = min(paths, key=cost)
            paths.remove(path)
            start = path[0].start if path else wanted
            with self.passing_over():
                for step in path[:1]:
                    same = all(len(self.commit(version)[0]["shards"]) == len(step.files)
                               for version in (step.version, start) if version is not None)
                    check(same, "R-CHN-07", f"{len(step.files)} files lead from {start} to {step.version}")
                if start is None or (self.held and start == self.held.version):
                    return path
                if start not in seen:
                    paths += [[step, *path] for step in self.routes(start)]
                    seen.add(start)
        if self.failures:
            raise self.failures[0]
        fail("R-CHN-08", f"no path leads to version {wanted}")

    def routes(self, version):
        """The routes in force that have not failed, as steps."""
        commit, digest = self.commit(version)
        routes = commit["routes"]
        for generation in filter(None, reversed(self.store.numbers(f"routes/{version:020}-", 10))):
            name = ROUTES.format(version, generation)
            with self.passing_over():  # for the one before, and finally for the commit
                document, _ = self.document(name, "routes", "R-CHN-09")
                same = (document["version"], document["generation"]) == (version, generation)
                check(same, "R-CHN-02", "it is of another version or generation", name)
                check(document["commit"] == digest, "R-CHN-06", "it belongs to another commit", name)
                routes = document["routes"]
                break
        steps = [Step(version, route["from"], route["files"]) for route in routes]
        return [step for step in steps
                if step not in self.failed and (step.start is None or step.start >= self.floor)]

    def replay(self, version=None):
        """All steps: the version, the states of its shards, and its state digest.

        Each plan reads anew which routes are in force, so a prune that came between does no harm.
        """
        while True:
            version, path = self.plan(version)
            from_nothing = path and path[0].start is None
            shards = [{} for _ in path[0].files] if from_nothing else self.held.shards
            with self.passing_over():
                for step in path:
                    shards = self.follow(step, shards)
                break
            self.failed.append(step)
        state, digest = {}, self.commit(version)[0]["state"]
        for shard in shards:  # step 6
            check(not state.keys() & shard.keys(), "R-CHN-12", "shards with a common tensor name")
            state |= shard
        check(state_digest(state).hex() == digest, "R-CHN-12", "the shards do not make up the state")
        return version, shards, digest

    def follow(self, step, bases):
        """Step 5 for one route: the shards of the version that it leads to."""
        digests = self.commit(step.version)[0]["shards"]
        check(len(bases) == len(digests), "R-APP-01", f"{len(bases)} shards are held, the version has {len(digests)}")
        shards = []
        for base, file, digest in zip(bases, step.files, digests):
            name = FILE.format(file["digest"])
            data = self.store.get(name)
            check(data is not None, "R-CHN-09", "object is missing", name)
            same = len(data) == file["size"] and blake3(data).hexdigest() == file["digest"]
            check(same, "R-CHN-10", "it is not what the route names", name)
            link = dcf.parse(data, self.limits)
            check(link.header.target.hex() == digest, "R-CHN-11", "it does not lead to the shard", name)
            shards.append(dcf.apply_link(link, base))
        return shards
