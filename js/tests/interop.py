"""The JavaScript reader against the Rust reader on damaged links, chains and documents: class and rule, or the same result.

    python js/tests/interop.py --runner PATH/TO/deltachain-conformance [--links N] [--chains N] [--documents N] [--seed N]

The damage is that of `conformance/mutations`, the comparison that of `conformance/differential.py`; the Python reader only
tells on which zstd frames readers may differ (R-STR-07). A disagreement is kept with its files.

Needs the packages of conformance/python/requirements.txt, and `npm ci` in js/. Exit status: 0 if all agreed, else 1.
"""
import argparse
import json
import random
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

JS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(JS.parent / "conformance"), str(JS.parent / "conformance" / "python")]

import differential  # noqa: E402
from mutations import chains, links  # noqa: E402

python_answer = differential.python_answer


class JavaScript:
    """The testee, started again when it dies."""

    def __init__(self):
        self.process = None

    def answer(self, request):
        python_answer(request)  # for what it notes of frames
        output = Path(request.get("output", ""))
        if "output" in request and output.exists():
            shutil.rmtree(output) if output.is_dir() else output.unlink()
        if self.process is None:
            self.process = subprocess.Popen(["node", str(JS / "testee.mjs"), "--format-limits"],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            ready = select.select([self.process.stdout], [], [], differential.SECONDS)[0]
            return json.loads(ready and self.process.stdout.readline())
        except (OSError, ValueError, TypeError):
            self.process.kill()
            code, self.process = self.process.wait(), None
            return {"result": "crash", "class": f"CRASH: exit {code}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runner", required=True)
    for kind, count in (("links", 300), ("chains", 60), ("documents", 100)):
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", default=str(Path(tempfile.gettempdir()) / "deltachain-js-disagreements"))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    testee = JavaScript()
    differential.python_answer = testee.answer
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        check = differential.Differential(args.runner, folder, args.keep)
        entries = differential.corpus(rng, [], short=True)
        for label, base, data in [*entries, *differential.edge_cases()]:
            check.link(f"undamaged: {label}", base, data)
        differential.sequences(check)
        print(f"{check.agreed} of {check.answers} answers agree on undamaged links", flush=True)
        check.kinds = Counter()
        for _ in range(args.links):
            _, base, data = rng.choice(entries)
            if rng.random() < 0.1:
                check.sequence("sequence", *differential.damaged_sequence(rng, entries))
            check.link(*links.mutate(rng, base, data))
        for _ in range(args.documents):
            differential.one_document(check, rng)
        examples = [chains.example(rng, folder / f"chain-{number}") for number in range(8)]
        before = check.kinds["chain"]
        while check.kinds["chain"] - before < args.chains:
            differential.one_chain(check, rng, examples)
    kinds = ", ".join(f"{count} {kind}" for kind, count in check.kinds.most_common())
    print(f"{kinds}\n{check.answers} answers compared: {check.agreed} agree, {check.allowed} differ where they may, "
          f"{check.failed} differ")
    if testee.process:
        testee.process.stdin.close()
        testee.process.wait()
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
