"""A testee in few lines: `check` and `apply` with the Python reader, over the protocol of protocol.md."""
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "python"))
from deltachain_py import link, safetensors
from deltachain_py.errors import DcfError, Limits
from deltachain_py.model import state_digest

HELLO = {"testee": "example", "protocol": 2, "operations": ["check", "apply"], "without": ["layout"]}


def check(request, limits):
    header = link.check_link(Path(request["link"]).read_bytes(), limits).header
    return {"result": "valid", "base": header.base.hex(), "target": header.target.hex()}


def apply(request, limits):
    base = safetensors.read(request["base"]) if request["base"] else {}
    target = link.apply_chain([Path(path).read_bytes() for path in request["links"]], base, limits)
    safetensors.write(request["output"], target)  # written last: a refusal leaves no output
    return {"result": "valid", "digest": state_digest(target).hex()}


def answer(request):
    operation = {"check": check, "apply": apply}[request["operation"]]
    try:
        members = operation(request, replace(Limits(), set_bytes=request["set_bytes"]))
    except DcfError as error:
        members = {"result": "invalid", "class": error.error_class, "rule": error.rule, "message": str(error)}
    return {"case": request["case"]} | members


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(HELLO if request["operation"] == "hello" else answer(request)), flush=True)
