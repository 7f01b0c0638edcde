"""Where a minimal chain reader (SPEC section 14) gives another answer than the vectors expect: the member `minimal`
of the index. The Python reader says it, as a testee of another program."""
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile

from .model import State

TESTEE = os.path.join(os.path.dirname(__file__), "..", "python", "testee.py")
NOT_ASKED = {"accept", "partial", "routes-documents"}  # features


def answers(vectors):
    """{id: {operation: refusal}}, of chain vectors; `vectors` are those of the registry."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [request for number, vector in enumerate(vectors) if vector.kind == "chain"
                 if not NOT_ASKED & {*vector.features} for request in requests(vector, os.path.join(folder,
                                                                                                    str(number)))]
        lines = "".join(json.dumps(request) + "\n" for _, _, request in asked)
        done = subprocess.run([sys.executable, "-B", TESTEE, "--minimal"], input=lines, capture_output=True, text=True,
                              check=True)
    found = {}
    for (vector, operation, _), line in zip(asked, done.stdout.splitlines(), strict=True):
        answer, expected = json.loads(line), vector.expect[operation]
        if answer["result"] == "valid":  # it never gives another result than a chain reader
            assert all(expected.get(name) == value for name, value in answer.items() if name not in ("case",
                                                                                                     "result")), line
        elif answer["class"] != expected.get("class") or answer["rule"] != expected["rule"]:
            found.setdefault(vector.id, {})[operation] = {"class": answer["class"], "rule": answer["rule"]}
    return found


def requests(vector, folder):
    """What is asked of it: (vector, operation, request)."""
    chain, members = os.path.join(folder, "chain"), vector.members
    with tarfile.open(fileobj=io.BytesIO(vector.whole())) as archive:
        archive.extractall(chain, filter="tar")
    held = members.get("held")
    if held:
        shards = []
        for number, shard in enumerate(held["shards"]):
            assert isinstance(shard, State) and shard.suffix == ".safetensors"
            shards.append(os.path.join(folder, f"held-{number}"))
            with open(shards[-1], "wb") as file:
                file.write(shard.file())
        held = held | {"shards": shards}
    for operation in sorted(vector.expect.keys() & {"plan", "replay"}):
        yield vector, operation, {
            "case": vector.id, "operation": operation, "chain": chain, "held": held, "version": members["version"],
            "accept": None, "shards": None, "tensors": None, "set_bytes": members.get("set_bytes"),
            "coded_bytes": members.get("coded_bytes"), "direct": members.get("direct", False),
            "trust": members.get("trust"), "layouts": "layouts" in vector.features, "output": os.path.join(folder, "output")}
