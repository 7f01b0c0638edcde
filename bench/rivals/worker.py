"""A process that holds a pair of checkpoints and encodes and decodes it on request, with one method.

    worker.py METHOD BASE TARGET THREADS [FILE ...]

METHOD is a name of METHODS in a file of `methods/`, or in one of the further files. The worker answers each line of
standard input, `encode`, `prepare`, `decode` or `exact`, with a line of JSON. The program of the reference
implementation, `crates/deltachain-bench/src/bin/worker.rs`, uses the same protocol.
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
    # Standard output is for answers only: prints of packages go to standard error.
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
