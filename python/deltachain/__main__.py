"""The command-line tool: `python -m deltachain` is the same as `deltachain`."""

import sys

from . import _native


def main() -> int:
    """Runs the tool with the arguments of this process and returns its exit code."""
    return _native.main(["deltachain", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
