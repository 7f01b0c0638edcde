"""Interoperability and differential check: the Rust library, conformance/python and the JavaScript reader.

    python conformance/interop.py --runner PATH/TO/deltachain-conformance [--tool PATH/TO/deltachain]
                                  [--javascript PATH/TO/testee.mjs] [--long] [--files N] [--jobs N] [--seed N]
                                  [--keep DIR]

1. Matrix: the tool and the Python writer make links, and each of the two applies them. The states must be equal bit for
   bit, by a third reader of safetensors, and so must the state digests.
2. Differential (`differential.py`): links, sequences of them, documents and chains are damaged, mostly in ways that get
   past the checksums, and all readers must give the same answers to the requests of the conformance protocol: class
   and rule, or the same result. They may differ where SPEC.md explicitly leaves it open; these answers are counted by
   the part of the text. Every other difference is kept with its files.

Needs the packages of conformance/python/requirements.txt, and for the JavaScript reader `npm ci` in js/. Exit status:
0 if all agreed, else 1.
"""
import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "python"))

import differential  # noqa: E402
from deltachain_py import link as dcf, safetensors, writer  # noqa: E402
from deltachain_py.errors import DcfError  # noqa: E402
from deltachain_py.model import BY_NAME, Tensor, state_digest  # noqa: E402
from deltachain_py.writer import Options  # noqa: E402
from differential import SPARE_MEMORY, read_safetensors  # noqa: E402
from mutations.states import all_dtypes, change_state, random_tensor, reverse_lanes, specials  # noqa: E402


@dataclass
class Outcome:
    verdict: str  # "ok", "CLASS R-XXX-nn", or what went wrong
    answer: dict = None


class Tool:
    def __init__(self, path, folder):
        self.path, self.folder, self.runs = path, folder, 0

    def run(self, *arguments):
        self.runs += 1
        try:
            done = subprocess.run([self.path, "--json", "--threads", "1", *arguments], capture_output=True, timeout=60,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (SPARE_MEMORY,) * 2))
        except subprocess.TimeoutExpired:
            return Outcome("TIMEOUT")
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            return Outcome(f"CRASH: exit {done.returncode}, {done.stderr[-300:]!r}")
        if done.returncode == 0:
            return Outcome("ok", answer)
        error = answer["error"]
        return Outcome(f"{error['class']} {error.get('rule') or ''}".strip(), answer)


def python_outcome(function, *arguments):
    try:
        return Outcome("ok", {"state": function(*arguments)})
    except DcfError as error:
        return Outcome(f"{error.error_class} {error.rule or ''}".strip(), {"message": str(error)})
    except Exception as error:  # any other exception is a bug of the Python package
        return Outcome(f"PYTHON {error!r}")


def plain(state):
    return {name: (t.dtype.name, t.shape, t.data) for name, t in state.items()}


def pairs(rng, short):
    """(name, base, target): the states of each link."""
    u8, bf16, f32, f4 = (BY_NAME[n] for n in ("U8", "BF16", "F32", "F4"))
    base = all_dtypes(rng, 60)
    for density in (0, 0.02, 0.4, 1):
        yield f"all dtypes, {density:.0%} changed", base, change_state(rng, base, density)
    yield "special values", specials(), reverse_lanes(specials())
    yield "both empty", {}, {}
    yield "all removed", base, {}
    state = {"scalar": Tensor(f32, (), b"\0\0\x80\x3f"), "none": Tensor(bf16, (0,), b""),
             "é\0\n": Tensor(u8, (), b"x"),
             "": Tensor(u8, (1,) * 8, b"y"), "wide": Tensor(u8, (0, 2**53), b""), "zeros": Tensor(f32, (9,), bytes(36)),
             "one": Tensor(f4, (2,), b"\x21"), "🦀" * 200: Tensor(bf16, (3,), b"abcdef"),
             "same": Tensor(u8, (1,), b"s")}
    changed = reverse_lanes(change_state(rng, state, 1)) | {"same": state["same"]}
    yield "scalars, empty tensors, odd names", state, changed
    other = {"shape": Tensor(u8, (4,), b"abcd"), "dtype": Tensor(u8, (4,), b"abcd"), "size": Tensor(u8, (4,), b"abcd"),
             "gone": Tensor(u8, (4,), b"abcd"), "filled": Tensor(u8, (0,), b""), "emptied": Tensor(u8, (3,), b"abc"),
             "same": Tensor(bf16, (1,), b"zz"), "shape and data": Tensor(u8, (2, 2), b"abcd")}
    yield "add, remove, retype, reshape", other, {
        "shape": Tensor(u8, (2, 2), b"abcd"), "dtype": Tensor(bf16, (2,), b"abcd"), "size": Tensor(u8, (5,), b"abcde"),
        "filled": Tensor(u8, (2,), b"zz"), "emptied": Tensor(u8, (0,), b""), "added": Tensor(bf16, (2,), b"1234"),
        "same": other["same"], "shape and data": Tensor(u8, (1, 4), b"abcx"),
        "added zeros": Tensor(f32, (2,), bytes(8))}
    many = {f"layer.{i}": random_tensor(rng, bf16, 1 + i % 5) for i in range(300)}
    yield "300 small tensors", many, change_state(rng, many, 0.1)
    if not short:
        for elements, density in ((3000, 0.01), (3000, 0.2), (700, 0.9)):
            base = all_dtypes(rng, elements)
            yield f"all dtypes, {elements} elements, {density:.0%}", base, change_state(rng, base, density)
        data = bytearray((1 << 24) + 6)
        base = {"t": Tensor(bf16, (len(data) // 2,), bytes(data))}
        data[0] = data[(1 << 24) - 1] = data[1 << 24] = data[-1] = 1
        yield "two pieces", base, {"t": Tensor(bf16, (len(data) // 2,), bytes(data))}


def real_pairs(short):
    folder = os.path.join(os.path.dirname(HERE), "testdata")
    for kind in ("fp8",) if short else ("fp8", "rl3e6", "f32"):
        files = [os.path.join(folder, f"{kind}_step{i}.safetensors") for i in (0, 1)]
        if all(map(os.path.exists, files)):
            yield f"testdata {kind}", *map(safetensors.read, files)


class Matrix:
    COLUMNS = ("rust>rust", "rust>python", "python>rust", "python>python")

    def __init__(self, tool):
        self.tool, self.passed, self.failed = tool, 0, 0

    def path(self, name):
        return os.path.join(self.tool.folder, name)

    def expect(self, condition, what):
        self.passed += bool(condition)
        self.failed += not condition
        if not condition:
            print(f"  FAILED: {what}")
        return bool(condition)

    def one(self, name, base, target, base_name="base", target_name="target"):
        """Makes and checks all links of one pair of states; returns them with the producers' names."""
        safetensors.write(self.path("base.safetensors"), base)
        safetensors.write(self.path("target.safetensors"), target)
        digests = {"base": state_digest(base).hex(), "target": state_digest(target).hex()}
        for which, digest in digests.items():
            outcome = self.tool.run("digest", self.path(which + ".safetensors"))
            self.expect(outcome.answer and digest in json.dumps(outcome.answer), f"{name}: digest of {which}")
        links, results = [], {column: [0, 0] for column in self.COLUMNS}
        for profile in ("compact", "direct", "snapshot"):
            start = {} if profile == "snapshot" else base
            for producer in ("rust", "python"):
                label, file = f"{name}, {profile} by {producer}", self.path("link.dcf")
                if producer == "python":
                    data = writer.snapshot(target) if profile == "snapshot" else writer.diff(
                        base, target, Options(profile=profile))
                else:
                    arguments = ["snapshot", self.path("target.safetensors")] if profile == "snapshot" else [
                        "diff", self.path("base.safetensors"), self.path("target.safetensors"), "--profile", profile]
                    outcome = self.tool.run(*arguments, "-o", file, "--force")
                    if not self.expect(outcome.verdict == "ok", f"{label}: {outcome.verdict}"):
                        continue
                    with open(file, "rb") as handle:
                        data = handle.read()
                links.append((label, start, data))
                for consumer in ("rust", "python"):
                    good = self.consume(label, consumer, start, target, data, profile)
                    results[f"{producer}>{consumer}"][not good] += 1
        cells = "  ".join(f"{good} of {good + bad}".center(13) for good, bad in results.values())
        print(f"{name[:44]:44}  {cells}")
        return links

    def consume(self, label, consumer, base, target, data, profile):
        link, result = self.path("link.dcf"), self.path("result.safetensors")
        if os.path.exists(result):
            os.remove(result)
        with open(link, "wb") as handle:
            handle.write(data)
        if consumer == "python":
            outcomes = [python_outcome(dcf.check_link, data), python_outcome(dcf.apply, data, base)]
            if outcomes[1].verdict == "ok":
                safetensors.write(result, outcomes[1].answer["state"])
        else:
            with_base = [] if profile == "snapshot" else ["--base", self.path("base.safetensors")]
            outcomes = [self.tool.run("verify", link),
                        self.tool.run("apply", *with_base, link, "-o", result, "--force")]
        good = True
        for outcome in outcomes:
            good &= self.expect(outcome.verdict == "ok", f"{label}, read by {consumer}: {outcome.verdict} "
                                                         f"{outcome.answer}")
        return good and self.expect(read_safetensors(result) == plain(target), f"{label}, read by {consumer}: state")


def matrix(tool, rng, short):
    print(f"{'links: producer > consumer':44}  " + "  ".join(c.center(13) for c in Matrix.COLUMNS))
    table, links = Matrix(tool), []
    for name, base, target in pairs(rng, short):
        links += table.one(name, base, target)
    for name, base, target in real_pairs(short):
        table.one(name, base, target)
    return table, links


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runner", required=True)
    parser.add_argument("--tool", help="without it, there is no matrix")
    parser.add_argument("--javascript", metavar="TESTEE", help="the JavaScript reader's testee.mjs: a third reader")
    parser.add_argument("--long", action="store_true", help="larger states in the matrix, and 100,000 damaged files")
    parser.add_argument("--files", type=int, help="number of damaged files")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", default=os.path.join(tempfile.gettempdir(), "deltachain-disagreements"))
    args = parser.parse_args()
    files = args.files or (100000 if args.long else 1500)
    commands = {"rust": [os.path.abspath(args.runner), "testee"]}
    if args.javascript:
        commands["javascript"] = ["node", os.path.abspath(args.javascript), "--format-limits"]
    passed, failed, links = 0, 0, []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        if args.tool:
            tool = Tool(os.path.abspath(args.tool), folder)
            table, links = matrix(tool, random.Random(args.seed), not args.long)
            passed, failed = table.passed, table.failed
        sums, seconds = differential.run(commands, folder, args.seed, links, args.keep, files, args.jobs)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sums["kinds"].most_common())
    print(f"\n{sums['files']} files ({kinds})\n{sums['files'] / seconds:.1f} files a second; "
          f"{sums['answers']} questions to {len(commands) + 1} readers:")
    for result, count in sums["judged"].most_common():
        print(f"  {count:7} {result}")
    if args.long:
        for verdict, count in sorted(sums["verdicts"].items()):
            print(f"  {count:7} {verdict}")
    differ = sums["judged"]["DIFFER"]
    print(f"{passed + sums['answers'] - differ} passed, {failed + differ} failed")
    return 1 if failed + differ else 0


if __name__ == "__main__":
    sys.exit(main())
