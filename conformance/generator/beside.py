"""The members `minimal`, `routes` and `belongs` of the index. They are separate from the entries of vectors, which
never change.

The Python reader computes the first two, as a testee of another program: where a minimal chain reader (SPEC section 14)
gives another answer than the vectors expect, and which routes a plan takes."""
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
# Refusals that an addition in 1.2 introduced. (The vectors were published without that feature.)
BELONGS = {"signatures-1.2": "chains/trust/low-order-"}


def belongs(vectors):
    """{addition: ids}"""
    return {addition: [vector.id for vector in vectors if vector.id.startswith(begin)]
            for addition, begin in BELONGS.items()}


def minimal(vectors):
    """{id: {operation: refusal}}"""
    chains = [vector for vector in vectors if vector.kind == "chain" and not NOT_ASKED & {*vector.features}]
    found = {}
    for vector, operation, answer in asked(chains, ("plan", "replay"), "--minimal"):
        expected = vector.expect[operation]
        if answer["result"] == "valid":  # a valid result is always that of a chain reader
            assert is_expected(answer, expected), answer
        elif answer["class"] != expected.get("class") or answer["rule"] != expected["rule"]:
            found.setdefault(vector.id, {})[operation] = {"class": answer["class"], "rule": answer["rule"]}
    return found


def routes(vectors):
    """{id: the digests of the files of each route on the path}"""
    chains = [vector for vector in vectors if "path" in vector.expect.get("plan", {})]
    found = {}
    for vector, _, answer in asked(chains, ("plan",)):
        assert answer["result"] == "valid" and is_expected(answer, vector.expect["plan"]), answer
        found[vector.id] = answer["routes"]
    return found


def is_expected(answer, expected):
    return all(expected.get(name) == value for name, value in answer.items() if name not in ("case", "result", "routes"))


def asked(chains, operations, *options):
    """Yields (vector, operation, answer) for each of the operations that a vector has."""
    with tempfile.TemporaryDirectory() as folder:
        questions = [request for number, vector in enumerate(chains)
                     for request in requests(vector, operations, os.path.join(folder, str(number)))]
        lines = "".join(json.dumps(request) + "\n" for _, _, request in questions)
        done = subprocess.run([sys.executable, "-B", TESTEE, *options], input=lines, capture_output=True, text=True,
                              check=True)
        for (vector, operation, _), line in zip(questions, done.stdout.splitlines(), strict=True):
            yield vector, operation, json.loads(line)


def requests(vector, operations, folder):
    """Yields the requests about a vector: (vector, operation, request)."""
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
    for operation in sorted(vector.expect.keys() & {*operations}):
        yield vector, operation, {
            "case": vector.id, "operation": operation, "chain": chain, "held": held, "version": members["version"],
            "accept": members.get("accept"), "shards": None, "tensors": None, "set_bytes": members.get("set_bytes"),
            "coded_bytes": members.get("coded_bytes"), "direct": members.get("direct", False),
            "trust": members.get("trust"), "layouts": "layouts" in vector.features, "output": os.path.join(folder, "output")}
