"""The differential check of `interop.py`: readers must give the same answers about the same files.

Each of several processes damages files, asks its own testees, and compares the answers. The Python reader runs in the
process itself; it also reports the zstd frames on which readers may differ.
"""
import json
import multiprocessing
import os
import random
import resource
import select
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from blake3 import blake3

import testee
from deltachain_py import documents, safetensors, streams
from deltachain_py.errors import Limits
from deltachain_py.model import BY_NAME
from mutations import chains, links, texts
from mutations.corpus import corpus, damaged_sequence, short_sequences, through_described
from mutations.frames import take_apart
from mutations.sums import sums_of_all, with_sums
from tests.edge_cases import edge_cases

SPARE_MEMORY = 12 << 30  # address space of the runner: a reader that allocates what a file claims fails
SECONDS = 60             # for one answer
BATCH = 500              # files of one task
NO_LIMITS = {"set_bytes": None, "coded_bytes": None}
REPORTED = 50            # maximum number of differences that each process keeps

# The limits of the Rust library for small files, between the columns of section 13, so that limits cause no difference.
testee.limits = lambda request: Limits(
    index_bytes=1 << 26, set_bytes=request["set_bytes"], coded_bytes=request["coded_bytes"])
documents.DOCUMENT_BYTES, documents.ASSETS, documents.ASSET_BYTES = 1 << 24, 1 << 10, 1 << 30

# Failures that neither another path nor another order of attempts can hide: all readers report them.
FINAL = {f"R-CHN-{number}" for number in ("01", "05", "12", "13", "14", "15", "16", "17")}


def read_safetensors(path):
    """An independent reader: {name: (dtype name, shape, bytes)}."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:8 + size])
    tensors.pop("__metadata__", None)
    body = memoryview(data)[8 + size:]
    return {name: (t["dtype"], tuple(t["shape"]), bytes(body[slice(*t["data_offsets"])]))
            for name, t in tensors.items()}


class Process:
    """A testee, restarted when it dies."""

    def __init__(self, command, folder, memory=None):
        self.command, self.memory, self.process, self.lines = command, memory, None, []
        self.errors = open(folder / f"{len(list(folder.iterdir()))}.stderr", "w+b")

    def start(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (self.memory,) * 2)

        self.lines, self.rest = [], b""
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        bufsize=0, preexec_fn=limit if self.memory else None)

    def send(self, requests):
        self.requests = requests
        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(b"".join(json.dumps(request).encode() + b"\n" for request in requests))
        except OSError:  # the testee has died, and receive() reports that
            pass

    def receive(self):
        """Returns the answers to the requests that were sent."""
        answers = []
        while len(answers) < len(self.requests):
            try:
                answers.append(json.loads(self.line()))
            except (OSError, ValueError):
                self.process.kill()
                code, self.process = self.process.wait(), None
                self.errors.seek(-min(300, self.errors.seek(0, 2)), 2)
                answers.append({"result": "crash", "class": f"CRASH: exit {code}, {self.errors.read()!r}"})
                if len(answers) < len(self.requests):  # the remaining requests, the first of which may kill it again
                    self.send(self.requests[len(answers):])
                    return answers + self.receive()
        return answers

    def line(self):
        """Returns the next line; ValueError if there is none in time."""
        while not self.lines:
            if not select.select([self.process.stdout], [], [], SECONDS)[0]:
                raise ValueError("no answer")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise ValueError("it has ended")
            *self.lines, self.rest = (self.rest + data).split(b"\n")
        return self.lines.pop(0)


class Python:
    """The Python reader, in this process."""

    def __init__(self):
        self.frames = OpenFrames()

    def send(self, requests):
        self.requests = requests

    def receive(self):
        return [self.answer(request) for request in self.requests]

    def answer(self, request):
        self.frames.open = False
        try:
            reply = json.loads(json.dumps(testee.answer(request)))
        except Exception as error:  # a bug of the Python package
            reply = {"result": "crash", "class": f"PYTHON {error!r}"}
        return reply | {"frames": self.frames.open}


class OpenFrames:
    """Notes whether a frame was read on which readers may differ (R-STR-07): its structure is right, and it has
    compressed blocks."""

    def __init__(self):
        self.open, self.check = False, streams.check_structure
        streams.check_structure = self

    def __call__(self, stored, raw_length, where):
        self.check(stored, raw_length, where)
        self.open |= any(kind == streams.COMPRESSED for _, kind, _, _ in take_apart(stored)[1])


def verdict(answer):
    return "valid" if answer["result"] == "valid" else f"{answer['class']} {answer.get('rule') or ''}".strip()


def members(answer):
    """Returns the members that must be equal. The protocol has bytes up to 2^53 - 1; above, readers may round."""
    return {name: float(value) if name == "bytes" else value for name, value in answer.items()
            if name not in ("case", "message", "frames") and value is not None}


def output(path):
    """Returns what an operation wrote: {name: content}."""
    files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(file.relative_to(path)): read_safetensors(file) if file.suffix == ".safetensors" else file.read_bytes()
            for file in files}


def damaged_file(chain):
    """True if a link differs from the digest in its name. A failure that was met before may hide that."""
    return any(blake3(path.read_bytes()).hexdigest() != path.stem for path in (chain / "files").glob("*.dcf")
               if path.is_file())


def judge(request, answers, written, open_frames):
    """Judges answers: "agree", the part of the text that allows the difference, or None."""
    replies = [members(answer) for answer in answers]
    if all(reply == replies[0] for reply in replies) and all(one == written[0] for one in written):
        return "agree"
    if any(answer["result"] == "crash" for answer in answers):
        return None
    rules = {answer.get("rule") for answer in answers}
    refused = all(answer["result"] == "invalid" for answer in answers)
    if open_frames and "R-STR-02" in rules:
        return "zstd frames that decoders see differently (R-STR-07)"
    if refused and any(answer["class"] == "USAGE" for answer in answers):
        return "USAGE, which has no place in the order (section 10)"
    if refused and request["operation"] in ("plan", "replay") and not rules & FINAL:
        return "which of several failures of a chain is reported (section 19)"
    if request["operation"] == "replay" and request["tensors"] is not None and damaged_file(Path(request["chain"])):
        return "the digest of a file of which a part is read (R-CHN-10)"
    if request["operation"] == "apply" and rules == {None, "R-APP-04"} and len(request["links"]) > 1:
        return "a digest on the way through a sequence (R-APP-04)"
    return None


class Differential:
    """The work of one process."""

    def __init__(self, commands, folder, keep):
        """`commands` has the commands of testees by name."""
        self.folder, self.keep = folder, keep
        folder.mkdir()
        (folder / "errors").mkdir()
        self.readers = {name: Process(command, folder / "errors", SPARE_MEMORY if name == "rust" else None)
                        for name, command in commands.items()} | {"python": Python()}
        self.reported = 0
        self.begin()

    def begin(self):
        """Resets the counts."""
        self.files, self.answers, self.judged, self.verdicts, self.kinds = 0, 0, Counter(), Counter(), Counter()

    def result(self):
        return {"files": self.files, "answers": self.answers, "judged": self.judged, "verdicts": self.verdicts,
                "kinds": self.kinds}

    def compare(self, kind, requests):
        """Sends requests about the same files to all readers, and compares the answers."""
        self.answers += len(requests)
        requests = [{"case": kind} | request for request in requests]
        outputs, answers = {}, {}
        endings = {"apply": ".safetensors", "in-place": ".safetensors", "replay": ""}
        for name, reader in self.readers.items():
            outputs[name] = [self.folder / f"{name}-{number}{endings.get(request['operation'], '')}"
                             for number, request in enumerate(requests)]
            reader.send([request | ({"output": str(path)} if request["operation"] in endings else {})
                         for request, path in zip(requests, outputs[name])])
        for name, reader in reversed(self.readers.items()):  # the others work while the Python reader does
            answers[name] = reader.receive()
        for number, request in enumerate(requests):
            self.one(kind, request, {name: answers[name][number] for name in self.readers},
                     {name: outputs[name][number] for name in self.readers})

    def one(self, kind, request, answers, outputs):
        written = []
        for path in outputs.values():
            written.append(output(path) if path.exists() else {})
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.verdicts[f"{request['operation']}: {verdict(answers['python'])}"] += 1
        result = judge(request, list(answers.values()), written, answers["python"]["frames"])
        self.judged[result or "DIFFER"] += 1
        if result is None and self.reported < REPORTED:
            self.reported += 1
            self.report(kind, request, answers)

    def report(self, kind, request, answers):
        folder = self.keep / f"{self.folder.name}-{self.reported:03}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copytree(self.folder / "files", folder / "files", symlinks=True)
        text = "".join(f"{name}: {answer}\n" for name, answer in answers.items())
        (folder / "answers.txt").write_text(f"{kind}\n{json.dumps(request)}\n{text}")
        verdicts = ", ".join(f"{name} {verdict(answer)[:70]}" for name, answer in answers.items())
        print(f"  DIFFER [{kind}] {request['operation']}: {verdicts}: {folder}", flush=True)

    def path(self, name, data=None):
        """Returns the path of an input. Writes it if there is data."""
        path = self.folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if data is not None:
            path.write_bytes(data)
        return str(path)

    def count(self, kind, files=1):
        self.files += files
        self.kinds[kind] += 1

    def link(self, kind, label, base, data, limits=NO_LIMITS):
        self.count(kind)
        path = self.path("m.dcf", data)
        alone = [{"operation": operation, "link": path} | limits for operation in ("check", "patches", "sums")]
        self.compare(label, [*alone, *self.applied(base, [data])])

    def applied(self, base, files):
        """Returns requests to apply links to a base; none if no safetensors file can hold the base."""
        if "__metadata__" in base or not all(tensor.dtype.name in BY_NAME for tensor in base.values()):
            return []
        paths = [self.path(f"{number}.dcf", data) for number, data in enumerate(files)]
        base = self.path("base", safetensors.encode(base))
        return [{"operation": operation, "links": paths, "base": base, "set_bytes": links.SET_BYTES,
                 "coded_bytes": None} for operation in ("apply", "in-place")]

    def sequence(self, kind, base, files):
        self.count("sequence", len(files))
        requests = self.applied(base, files)
        if requests:
            self.compare(kind, requests)

    def document(self, rng):
        kind = rng.choice(["chain", "commit", "commit", "routes"])
        data = texts.document(rng, kind)
        data = data if rng.random() < 0.15 else texts.damage_text(rng, data)
        self.count("document")
        request = {"operation": "document", "file": self.path("m.json", data), "document": kind}
        self.compare(f"{kind} document", [request])

    def chain(self, rng, examples):
        chain = self.folder / "files" / "chain"
        shutil.rmtree(self.folder / "files", ignore_errors=True)
        if rng.random() < 0.3:
            self.count("chain of documents")
            chain.mkdir(parents=True)
            versions, _shards = chains.of_documents_alone(rng, chain)
            held = rng.choice([None, chains.record(rng, chain, versions, 1)])
            requests = [chains.about(rng, chain, versions, held) for _ in range(3)]
        else:
            self.count("chain")
            made = rng.choice(examples)
            shutil.copytree(made.folder / "chain", chain)
            chains.damage(rng, made, chain)
            requests = [chains.question(rng, made, chain) for _ in range(2)]
            self.compare("chain", [{"operation": "replay"} | request for request in requests])
        self.compare("chain", [plan for request in requests for plan in chains.plans(request)])

    def mutated(self, rng, entries, examples, files):
        """Compares answers about this many damaged files."""
        while self.files < files:
            kind = rng.random()
            if kind < 0.1:
                label, base, data = rng.choice(entries)
                self.link("sums", f"sums: {label}", base, with_sums(rng, base, data))
            elif kind < 0.6:
                _, base, data = rng.choice(entries)
                label, base, data = links.mutate(rng, base, data)
                if rng.random() < 0.3:
                    data = with_sums(rng, base, data)
                self.link(label.split("+")[-1], label, base, data, links.some_limits(rng, data))
            elif kind < 0.72:
                _, base, data = rng.choice(entries)
                some = through_described(rng, base, data) if rng.random() < 0.4 else damaged_sequence(rng, entries)
                self.sequence("sequence", *some)
                self.sequence("sequence with sums", *sums_of_all(rng, *some))
            elif kind < 0.88:
                self.document(rng)
            else:
                self.chain(rng, examples)


def undamaged(check, entries):
    """Compares answers about undamaged files, and about files at the edges of the rules."""
    for kind, cases in (("undamaged", entries), ("edge case", edge_cases())):
        for label, base, data in cases:
            check.link(kind, f"{kind}: {label}", base, data)
            check.link(kind, f"{kind}, with sums: {label}", base, with_sums(random.Random(label), base, data))
    for label, base, files in short_sequences():
        check.sequence(label, base, files)
        check.sequence(f"{label}, with sums", *sums_of_all(random.Random(label), base, files))


WORKER = {}  # of this process: the files to damage, and its testees


def start_worker(commands, folder, keep, entries, examples):
    check = Differential(commands, folder / f"process-{os.getpid()}", keep)
    WORKER.update(check=check, entries=entries, examples=examples)


def work(task):
    """Runs a task: damaged files with the random numbers of a seed, or the undamaged files."""
    seed, files = task
    check = WORKER["check"]
    check.begin()
    if files is None:
        undamaged(check, WORKER["entries"])
    else:
        check.mutated(random.Random(seed), WORKER["entries"], WORKER["examples"], files)
    return check.result()


def run(commands, folder, seed, made, keep, files, jobs):
    """Runs the undamaged files, and this many damaged files, in this many processes. Returns the sums and the
    seconds."""
    folder, keep, rng = Path(folder), Path(keep), random.Random(seed)
    entries = corpus(rng, made, short=files < 10000)
    examples = [chains.example(rng, folder / f"chain-{number}") for number in range(8 if files < 10000 else 60)]
    tasks = [(f"{seed} {start}", min(BATCH, files - start)) for start in range(0, files, BATCH)]
    start = time.time()
    sums = {"files": 0, "answers": 0, "judged": Counter(), "verdicts": Counter(), "kinds": Counter()}
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, start_worker, (commands, folder, keep, entries, examples)) as pool:
        for done, result in enumerate(pool.imap_unordered(work, [(seed, None), *tasks]), 1):
            for name, value in result.items():
                sums[name] += value
            if done % 20 == 0:
                print(f"  {sums['files']} files, {sums['files'] / (time.time() - start):.1f} a second, "
                      f"{sums['judged']['DIFFER']} differ", flush=True)
    return sums, time.time() - start
