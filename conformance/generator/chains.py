"""Building blocks of chain vectors (SPEC sections 17 and 18): tiny states, stores, tar archives, expectations.

Nothing here chooses a path: each vector states what a reader must find."""
import copy
import tarfile
from dataclasses import dataclass

from blake3 import blake3

from .coding import Plan, changed_lanes, link, piece_bytes
from .documents import asset, chain_document, commit_document, in_order, route, routes_document
from .links import CLASSES
from .model import EMPTY, State, tensor
from .registry import MADE, Vector

IDENTIFIER = "00112233445566778899aabbccddeeff"
BLOCK = 512
CHAIN = "chain.json"


def numbers(name, number):
    """A tensor of eight BF16 lanes. Each number changes one more lane."""
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


def asset_name(data):
    return f"assets/{digest(data)}"


class Symlink(str):
    """A symbolic link in place of an object, with its target."""


def step(base, target, size=None, **options):
    """Returns a link with one segment for each lane width. With `size`, metadata fill it up to that many bytes."""
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
    """`source`: a version, or None for nothing. `size`: bytes of each of its links; `links`: other links than the usual
    ones; `named`: pairs of digest and size that the documents name, whatever files exist."""
    source: object
    size: int = None
    links: list = None
    named: list = None


class Chain:
    """A store, with facts about its versions. Vectors change `objects` at will."""

    def __init__(self, identifier=IDENTIFIER, metadata=None):
        self.document = chain_document(identifier, metadata)
        self.objects = {CHAIN: self.document}
        self.shards, self.commits, self.states, self.assets = {}, {}, {}, {}  # of each version
        self.costs = {}  # (source, version): bytes of the files of the cheapest route made so far
        self.features = set()

    def copy(self):
        return copy.deepcopy(self)

    def publish(self, shards, *routes, metadata=None, assets=None, replaced=()):
        """Adds the commit of the next version. `assets`: bytes by name. `replaced`: members of the document that get
        other values."""
        shards = [shards] if isinstance(shards, State) else shards
        version = len(self.commits)
        self.shards[version] = shards
        before = self.commits[version - 1] if version else self.objects[CHAIN]
        self.states[version] = dict(replaced).get("state", union(shards).digest().hex())
        self.assets[version] = dict(sorted((assets or {}).items(), key=lambda pair: pair[0].encode()))
        for data in self.assets[version].values():
            self.objects[asset_name(data)] = data
            self.features.add("assets")
        listed = [asset(name, digest(data), len(data)) for name, data in self.assets[version].items()]
        self.commits[version] = self.objects[commit_name(version)] = commit_document(
            version, digest(before), self.states[version], [shard.digest().hex() for shard in shards],
            in_order([self.route(version, one) for one in routes]), metadata or {}, listed, replaced)
        if len(shards) > 1:
            self.features.add("shards")
        return self

    def put_routes(self, version, generation, *routes, metadata=None, replaced=()):
        """Adds a routes document, which lists all routes from then on."""
        self.features.add("routes-documents")
        listed = in_order([self.route(version, one) for one in routes])
        self.objects[routes_name(version, generation)] = routes_document(
            version, generation, digest(self.commits[version]), listed, metadata, replaced)
        return self

    def route(self, version, one):
        """Stores the files of a route and gives its form in a document."""
        one = one if isinstance(one, Route) else Route(one)
        links = one.links if one.named is None else []
        if links is None:
            bases = [EMPTY] * len(self.shards[version]) if one.source is None else self.shards[one.source]
            links = [step(*pair, one.size) for pair in zip(bases, self.shards[version], strict=True)]
        for item in links:
            if not isinstance(item, bytes):
                self.features |= item.features()
        files = [item if isinstance(item, bytes) else item.encode() for item in links]
        self.objects |= {file_name(data): data for data in files}
        named = one.named or [(digest(data), len(data)) for data in files]
        cost = sum(size for _, size in named)
        self.costs[one.source, version] = min(cost, self.costs.get((one.source, version), cost))
        if one.source is not None and one.source + 1 != version:
            self.features.add("skip-routes")
        return route(one.source, *named)

    def files(self, source, version):
        """Returns the names of the files of the usual route."""
        bases = [EMPTY] * len(self.shards[version]) if source is None else self.shards[source]
        return [file_name(step(*pair).encode()) for pair in zip(bases, self.shards[version], strict=True)]

    def without(self, *names):
        """Returns a copy without these objects."""
        result = self.copy()
        for name in names:
            del result.objects[name]
        return result

    def with_object(self, name, data):
        """Returns a copy with an object added or replaced."""
        result = self.copy()
        result.objects[name] = data
        return result

    def with_document(self, name, data):
        """Returns a copy with a document replaced, and its digests in commits and routes documents, as far as
        possible."""
        result = self.with_object(name, data)
        old, new = digest(self.objects[name]), digest(data)
        for other, content in self.objects.items():
            if old.encode() in content:
                result = result.with_document(other, result.objects[other].replace(old.encode(), new.encode()))
        return result

    def bytes_of(self, path, start):
        """Returns the bytes of all files of the usual routes along a path that begins at a held version or, with None,
        at nothing."""
        return sum(self.costs[pair] for pair in zip([start, *path], path))


def line(last):
    """Returns versions 0 to `last` of one shard, each with a step from its parent."""
    chain = Chain().publish(whole(0), None)
    for number in range(1, last + 1):
        chain.publish(whole(number), number - 1)
    return chain


def pairs(last):
    """Like `line`, with two shards."""
    chain = Chain().publish(halves(0), None)
    for number in range(1, last + 1):
        chain.publish(halves(number), number - 1)
    return chain


def moved(chain, *names):
    """Returns a copy in which these objects are in another folder, with symbolic links to them."""
    result = chain.copy()
    for number, name in enumerate(names):
        result.objects[f"elsewhere/{number}"] = result.objects[name]
        result.objects[name] = Symlink("../" * name.count("/") + f"elsewhere/{number}")
    return result


def tar(objects):
    """Returns a plain archive of regular files and symbolic links, equal for equal objects. Long names have the form of
    GNU tar."""
    out = b""
    for name, data in sorted(objects.items()):
        header = tarfile.TarInfo(name)  # mode 0644, no time, no owner
        if isinstance(data, Symlink):
            header.type, header.linkname, data = tarfile.SYMTYPE, data, b""
        header.size = len(data)
        form = tarfile.USTAR_FORMAT if len(name) <= tarfile.LENGTH_NAME else tarfile.GNU_FORMAT
        out += header.tobuf(form, "utf-8", "strict") + data + bytes(-len(data) % BLOCK)
    return out + bytes(2 * BLOCK)


@dataclass
class Held:
    """The held state of a reader. Members that are not given are those of version `version` of the chain."""
    version: int
    commit: str = None
    chain: str = None
    shards: list = None
    layouts: list = None  # texts, each with whether it is proven


def member_list(chain, held, take, **others):
    """Returns the members of the index's entry for the questions about a chain."""
    found = {"version": others.pop("version")} | {name: value for name, value in others.items() if value is not None}
    if held is not None:
        version = held.version
        found["held"] = {"version": version, "commit": held.commit or digest(chain.commits[version]),
                         "chain": held.chain or digest(chain.document),
                         "shards": chain.shards[version] if held.shards is None else held.shards}
        if held.layouts is not None:
            found["held"]["layouts"] = held.layouts
    if take:
        found["take"] = {"shards": take.get("shards"), "tensors": take.get("tensors")}
    return found


def features_of(chain, held, accept, take, others, features):
    asked = {"held-version": held, "accept": accept, "partial": take, "set-limit": others["set_bytes"],
             "coded-limit": others["coded_bytes"], "direct-path": others["direct"], "signatures": others["trust"]}
    return sorted(chain.features | {name for name, value in asked.items() if value is not None} | set(features))


def part(shard, tensors):
    """Returns a shard with only the selected tensors."""
    kept = {name: item for name, item in shard.tensors.items() if tensors is None or name in tensors}
    if len(kept) == len(shard.tensors):
        return shard
    return State("-".join([shard.label, *kept]), kept) if kept else EMPTY


def result(chain, version, take):
    """Returns the expected result of replay."""
    take = take or {}
    numbers = take.get("shards")
    shards = {str(number): part(chain.shards[version][number], take.get("tensors"))
              for number in (range(len(chain.shards[version])) if numbers is None else numbers)}
    found = {"version": version, "digest": chain.states[version],
             "shards": {number: {"digest": shard.digest().hex(), "state": shard} for number, shard in shards.items()}}
    if chain.assets[version]:
        found["assets"] = {name: digest(data) for name, data in chain.assets[version].items()}
    return found


def held_of(held):
    return Held(held) if isinstance(held, int) else held


def good(id, chain, path, reason, *, head=None, version=None, held=None, size=None, rules=(), section="19",
         from_nothing=False, accept=None, take=None, set_bytes=None, coded_bytes=None, direct=None, trust=None,
         replay=True, features=()):
    """A vector of a chain that leads to the wanted version. `path`: the cheapest. `head`: the version that the reader
    gets, if it is not the last of the path. `size`: bytes of the path, if its routes are not the usual ones.
    `from_nothing`: the path does not begin at the held version. `take`: the shards and tensors that replay takes.
    `direct`: the cheapest direct path is wanted. `trust`: the keys whose versions the reader takes. `replay` False:
    replay is not run, because there are no files."""
    others = {"set_bytes": set_bytes, "coded_bytes": coded_bytes, "direct": direct, "trust": trust}
    head, held = path[-1] if head is None else head, held_of(held)
    size = chain.bytes_of(path, None if from_nothing or held is None else held.version) if size is None else size
    expect = {"plan": {"version": head, "bytes": size, "path": path}}
    if replay:
        expect["replay"] = result(chain, head, take)
    return Vector(f"chains/{id}", tar(chain.objects), section, reason, expect, "chain", ".tar", list(rules),
                  features_of(chain, held, accept, take, others, features), source=chain, members=member_list(
                      chain, held, take, version=version, accept=accept, **others))


def bad(id, chain, rule, twin, reason, *, path=None, size=None, version=None, held=None, section="19", accept=None,
        take=None, set_bytes=None, coded_bytes=None, direct=None, trust=None, replay=True, features=()):
    """A vector of a chain that does not lead to the wanted version. `path`: the path of the plan, which reads no files,
    if only replay fails."""
    refusal, held = {"class": CLASSES[rule], "rule": rule}, held_of(held)
    others = {"set_bytes": set_bytes, "coded_bytes": coded_bytes, "direct": direct, "trust": trust}
    expect = {"plan": refusal} | ({"replay": refusal} if replay else {})
    if path is not None:
        size = chain.bytes_of(path, None if held is None else held.version) if size is None else size
        expect["plan"] = {"version": path[-1] if path else held.version, "bytes": size, "path": path}
    return Vector(f"chains/{id}", tar(chain.objects), section, reason, expect, "chain", ".tar", [rule],
                  features_of(chain, held, accept, take, others, features), MADE[f"chains/{twin}"].id,
                  member_list(chain, held, take, version=version, accept=accept, **others))


def source(id):
    """Returns a copy of the chain of a valid vector."""
    return MADE[f"chains/{id}"].source.copy()
