"""The operations of the testee on documents and chains (see ../protocol.md)."""
from functools import partial
from pathlib import Path

from deltachain_py import documents, safetensors
from deltachain_py.chain import Held, InPlaceReader, MinimalReader, Reader, Store, cost, direct_cost
from deltachain_py.errors import Limits
from deltachain_py.signatures import Seen, Trust


def document(request):
    documents.parse(Path(request["file"]).read_bytes(), request["document"])
    return {}


def reader(request, kind, **taken):
    held = request["held"]
    if held is not None:
        shards = [safetensors.read(path) for path in held.get("shards", [])]
        layouts = [(shard["layout"], shard["proven"]) for shard in held.get("layouts", [])]
        held = Held(held["version"], held["commit"], held["chain"], shards, layouts)
    trust = request.get("trust")  # requests that do not use trust lack this member
    if trust is not None:
        trust = Trust(trust["keys"], trust["quorum"], trust["seen"] and Seen(**trust["seen"]))
    return kind(Store(request["chain"]), held, accept=request["accept"], trust=trust, **taken)


def plan(request, kind):
    version, path = reader(request, kind, cost=direct_cost if request["direct"] else cost).plan(request["version"])
    size, _, versions, _ = cost(path)
    routes = [[file["digest"] for file in step.files] for step in path]
    return {"version": version, "bytes": size, "path": versions, "routes": routes}


def replay(request, kind):
    limits = Limits(set_bytes=request["set_bytes"], coded_bytes=request["coded_bytes"])
    taken = {"shards": request["shards"], "tensors": request["tensors"], "layouts": request.get("layouts", False)}
    result = reader(request, kind, limits=limits, **taken).replay(request["version"])
    files = {f"{number}.safetensors": safetensors.encode(state) for number, state in result.shards.items()}
    files |= {f"assets/{name}": data for name, data in result.assets.items()}
    folder = Path(request["output"])
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    answer = {"version": result.version, "digest": result.digest}
    return answer if result.layouts is None else answer | {"layouts": result.layouts}


def operations(minimal):
    kind = MinimalReader if minimal else Reader
    return {"document": document, "plan": partial(plan, kind=kind), "replay": partial(replay, kind=kind),
            "replay-in-place": partial(replay, kind=InPlaceReader)}
