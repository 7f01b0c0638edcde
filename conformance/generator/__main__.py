"""`python -m generator` in conformance/ writes vectors/, index.json and the tables of `tables.py`. With `--check` it
compares them with what it would write, and changes nothing. With `--publish` it also adds new files to
published.sha256: from then on they may not change or disappear."""
import argparse
import sys

from . import catalogue, index, published, tables  # noqa: F401 (the catalogue brings in what makes vectors)
from .registry import MADE


def main():
    parser = argparse.ArgumentParser(prog="python -m generator", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; the exit status is 1 if anything differs")
    parser.add_argument("--publish", action="store_true", help="add new vectors to published.sha256")
    arguments = parser.parse_args()
    if arguments.check:
        found = [*index.check(), *tables.check()]
    else:
        files = index.everything()
        index.write(index.HERE, files)
        tables.write()
        found = [*index.faults(files), *published.faults(files)]
        print(f"{len(files)} files, {sum(map(len, files.values()))} bytes")
        if arguments.publish and not found:
            print(f"{published.add(files)} lines added to published.sha256")
    print("\n".join(found or [f"all is well with {len(MADE)} vectors"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
