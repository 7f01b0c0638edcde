"""A process that holds a pair of checkpoints and encodes and decodes it on request, by one of the methods.

    worker.py METHOD BASE TARGET THREADS [FILE ...]

METHOD is a name of METHODS in a file of `methods/`, or in one of the further files. Answers each line of standard
input, `encode`, `prepare`, `decode` or `exact`, by a line of JSON. The program of the reference implementation,
`crates/deltachain-bench/src/bin/worker.rs`, speaks the same.
"""

import json
import sys
from pathlib import Path
from time import perf_counter

from checkpoint import map_file
from method import load


def main() -> None:
    name, base, target, threads, *more = sys.argv[1:]
    method = load(map(Path, more))[name](map_file(Path(base)), map_file(Path(target)), int(threads))
    # Answers only: a package that prints does so elsewhere.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(**values: object) -> None:
        print(json.dumps(values), file=answers, flush=True)

    answer(ready=True)
    blob = b""
    for request in sys.stdin:
        match request.strip():
            case "encode":
                start = perf_counter()
                blob = method.encode()
                answer(seconds=perf_counter() - start, bytes=len(blob))
            case "prepare":
                method.prepare()
                answer(ready=True)
            case "decode":
                start = perf_counter()
                result = method.decode(blob)
                answer(seconds=perf_counter() - start)
            case "exact":
                answer(exact=bool(method.exact(result)))
                del result


main()
