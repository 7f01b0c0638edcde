"""The Python reader and writer as a testee: answers the requests of ../protocol.md.

    cargo run --release -p deltachain-conformance -- run --testee "python3 conformance/python/testee.py"

With `--minimal` it reads chains like a minimal chain reader (SPEC section 14).
"""
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

import testee_chain
from deltachain_py import in_place, link as dcf, safetensors, writer
from deltachain_py.errors import DcfError, Limits
from deltachain_py.index import REMOVE
from deltachain_py.model import PIECE_BYTES, state_digest


def check(request):
    header = dcf.check_link(read(request["link"]), limits(request)).header
    return {"base": header.base.hex(), "target": header.target.hex()}


def apply(request):
    links = [read(path) for path in request["links"]]
    target = dcf.apply_chain(links, state(request["base"]), limits(request))
    write_whole(request["output"], safetensors.encode(target))
    return {"digest": state_digest(target).hex()}


def patches(request):
    link = dcf.parse(read(request["link"]), limits(request))
    coded = dcf.patches(link)
    answer = []
    for entry in link.index.tensors:
        if entry.operation == REMOVE:
            continue
        width, hasher, lanes = entry.dtype.lane_bytes, blake3(), 0
        for piece in range(len(entry.segments)):
            first = piece * PIECE_BYTES // width
            pairs = coded.get((entry.name, piece), [])
            lanes += len(pairs)
            hasher.update(b"".join((first + lane).to_bytes(8, "little") + value.to_bytes(width, "little")
                                   for lane, value in pairs))
        answer.append({"name": entry.name, "lanes": lanes, "digest": hasher.hexdigest()})
    return {"patches": answer}


def sums(request):
    link = dcf.check_link(read(request["link"]), limits(request))
    found = in_place.link_sums(link)
    if found is None:
        return {"sums": None}
    return {"sums": [{"name": entry.name, "pieces": [dict(zip(("piece", "coded"), found[entry.name, piece]))
                                                     for piece in range(len(entry.segments))]}
                     for entry in link.index.tensors if entry.operation != REMOVE]}


def take_in_place(request):
    links = [read(path) for path in request["links"]]
    target = in_place.in_place(links, state(request["base"]), limits(request))
    write_whole(request["output"], safetensors.encode(target))
    return {"digest": state_digest(target).hex()}


def encode(request):
    options = writer.Options(profile=request["profile"])
    write_whole(request["output"], writer.diff(state(request["base"]), state(request["target"]), options))
    return {}


MINIMAL = "--minimal" in sys.argv[1:]
OPERATIONS = {"check": check, "apply": apply, "patches": patches, "sums": sums, "in-place": take_in_place,
              "encode": encode} | testee_chain.operations(MINIMAL)
HELLO = {"testee": "deltachain_py", "protocol": 2, "operations": list(OPERATIONS), "without": [],
         "additions": ["signatures", "in-place", "signatures-1.2", "layouts"], "routes": True}
HELLO |= {"profile": "minimal-chain"} if MINIMAL else {}


def read(path):
    return Path(path).read_bytes()


def state(path):
    return {} if path is None else safetensors.read(path)


def limits(request):
    return replace(Limits(), set_bytes=request["set_bytes"], coded_bytes=request["coded_bytes"])


def write_whole(path, data):
    """Writes the result. It becomes visible only when it is complete (section 9, step 5)."""
    temporary = f"{path}.tmp"
    Path(temporary).write_bytes(data)
    os.replace(temporary, path)


def answer(request):
    if request["operation"] == "hello":
        return HELLO
    refusal = {"case": request["case"], "result": "invalid"}
    try:
        return {"case": request["case"], "result": "valid"} | OPERATIONS[request["operation"]](request)
    except DcfError as error:
        return refusal | {"class": error.error_class, "rule": error.rule, "message": str(error)}
    except OSError as error:
        return refusal | {"class": "IO", "message": str(error)}
    except KeyError as error:  # the request has an unknown operation, or lacks a member
        return refusal | {"class": "USAGE", "message": f"the request lacks or has another {error}"}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
