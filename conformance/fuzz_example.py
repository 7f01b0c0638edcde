"""A small fuzzer: damages vectors, asks two testees about each, and prints where their answers differ.

    python3 conformance/fuzz_example.py "TESTEE" "OTHER TESTEE" [RUNS [SEED]]

README.md explains what to do about differences, and what to add. Files with a difference are kept in a folder, whose
name is printed.
"""
import json
import random
import shlex
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Testee:
    def __init__(self, command):
        self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask({"operation": "hello", "protocol": 2})

    def ask(self, request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} has ended when asked {request}")
        answer = json.loads(line)
        answer.pop("message", None)  # a text for people, which may be anything
        return answer


def damaged(data, rng):
    """Returns a copy with one to three changes. More often than not, the header checksums of a damaged link are made
    right again."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(data) + 1)
        end = start + rng.choice([0, 1, 1, 1, 2, 8])
        data[start:end] = rng.choice([rng.randbytes(end - start), rng.choice([b"\0", b"\1", b"\x80", b"\xff"]), b""])
    if len(data) >= 128 and data[:4] == b"\x89DCF" and rng.random() < 0.9:
        stored = int.from_bytes(data[88:96], "little")
        data[120:124] = zlib.crc32(data[128:128 + stored]).to_bytes(4, "little")
        data[124:128] = zlib.crc32(data[:124]).to_bytes(4, "little")
    return bytes(data)


def requests(vector, file, output):
    """Yields the possible requests about the damaged file of a vector."""
    base = vector.get("base")
    if vector["kind"] == "document":
        yield {"operation": "document", "file": file, "document": vector["document"]}
    else:
        limits = {"set_bytes": None, "coded_bytes": None}
        yield {"operation": "check", "link": file} | limits
        if "base" in vector and (base is None or base.endswith(".safetensors")):
            base = base and str(HERE / base)
            yield {"operation": "apply", "links": [file], "base": base, "output": output} | limits


def main(first, second, runs="1000", seed="0"):
    testees, rng = [Testee(first), Testee(second)], random.Random(int(seed))
    index = json.loads((HERE / "index.json").read_text())
    vectors = [vector for vector in index["vectors"] if vector["kind"] != "chain"]
    folder, asked, differences = Path(tempfile.mkdtemp(prefix="fuzz-")), 0, 0
    for run in range(int(runs)):
        vector = rng.choice(vectors)
        file, output = folder / f"{run}.bin", folder / "output"
        file.write_bytes(damaged((HERE / vector["file"]).read_bytes(), rng))
        same = True
        for request in requests(vector, str(file), str(output)):
            answers = []
            for testee in testees:
                output.unlink(missing_ok=True)
                answers.append(testee.ask({"case": vector["id"]} | request))
            if not all(answer.get("rule") for answer in answers):
                answers = [{name: value for name, value in answer.items() if name != "rule"} for answer in answers]
            asked += 1
            if answers[0] != answers[1]:
                same = False
                print(f"{request['operation']} of {file}, from {vector['id']}:", *answers, sep="\n  ", flush=True)
        if same:
            file.unlink()
        differences += not same
    print(f"{runs} files, {asked} questions, {differences} files with differences; kept in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
