"""The operations of the testee on documents and chains (see ../README.md)."""
from pathlib import Path

from deltachain_py import documents, safetensors
from deltachain_py.chain import Held, Reader, Store, cost


def document(request):
    documents.parse(Path(request["file"]).read_bytes(), request["document"])
    return {}


def reader(request):
    held = request["held"]
    if held is not None:
        held = Held(held["version"], held["commit"], [safetensors.read(path) for path in held.get("shards", [])])
    return Reader(Store(request["chain"]), held)


def plan(request):
    version, path = reader(request).plan(request["version"])
    size, _, versions = cost(path)
    return {"version": version, "bytes": size, "path": versions}


def replay(request):
    version, shards, digest = reader(request).replay(request["version"])
    files = [safetensors.encode(shard) for shard in shards]
    folder = Path(request["output"])
    folder.mkdir()
    for number, data in enumerate(files):
        (folder / f"{number}.safetensors").write_bytes(data)
    return {"version": version, "digest": digest}


OPERATIONS = {"document": document, "plan": plan, "replay": replay}
