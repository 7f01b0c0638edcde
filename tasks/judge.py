"""Changes the reading half of the library in every small way, and checks each change with the vectors alone.

    python -m tasks.judge CARGO-MUTANTS [--some N] [--only TEXT]

cargo-mutants lists the changes, the mutants. All of them are compiled into one program, in a copy of the workspace in
target/judge: a function with mutants becomes a `match` over the number of the mutant, with a copy of its body for each.
The program runs each mutant with the cases that reach its function, until the answer to one is wrong
(crates/deltachain-conformance/src/mutants.rs).

A mutant that no case notices survives. `conformance/survivors.txt` lists the survivors that no vector can notice, in
classes with a reason. Exit status: 0 if all other mutants are noticed and the list has no others, else 1.
target/judge/survivors.txt names survivors that are not in the list; target/judge/results.jsonl has all answers.
"""

import argparse
import itertools
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tasks.steps import ROOT, TARGET
from tasks.tokens import TOKEN

#: Modules that a reader consists of: folders and files in `src`.
MODULES = (
    "chain",
    "codec/bits.rs",
    "codec/blocks.rs",
    "codec/contexts.rs",
    "codec/decode.rs",
    "codec/escapes.rs",
    "codec/lane.rs",
    "codec/piece.rs",
    "extension.rs",
    "format",
    "json.rs",
    "layout.rs",
    "link.rs",
    "patches.rs",
    "plain_name.rs",
    "replay",
    "sums",
    "table.rs",
    "varint.rs",
)
#: Files in these folders that only writers and stores need.
OTHERS = {"src/chain/publishing.rs", "src/chain/retention.rs"}
LIST = ROOT / "conformance/survivors.txt"
#: Files of the workspace's copy, from which its programs are compiled.
COPIED = "Cargo.toml", "Cargo.lock", "README.md", "SPEC.md", "spec", "src", "crates/deltachain-conformance"
MEMBERS = '[".", "crates/deltachain-conformance"]'
#: Lints that refuse a mutant although it compiles.
LINTS = "#![allow(warnings, arithmetic_overflow, overflowing_literals, unconditional_panic, unconditional_recursion)]"
#: Limits for mutants, which may allocate all memory, or write without an end.
MOST_MEMORY, MOST_WRITTEN = 6 << 30, 1 << 30
ARM = re.compile(rb"/\*mutant (\d+)\*/(.*?)/\*end \1\*/", re.DOTALL)
CFG = "#[cfg(deltachain_mutants)]"


@dataclass
class Mutant:
    """A change to the library. Spans are offsets in the file."""

    file: str
    line: int
    what: str
    span: tuple
    function: tuple
    replacement: str
    is_removal: bool
    source: str
    number: int = 0
    key: str = ""

    def module(self):
        """The module that counts the mutant."""
        return next(name for name in MODULES if self.file.startswith(f"src/{name}"))

    def describe(self):
        return f"{self.file}:{self.line}: {self.what} | {self.source}"


def listed(program):
    """Returns all mutants in functions of the reading half, and how many others there are. No program can choose
    between constants."""
    command = [program, "mutants", "--list", "--json", "--no-config", "--package", "deltachain"]
    rows = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    texts, found, constant = {}, [], Counter()
    for row in rows:
        file = row["file"]
        if file in OTHERS or not any(file.startswith(f"src/{name}") for name in MODULES):
            continue
        if file not in texts:
            text = (ROOT / file).read_text(encoding="utf-8")
            lines = text.splitlines(keepends=True)
            texts[file] = lines, [0, *itertools.accumulate(map(len, lines))]
        lines, starts = texts[file]

        def offset(place, starts=starts):
            return starts[place["line"] - 1] + place["column"] - 1

        def span(of):
            return offset(of["start"]), offset(of["end"])

        line = row["span"]["start"]["line"]
        what = row["name"].split(": ", 1)[1]
        mutant = Mutant(
            file=file,
            line=line,
            what=what,
            span=span(row["span"]),
            function=row["function"] and span(row["function"]["span"]),
            replacement=row["replacement"],
            is_removal=row["genre"] in {"MatchArm", "StructField"},
            source=lines[line - 1].strip(),
        )
        if mutant.function is None:
            constant[mutant.module()] += 1
        else:
            found.append(mutant)
    number_all(found)
    return found, constant


def number_all(mutants):
    """Gives each mutant its number, and a key without its line number. The same change elsewhere in the line or the
    file gets another key."""
    seen = Counter()
    for number, mutant in enumerate(mutants, 1):
        mutant.number = number
        key = f"{mutant.file} | {mutant.what} | {mutant.source}"
        seen[key] += 1
        mutant.key = key if seen[key] == 1 else f"{key} | {seen[key]}"


def body(text, begin, end):
    """Returns the beginning of the body of the function at this span: the block that ends with the span."""
    opened = []
    for token in TOKEN.finditer(text, begin, end):
        if token[0] == "{":
            opened.append(token.start())
        elif token[0] == "}":
            last = opened.pop()
    return last


def changed(text, begin, end, mutant):
    """Returns the text between two offsets, with the mutant in it."""
    first, last = mutant.span
    after = text[last:end]
    if mutant.is_removal:
        after = after.removeprefix(",")
    return text[begin:first] + mutant.replacement + after


def instrumented(text, mutants, functions):
    """Returns a file whose functions choose between their mutants. `functions` gives each function its number."""
    groups = defaultdict(list)
    for mutant in mutants:
        groups[mutant.function].append(mutant)

    def chosen(begin, end):
        """Returns the text between two offsets, with the functions in it changed."""
        pieces = []
        at = begin
        for first, last in sorted(groups):
            if at <= first and last <= end:
                pieces += [text[at:first], function(first, last)]
                at = last
        return "".join(pieces) + text[at:end]

    def function(begin, end):
        start = body(text, begin, end)
        arms = "".join(
            f"/*mutant {mutant.number}*/{mutant.number} => {changed(text, start, end, mutant)}/*end {mutant.number}*/\n"
            for mutant in groups[begin, end]
        )
        number = functions[mutants[0].file, begin]
        choice = f"match crate::mutants::instead_of({number}) {{\n{arms}_ => "
        return f"{text[begin:start]}{{ {choice}{chosen(start, end)} }} }}"

    return chosen(0, len(text))


def can_choose(mutant):
    """True unless the function returns a type without a name, which would be a different type for each body."""
    return " -> impl " not in mutant.what and "impl " not in signature(mutant)


def signature(mutant):
    """Returns the type that the mutant's function returns."""
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    begin, end = mutant.function
    head = text[begin : body(text, begin, end)]
    return head.rpartition("->")[2] if "->" in head else ""


class Program:
    """A copy of the workspace with mutants in it."""

    def __init__(self):
        self.folder = TARGET / "judge" / "copy"
        # Shared with the proof of adequacy, which has built all dependencies.
        self.environment = os.environ | {
            "RUSTFLAGS": "--cfg=deltachain_rule_switch",
            "CARGO_TARGET_DIR": str(TARGET / "rule-switch"),
        }

    def write(self, mutants):
        """Writes the copy. Returns the number of each function, by its file and offset."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in COPIED:
            path = ROOT / name
            copy = self.folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, copy)
            else:
                shutil.copy(path, copy)
        places = sorted({(mutant.file, mutant.function[0]) for mutant in mutants})
        functions = {place: number for number, place in enumerate(places)}
        groups = defaultdict(list)
        for mutant in mutants:
            groups[mutant.file].append(mutant)
        for file, group in groups.items():
            self.edit(file, lambda text, group=group: instrumented(text, group, functions))
        # Bodies of mutants within bodies of mutants would take hours to compile.
        for path in (self.folder / "src").rglob("*.rs"):
            self.edit(path.relative_to(self.folder), lambda text: text.replace("#[inline(always)]", ""))
        choice = (ROOT / "tasks/judge.rs").read_text(encoding="utf-8")
        (self.folder / "src/mutants.rs").write_text(f"{choice}\nconst FUNCTIONS: usize = {len(places)};\n")
        self.substitute("src/lib.rs", "(?=pub mod chain;)", f"{LINTS}\npub mod mutants;\n")
        self.substitute("Cargo.toml", "members = .*", f"members = {MEMBERS}")
        self.substitute("Cargo.toml", "default-members = .*", "")
        crate = self.folder / "crates/deltachain-conformance"
        # A name of its own, so that the build does not overwrite the program that other tasks use.
        with (crate / "Cargo.toml").open("a", encoding="utf-8") as manifest:
            manifest.write('\n[[bin]]\nname = "deltachain-judge"\npath = "src/main.rs"\n')
        for path in (crate / "src").rglob("*.rs"):
            self.edit(path.relative_to(self.folder), lambda text: text.replace(CFG, ""))
        return functions

    def edit(self, name, change):
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        path.write_text(change(text), encoding="utf-8")

    def substitute(self, name, pattern, replacement):
        """Replaces the only line of a file that matches."""
        self.edit(name, lambda text: re.sub(f"^{pattern}", replacement, text, count=1, flags=re.MULTILINE))

    def cargo(self, words):
        """Runs Cargo in the copy. Returns its messages, and its output for people if it has failed."""
        profile = "profile.dev.package.deltachain"
        command = f"cargo {words} --package deltachain-conformance --message-format json"
        command = [*command.split(), "--config", f"{profile}.opt-level=1", "--config", f"{profile}.debug=false"]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        failure = (done.stderr or "no message") if done.returncode else ""
        return [json.loads(line) for line in done.stdout.splitlines()], failure

    def build(self, mutants):
        """Writes and builds the program, without the mutants that do not compile. Returns its path, the mutants in it,
        and the numbers of functions."""
        while True:
            functions = self.write(mutants)
            messages, failure = self.cargo("build --quiet")
            if not failure:
                programs = [message["executable"] for message in messages if message.get("executable")]
                return programs[-1], mutants, functions
            bad = self.refused(messages)
            if not bad:
                sys.exit(f"the copy in {self.folder} does not compile, and not because of a mutant:\n{failure}")
            print(f"{len(bad)} of {len(mutants)} mutants do not compile", flush=True)
            mutants = [mutant for mutant in mutants if mutant.number not in bad]

    def refused(self, messages):
        """Returns the numbers of mutants in which the compiler has found errors."""
        arms = {}
        bad = set()
        for message in messages:
            error = message.get("message")
            if not error or error.get("level") != "error":
                continue
            of_error = set()
            for span in error["spans"]:
                file = span["file_name"]
                if file not in arms:
                    text = (self.folder / file).read_bytes() if (self.folder / file).exists() else b""
                    arms[file] = [(int(arm[1]), arm.start(), arm.end()) for arm in ARM.finditer(text)]
                at = span["byte_start"]
                of_error |= {number for number, begin, end in arms[file] if span["is_primary"] and begin <= at < end}
            if not of_error and error["spans"]:
                sys.exit(f"an error that belongs to no mutant:\n{error['rendered']}")
            bad |= of_error
        return bad


def ask(program, mutants, functions, results):
    """Runs the mutants, and writes each answer to the file of results. Returns the mutants that no case notices."""
    rows = []
    for mutant in mutants:
        function = functions[mutant.file, mutant.function[0]]
        rows.append({"number": mutant.number, "function": function, "module": str(Path(mutant.file).parent)})
    file = results.with_name("mutants.json")
    file.write_text(json.dumps(rows), encoding="utf-8")
    command = [program, "mutants", "--list", file, "--vectors", ROOT / "conformance", "--threads", str(os.cpu_count())]

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_WRITTEN, MOST_WRITTEN))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    by_number = {mutant.number: mutant for mutant in mutants}
    answers = {}
    with results.open("w", encoding="utf-8") as kept:
        judge = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit)
        for line in judge.stdout:
            answer = json.loads(line)
            mutant = by_number[answer["number"]]
            answers[mutant.number] = answer
            print(json.dumps(answer | {"mutant": mutant.key, "line": mutant.line}), file=kept, flush=True)
            if answer["case"] is None:
                print(f"survives {answer['asked']} cases: {mutant.describe()}", flush=True)
    if judge.wait():
        sys.exit(f"the program with the mutants ended with status {judge.returncode}")
    return answers


def known(path):
    """Returns the keys of survivors that no vector can notice, and the class of each."""
    found = {}
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            name = line[2:].partition(":")[0]
        elif line and not line.startswith("#"):
            found[line] = name
    return found


def table(mutants, answers, others):
    """Returns a table of mutants by module: in total, run, noticed, and survivors."""
    rows = [f"{'module':24}{'mutants':>9}{'asked':>9}{'noticed':>9}{'survive':>9}"]
    for name in [*MODULES, ""]:
        own = [mutant for mutant in mutants if not name or mutant.module() == name]
        asked = [answers[mutant.number] for mutant in own if mutant.number in answers]
        survivors = sum(answer["case"] is None for answer in asked)
        count = len(own) + (others[name] if name else others.total())
        rows.append(f"{name or 'all':24}{count:>9}{len(asked):>9}{len(asked) - survivors:>9}{survivors:>9}")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(prog="tasks.judge")
    parser.add_argument("cargo_mutants")
    parser.add_argument("--some", type=int, metavar="N", help="only N of the mutants that can be noticed, at random")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose descriptions contain the text")
    arguments = parser.parse_args()
    mutants, others = listed(arguments.cargo_mutants)
    classes = known(LIST)
    gone = set()
    if arguments.some is None:
        gone = set(classes) - {mutant.key for mutant in mutants}
    chosen = [mutant for mutant in mutants if can_choose(mutant) and arguments.only in mutant.describe()]
    if arguments.some is not None:
        chosen = [mutant for mutant in chosen if mutant.key not in classes]
        chosen = random.sample(chosen, min(arguments.some, len(chosen)))
    folder = TARGET / "judge"
    folder.mkdir(parents=True, exist_ok=True)
    program, asked, functions = Program().build(chosen)
    answers = ask(program, asked, functions, folder / "results.jsonl")
    survivors = [mutant for mutant in asked if answers[mutant.number]["case"] is None]
    unlisted = [mutant for mutant in survivors if mutant.key not in classes]
    noticed = [mutant for mutant in asked if mutant.key in classes and mutant not in survivors]
    (folder / "survivors.txt").write_text("".join(f"{mutant.key}\n" for mutant in unlisted), encoding="utf-8")
    print(table(mutants, answers, others))
    for name, count in sorted(Counter(classes[mutant.key] for mutant in survivors if mutant.key in classes).items()):
        print(f"in {LIST.name}: {count:4} {name}")
    for mutant in noticed:
        print(f"in {LIST.name}, but {answers[mutant.number]['case']} notices it: {mutant.key}")
    for key in sorted(gone):
        print(f"in {LIST.name}, but there is no such mutant: {key}")
    for mutant in unlisted:
        print(f"not in {LIST.name}: {mutant.describe()}")
    return bool(unlisted or noticed or gone)


if __name__ == "__main__":
    sys.exit(main())
