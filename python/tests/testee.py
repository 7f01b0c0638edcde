"""The package as a testee of the conformance kit (conformance/protocol.md): the operations on links
that a Python program has.

    deltachain-conformance run --testee "python python/tests/testee.py"

Patches are merged by tensor, and documents and plans are not accessible, so only `check`, `apply`
and `encode` are tested. Tensors in memory have no layout, and callers cannot choose limits.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import deltachain as dc
from deltachain._errors import CLASSES

NAMES = {kind: name for name, kind in CLASSES.items()}


def check(request: dict[str, Any]) -> dict[str, Any]:
    with dc.open(request["link"]) as link:
        link.verify()
        return {"base": link.base, "target": link.target}


def apply(request: dict[str, Any]) -> dict[str, Any]:
    target = dc.apply(request["base"], request["links"], kind="deltachain")
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in target.items():
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    output = Path(request["output"])
    temporary = output.with_name("temporary")
    with temporary.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in target.values():
            file.write(tensor.data)
    os.replace(temporary, output)
    return {"digest": str(dc.digest(target))}


def encode(request: dict[str, Any]) -> dict[str, Any]:
    dc.diff(request["base"], request["target"], request["output"], profile=request["profile"])
    return {}


OPERATIONS = {"check": check, "apply": apply, "encode": encode}
HELLO = {
    "testee": f"deltachain for Python {dc.__version__}",
    "protocol": 2,
    "operations": list(OPERATIONS),
    "without": ["layout", "set-limit", "coded-limit"],
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"case": request["case"], "result": "valid"} | OPERATIONS[request["operation"]](
            request
        )
    except dc.Error as error:
        members = {"class": NAMES[type(error)], "rule": error.rule, "message": str(error)}
        return {"case": request["case"], "result": "invalid"} | members


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(HELLO if request["operation"] == "hello" else answer(request)), flush=True)
