"""The differential check of `interop.py`: two readers give the same answers about the same files."""
import json
import os
import resource
import select
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import testee
from deltachain_py import documents, link as dcf, safetensors, streams, writer
from deltachain_py.errors import DcfError, Limits
from deltachain_py.index import ABSOLUTE, DENSE, PLANES, SMALL, SPARSE
from deltachain_py.model import BY_NAME, DTYPES, Tensor, state_digest
from deltachain_py.writer import Options
from mutations import chains, links, texts
from mutations.frames import take_apart
from mutations.states import change_state, random_tensor
from tests.edge_cases import edge_cases

SPARE_MEMORY = 12 << 30  # address space of the runner: a reader that allocates what a file claims will fail
SECONDS = 60             # for one answer

# The limit of the Rust library for small files; it lies between the columns of section 13.
testee.limits = lambda request: Limits(index_bytes=1 << 26, set_bytes=request["set_bytes"])


def read_safetensors(path):
    """An independent reader: {name: (dtype name, shape, bytes)}."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:8 + size])
    tensors.pop("__metadata__", None)
    body = memoryview(data)[8 + size:]
    return {name: (t["dtype"], tuple(t["shape"]), bytes(body[slice(*t["data_offsets"])]))
            for name, t in tensors.items()}


class Rust:
    """The runner as a testee, started again when it dies."""

    def __init__(self, runner, folder):
        self.runner, self.errors, self.process = runner, open(folder / "stderr", "w+b"), None

    def answer(self, request):
        if self.process is None:
            self.process = subprocess.Popen(
                [self.runner, "testee"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (SPARE_MEMORY,) * 2))
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            line = select.select([self.process.stdout], [], [], SECONDS)[0] and self.process.stdout.readline()
            return json.loads(line)
        except (OSError, ValueError, TypeError):
            self.process.kill()
            code, self.process = self.process.wait(), None
            self.errors.seek(-min(300, self.errors.seek(0, 2)), 2)
            return {"result": "crash", "class": f"CRASH: exit {code}, {self.errors.read()!r}"}


def python_answer(request):
    try:
        return testee.answer(request)
    except Exception as error:  # a bug of the Python package
        return {"result": "crash", "class": f"PYTHON {error!r}"}


def verdict(answer):
    return "valid" if answer["result"] == "valid" else f"{answer['class']} {answer.get('rule') or ''}".strip()


def members(answer):
    return {name: value for name, value in answer.items() if name not in ("case", "message") and value is not None}


def output(path):
    """What an operation wrote: {name: content}."""
    files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(file.relative_to(path)): read_safetensors(file) if file.suffix == ".safetensors" else file.read_bytes()
            for file in files}


class OpenFrames:
    """Notes whether the last frame is one on which readers may differ (R-STR-07): its structure is right, and it has
    compressed blocks."""

    def __init__(self):
        self.last, self.check = False, streams.check_structure
        streams.check_structure = self

    def __call__(self, stored, raw_length, where):
        self.last = False
        self.check(stored, raw_length, where)
        self.last = any(kind == streams.COMPRESSED for _, kind, _, _ in take_apart(stored)[1])


class Differential:
    def __init__(self, runner, folder, keep):
        self.rust, self.folder, self.keep, self.frames = Rust(runner, folder), folder, Path(keep), OpenFrames()
        self.files, self.answers, self.agreed, self.allowed, self.failed = 0, 0, 0, 0, 0
        self.verdicts, self.kinds = Counter(), Counter()

    def compare(self, kind, members_of_request, only_result=False):
        """One request to both. `only_result`: which of several faults is reported is the reader's affair."""
        self.answers += 1
        request = {"case": kind} | members_of_request
        writes = request["operation"] in ("apply", "replay")
        suffix = ".safetensors" if request["operation"] == "apply" else ""
        outputs = [self.folder / (name + suffix) for name in ("rust", "python")]
        answers = []
        for ask, path in zip((self.rust.answer, python_answer), outputs):
            answers.append(ask(request | ({"output": str(path)} if writes else {})))
        rust, python = answers
        written = [output(path) if writes else {} for path in outputs]
        for path in outputs:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.verdicts[f"{request['operation']}: {verdict(python)}"] += 1
        if only_result and rust["result"] == python["result"] == "invalid":
            rust = python
        if members(rust) == members(python) and written[0] == written[1]:
            self.agreed += 1
        elif self.frames.last and "MALFORMED R-STR-02" in (verdict(rust), verdict(python)):
            self.allowed += 1
        else:
            self.failed += 1
            if self.failed <= 50:
                self.report(kind, request, rust, python)
        return python

    def report(self, kind, request, rust, python):
        folder = self.keep / f"{self.failed:04}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copytree(self.folder / "files", folder / "files", symlinks=True)
        (folder / "answers.txt").write_text(f"{kind}\n{json.dumps(request)}\nrust: {rust}\npython: {python}\n")
        print(f"  DISAGREE [{kind}] rust {verdict(rust)[:90]}, python {verdict(python)[:90]}: {folder}", flush=True)

    def path(self, name, data=None):
        """The path of an input; with data, it is written."""
        path = self.folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if data is not None:
            path.write_bytes(data)
        return str(path)

    def link(self, kind, base, data):
        self.files += 1
        self.kinds[kind.split("+")[-1]] += 1
        path = self.path("m.dcf", data)
        self.compare(kind, {"operation": "check", "link": path, "set_bytes": None})
        self.sequence(kind, base, [data])

    def sequence(self, kind, base, files):
        """Links that are applied to a base. What no safetensors file can hold is not asked for."""
        if "__metadata__" in base or not all(tensor.dtype.name in BY_NAME for tensor in base.values()):
            return
        paths = [self.path(f"{number}.dcf", data) for number, data in enumerate(files)]
        self.compare(kind, {"operation": "apply", "links": paths, "base": self.path("base", safetensors.encode(base)),
                            "set_bytes": links.SET_BYTES})


# --- What is damaged ---

def corpus(rng, made, short):
    """(label, base, link): those of the matrix that are small, and links with every coding forced."""
    result = [link for link in made if 131 < len(link[2]) < (6000 if short else 12000)]
    wide = [d for d in DTYPES.values() if d.name in ("BF16", "F8_E4M3", "F32", "F64", "F16", "U8", "F4")]
    codings = (DENSE, ABSOLUTE), (SPARSE, ABSOLUTE), (DENSE, PLANES), (SPARSE, PLANES), (SPARSE, SMALL)
    for positions, values in codings:
        for contexts in (1,) if values == ABSOLUTE else (1, 2, 16) if short else (1, 2, 3, 5, 16):
            for parameters in [None] if positions == DENSE else ([0], [32], [23], [2, 32]):
                for dtypes, elements in (([rng.choice(wide)], 40), (rng.sample(wide, 3), 7), ([rng.choice(wide)], 700)):
                    base = {d.name: random_tensor(rng, d, elements) for d in dtypes}
                    target = change_state(rng, base, rng.choice([0.05, 0.3, 0.9]))
                    options = Options(positions=positions, values=values, contexts=contexts,
                                      position_parameters=parameters, widths=rng.choice([[1], [2], [4, 1], [8], None]),
                                      segment_bytes=rng.choice([100, 1 << 25]))
                    label = f"python, {positions} {values} {contexts} {parameters} {options.widths}"
                    result.append((label, base, writer.diff(base, target, options)))
    zeros = {"t": Tensor(BY_NAME["U8"], ((1 << 24) + 2,), bytes((1 << 24) + 2))}
    result.append(("two pieces of zeros", {}, writer.snapshot(zeros)))
    return result


def damaged_sequence(rng, entries):
    """(base, links): two to four of them that fit at first."""
    _, base, data = rng.choice(entries)
    try:
        states = [base, dcf.apply(data, base)]
    except DcfError:
        return base, [data, data]
    if sum(len(tensor.data) for tensor in states[1].values()) > 1 << 16:
        return base, [data, data]
    files = [data]
    for _ in range(rng.choice([1, 1, 2])):
        states.append(rng.choice([base, change_state(rng, states[-1], 0.2)]))
        files.append(writer.diff(states[-2], states[-1]))
    for _ in range(rng.choice([0, 1, 1, 2])):
        number = rng.randrange(len(files))
        if rng.random() < 0.15:
            number, files[number] = -1, rng.choice(files)
        try:
            _, _, files[number] = links.mutate(rng, states[number], files[number])
        except DcfError:  # it was damaged before
            continue
        if rng.random() < 0.6:  # fits all the same
            for at in range(max(number, 0), len(files) - 1):
                try:
                    files[at + 1] = links.reseal(files[at + 1], base=dcf.parse(files[at]).header.target)
                except DcfError:
                    break
    return base, files


def through_described(rng, base, data):
    """(base, links): a state whose tensors are set anew with described dtypes, then changed, then removed."""
    other, changed = links.described(rng, base, data)
    try:
        there = writer.diff(base, other)
        last = dcf.apply(changed, other)
    except (DcfError, KeyError):
        return base, [data]
    end = change_state(rng, base, 0.3)
    middle = changed if rng.random() < 0.4 else links.mutate(rng, other, changed)[2]
    return base, [there, middle, writer.diff(last, end)]


def sequences(check):
    """Links applied one after another (R-APP-06), right and wrong."""
    u8 = BY_NAME["U8"]
    states = [{}, *({"t": Tensor(u8, (8,), bytes([n]) * 8)} for n in range(3))]
    good = [writer.diff(a, b) for a, b in zip(states, states[1:])]
    last = len(good[1]) - 1
    bad_index, bad_segment = (good[1][:at] + bytes([good[1][at] ^ 1]) + good[1][at + 1:] for at in (130, last))
    files = {"0": good[0], "1": good[1], "2": good[2], "index": bad_index, "segment": bad_segment}
    for base, names in ((0, "0 1 2"), (1, "1 2"), (2, "2"), (2, "0 2"), (2, "1 0"), (0, "0 2"), (2, "0 index"),
                        (2, "1 1"), (0, "0 segment 2"), (0, "0 segment 0"), (2, "segment 2"), (2, "1 2"),
                        (0, "index 0")):
        check.sequence(f"state {base}, links {names}", states[base], [files[name] for name in names.split()])


def one_document(check, rng):
    kind = rng.choice(["chain", "commit", "commit", "routes"])
    data = texts.document(rng, kind)
    data = data if rng.random() < 0.15 else texts.damage_text(rng, data)
    check.files += 1
    check.kinds["document"] += 1
    check.compare(f"{kind} document", {"operation": "document", "file": check.path("m.json", data), "document": kind})


def one_chain(check, rng, examples):
    made = rng.choice(examples)
    chain = check.folder / "files" / "chain"
    shutil.rmtree(chain, ignore_errors=True)
    shutil.copytree(made.folder / "chain", chain)
    chains.damage(rng, chain, len(made.states))
    for _ in range(2):
        request = chains.question(rng, made, chain)
        check.files += 1
        check.kinds["chain"] += 1
        check.compare("chain", {"operation": "replay"} | request, only_result=True)
        held = request["held"] and {name: request["held"][name] for name in ("version", "commit", "chain")}
        plan = {name: request[name] for name in ("chain", "version", "accept")} | {"operation": "plan", "held": held}
        check.compare("chain", plan, only_result=True)


def run(runner, folder, rng, made, keep, files, seconds):
    """`files` mutated files, or as many as there is time for."""
    folder = Path(folder)
    check = Differential(runner, folder, keep)
    entries = corpus(rng, made, short=files < 10000)
    for kind, cases in (("undamaged links", entries), ("edge cases", edge_cases())):
        before = check.files, check.agreed, check.answers
        for label, base, data in cases:
            check.link(f"{kind}: {label}", base, data)
        count, agreed, answers = (b - a for a, b in zip(before, (check.files, check.agreed, check.answers)))
        print(f"{count} {kind}: {agreed} of {answers} answers agree")
    sequences(check)
    examples = [chains.example(rng, folder / f"chain-{number}") for number in range(8 if files < 10000 else 60)]
    start, check.files, check.kinds = time.time(), 0, Counter()
    while check.files < files and time.time() - start < seconds:
        kind = rng.random()
        if kind < 0.6:
            _, base, data = rng.choice(entries)
            check.link(*links.mutate(rng, base, data))
        elif kind < 0.75:
            _, base, data = rng.choice(entries)
            base, data = through_described(rng, base, data) if rng.random() < 0.3 else damaged_sequence(rng, entries)
            check.files += len(data)
            check.kinds["sequence"] += 1
            check.sequence("sequence", base, data)
        elif kind < 0.92:
            one_document(check, rng)
        else:
            one_chain(check, rng, examples)
    return check
