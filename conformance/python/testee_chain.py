"""The operations of the testee on documents and chains (see ../README.md)."""
from pathlib import Path

from deltachain_py import documents, safetensors
from deltachain_py.chain import Held, Reader, Store, cost
from deltachain_py.errors import Limits


def document(request):
    documents.parse(Path(request["file"]).read_bytes(), request["document"])
    return {}


def reader(request, **taken):
    held = request["held"]
    if held is not None:
        shards = [safetensors.read(path) for path in held.get("shards", [])]
        held = Held(held["version"], held["commit"], held["chain"], shards)
    return Reader(Store(request["chain"]), held, accept=request["accept"], **taken)


def plan(request):
    version, path = reader(request).plan(request["version"])
    size, _, versions, _ = cost(path)
    return {"version": version, "bytes": size, "path": versions}


def replay(request):
    limits = Limits(set_bytes=request["set_bytes"])
    result = reader(request, limits=limits, shards=request["shards"], tensors=request["tensors"]).replay(
        request["version"])
    files = {f"{number}.safetensors": safetensors.encode(state) for number, state in result.shards.items()}
    files |= {f"assets/{name}": data for name, data in result.assets.items()}
    folder = Path(request["output"])
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return {"version": result.version, "digest": result.digest}


OPERATIONS = {"document": document, "plan": plan, "replay": replay}
