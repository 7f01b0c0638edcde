"""A minimal publisher (sections 20 and 17.1), which makes chains for the tests."""
import os

from blake3 import blake3

from deltachain_py import documents, writer
from deltachain_py.chain import ASSET, COMMIT, FILE, ROUTES, Reader
from deltachain_py.errors import DcfError
from deltachain_py.model import state_digest


def put(store, name, data, if_absent=False):
    """Writes to another name, then moves or links to the final one. (No sync: this is for tests.)"""
    path = store.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{os.urandom(8).hex()}.tmp")
    temporary.write_bytes(data)
    try:
        (os.link if if_absent else os.replace)(temporary, path)
    except FileExistsError:  # R-PUB-03: the same bytes mean that an earlier attempt succeeded
        if store.get(name) != data:
            raise DcfError("CHAIN", "R-PUB-03", f"{name}: another writer was first") from None
    finally:
        temporary.unlink(missing_ok=True)


def put_document(store, name, document, kind):
    data = documents.encode(document)
    documents.parse(data, kind, name)
    put(store, name, data, if_absent=True)
    return blake3(data).hexdigest()


def init(store, identifier=None):
    """R-PUB-05."""
    put_document(store, "chain.json", {"deltachain": 1, "chain": identifier or os.urandom(16).hex(), "metadata": {}},
                 "chain")


def make_routes(store, shards, bases):
    """Stores the files of routes from each version of `bases` (version or None: its shards), and returns the routes
    (R-PUB-02)."""
    routes = []
    for start in sorted(bases, key=lambda start: -1 if start is None else start):
        old = [{}] * len(shards) if start is None else bases[start]
        if start is not None:  # R-PUB-01
            committed = Reader(store).commit(start)[0]["shards"]
            assert committed == [state_digest(shard).hex() for shard in old], "not the version as committed"
        links = [writer.diff(before, after) for before, after in zip(old, shards, strict=True)]
        for data in links:
            put(store, FILE.format(blake3(data).hexdigest()), data)
        files = [{"digest": blake3(data).hexdigest(), "size": len(data)} for data in links]
        routes.append({"from": start, "files": files})
    return routes


def publish(store, shards, bases, metadata=None, assets=None):
    """Publishes the next version, with routes from `bases`; R-PUB-02 to R-PUB-04. Returns (version, digest of the
    commit)."""
    version = max(store.numbers("commits/", 20), default=-1) + 1
    assert bases.keys() & {None, version - 1}
    routes = make_routes(store, shards, bases)
    parent = store.get(COMMIT.format(version - 1) if version else "chain.json")
    whole = {name: tensor for shard in shards for name, tensor in shard.items()}
    named = []
    for name, data in sorted((assets or {}).items()):
        named.append({"name": name, "digest": blake3(data).hexdigest(), "size": len(data)})
        put(store, ASSET.format(named[-1]["digest"]), data)
    commit = {"deltachain": 1, "version": version, "parent": blake3(parent).hexdigest(),
              "state": state_digest(whole).hex(), "shards": [state_digest(shard).hex() for shard in shards],
              "routes": routes, "assets": named, "metadata": dict(sorted((metadata or {}).items()))}
    return version, put_document(store, COMMIT.format(version), commit, "commit")


def put_routes(store, version, routes, metadata=None):
    """R-PUB-06: writes the routes of a version from now on."""
    generation = max(store.numbers(f"routes/{version:020}-", 10), default=0) + 1
    commit = Reader(store).commit(version)[1]
    document = {"deltachain": 1, "version": version, "generation": generation, "commit": commit, "routes": routes,
                "metadata": metadata or {}}
    put_document(store, ROUTES.format(version, generation), document, "routes")
