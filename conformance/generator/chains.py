"""Building blocks of chain vectors (SPEC sections 17 and 18): tiny states, stores, tar archives, expectations.

Nothing here chooses a path: each vector says what a reader must find."""
import copy
import tarfile
from dataclasses import dataclass

from blake3 import blake3

from .coding import Plan, changed_lanes, link, piece_bytes
from .documents import chain_document, commit_document, route, routes_document
from .links import CLASSES
from .model import EMPTY, State, tensor
from .registry import MADE, Vector

IDENTIFIER = "00112233445566778899aabbccddeeff"
BLOCK = 512
CHAIN = "chain.json"


def numbers(name, number):
    """A tensor of eight BF16 lanes, of which each number changes one more."""
    return {name: tensor("BF16", [0x3F80 + 64 * i + (i < number) for i in range(8)])}


def whole(number):
    return State(f"chain-{number}", numbers("weight", number) | {"bias": tensor("F32", [number])})


def halves(number):
    return [State(f"chain-left-{number}", numbers("left", number)),
            State(f"chain-right-{number}", numbers("right", number))]


def thirds(number):
    return [*halves(number), State(f"chain-rest-{number}", {"rest": tensor("U8", bytes([1, 2, number]))})]


def union(shards):
    return State("union", {name: item for shard in shards for name, item in shard.tensors.items()})


def digest(data):
    return blake3(data).hexdigest()


def commit_name(version):
    return f"commits/{version:020}.json"


def routes_name(version, generation):
    return f"routes/{version:020}-{generation:010}.json"


def file_name(data):
    return f"files/{digest(data)}.dcf"


def step(base, target, size=None, **options):
    """A link with one segment for each width of lane. `size`: filled up to that many bytes by metadata."""
    bare = link(base, target)
    widths = {}
    for entry in bare.entries:
        for piece in range(len(entry.segments)):
            if changed_lanes(*piece_bytes(base, target, entry, piece), entry.dtype.lane_bytes):
                widths.setdefault(entry.dtype.lane_bytes, []).append((entry.name, piece))
    plans = [Plan(pieces=pieces, **options) for _, pieces in sorted(widths.items())]
    result = link(base, target, *plans)
    if size is not None:
        fill = 0
        while len(result.encode()) < size:
            fill += 1
            result.metadata = [("", "." * fill)]
        assert len(result.encode()) == size, f"no link has {size} bytes"
    return result


@dataclass
class Route:
    """`source`: a version, or None for nothing. `size`: of each of its links; `links`: others than the usual ones."""
    source: object
    size: int = None
    links: list = None


class Chain:
    """A store, with what is known of its versions. Vectors change `objects` at will."""

    def __init__(self):
        self.objects = {CHAIN: chain_document(IDENTIFIER)}
        self.shards, self.commits = {}, {}  # of each version
        self.costs = {}  # (source, version): bytes of the files of the route that was made first
        self.features = set()

    def copy(self):
        return copy.deepcopy(self)

    def publish(self, shards, *routes, metadata=None, replaced=()):
        """The commit of the next version. `replaced`: members of the document that are to be others."""
        shards = [shards] if isinstance(shards, State) else shards
        version = len(self.commits)
        self.shards[version] = shards
        before = self.commits[version - 1] if version else self.objects[CHAIN]
        self.commits[version] = self.objects[commit_name(version)] = commit_document(
            version, digest(before), union(shards).digest().hex(), [shard.digest().hex() for shard in shards],
            [self.route(version, one) for one in routes], metadata or {}, replaced)
        if len(shards) > 1:
            self.features.add("shards")
        return self

    def put_routes(self, version, generation, *routes, replaced=()):
        """A routes document, which lists all routes from then on."""
        self.features.add("routes-documents")
        listed = [self.route(version, one) for one in routes]
        self.objects[routes_name(version, generation)] = routes_document(
            version, generation, digest(self.commits[version]), listed, replaced)
        return self

    def route(self, version, one):
        """Stores the files of a route and gives its form in a document."""
        one = one if isinstance(one, Route) else Route(one)
        links = one.links
        if links is None:
            bases = [EMPTY] * len(self.shards[version]) if one.source is None else self.shards[one.source]
            links = [step(*pair, one.size) for pair in zip(bases, self.shards[version], strict=True)]
        for item in links:
            if not isinstance(item, bytes):
                self.features |= item.features()
        files = [item if isinstance(item, bytes) else item.encode() for item in links]
        self.objects |= {file_name(data): data for data in files}
        self.costs.setdefault((one.source, version), sum(map(len, files)))
        if one.source is not None and one.source + 1 != version:
            self.features.add("skip-routes")
        return route(one.source, *((digest(data), len(data)) for data in files))

    def files(self, source, version):
        """Names of the files of the usual route."""
        bases = [EMPTY] * len(self.shards[version]) if source is None else self.shards[source]
        return [file_name(step(*pair).encode()) for pair in zip(bases, self.shards[version], strict=True)]

    def without(self, *names):
        """A copy that lacks objects."""
        result = self.copy()
        for name in names:
            del result.objects[name]
        return result

    def with_object(self, name, data):
        """A copy with an object added or replaced."""
        result = self.copy()
        result.objects[name] = data
        return result

    def with_document(self, name, data):
        """A copy with a document replaced, and the digests of it in commits and routes documents, as far as they go."""
        result = self.with_object(name, data)
        old, new = digest(self.objects[name]), digest(data)
        for other, content in self.objects.items():
            if old.encode() in content:
                result = result.with_document(other, result.objects[other].replace(old.encode(), new.encode()))
        return result

    def bytes_of(self, path, start):
        """Bytes of all files of the usual routes along a path that begins at a held version or, None, at nothing."""
        return sum(self.costs[pair] for pair in zip([start, *path], path))


def line(last):
    """Versions 0 to `last` of one shard, each with a step from its parent."""
    chain = Chain().publish(whole(0), None)
    for number in range(1, last + 1):
        chain.publish(whole(number), number - 1)
    return chain


def pairs(last):
    """The same with two shards."""
    chain = Chain().publish(halves(0), None)
    for number in range(1, last + 1):
        chain.publish(halves(number), number - 1)
    return chain


def tar(objects):
    """A plain archive of regular files, the same for the same objects."""
    out = b""
    for name, data in sorted(objects.items()):
        header = tarfile.TarInfo(name)  # mode 0644, no time, no owner
        header.size = len(data)
        out += header.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict") + data + bytes(-len(data) % BLOCK)
    return out + bytes(2 * BLOCK)


def members(chain, version, held):
    found = {"version": version}
    if held is not None:
        found["held"] = {"version": held, "commit": digest(chain.commits[held]), "shards": chain.shards[held]}
    return found


def result(shards):
    return {"digest": union(shards).digest().hex(),
            "shards": [{"digest": shard.digest().hex(), "state": shard} for shard in shards]}


def good(id, chain, path, reason, *, head=None, version=None, held=None, size=None, rules=(), section="19",
         from_nothing=False):
    """A vector of a chain that leads where the reader wants to go. `head`: the version that the reader gets, if it is
    not the last of the path. `size`: bytes of the path, if its routes are not the usual ones. `from_nothing`: the path
    does not begin at the held version."""
    head = path[-1] if head is None else head
    size = chain.bytes_of(path, None if from_nothing else held) if size is None else size
    expect = {"plan": {"version": head, "bytes": size, "path": path},
              "replay": {"version": head} | result(chain.shards[head])}
    features = chain.features | ({"held-version"} if held is not None else set())
    return Vector(f"chains/{id}", tar(chain.objects), section, reason, expect, "chain", ".tar", list(rules),
                  list(features), members=members(chain, version, held), source=chain)


def bad(id, chain, rule, twin, reason, *, path=None, version=None, held=None, section="19"):
    """A vector of a chain that does not. `path`: that of the plan, which reads no files, if only replay fails."""
    refusal = {"class": CLASSES[rule], "rule": rule}
    expect = {"plan": refusal, "replay": refusal}
    if path is not None:
        expect["plan"] = {"version": path[-1], "bytes": chain.bytes_of(path, held), "path": path}
    features = chain.features | ({"held-version"} if held is not None else set())
    return Vector(f"chains/{id}", tar(chain.objects), section, reason, expect, "chain", ".tar", [rule],
                  list(features), MADE[f"chains/{twin}"].id, members(chain, version, held))


def source(id):
    """A copy of the chain of a valid vector."""
    return MADE[f"chains/{id}"].source.copy()

