"""python tool.py diff | apply | verify | digest (see README.md). Exit status: 0 good, 1 refused, 2 usage."""
import argparse
import sys
from pathlib import Path

from deltachain_py import link as dcf
from deltachain_py import safetensors, writer
from deltachain_py.errors import DcfError
from deltachain_py.model import state_digest


def run(args):
    base = safetensors.read(args.base) if getattr(args, "base", None) else {}
    if args.command == "digest":
        return state_digest(safetensors.read(args.state)).hex()
    if args.command == "diff":
        data = writer.diff(base, safetensors.read(args.target), writer.Options(profile=args.profile))
        Path(args.output).write_bytes(data)
        return f"{len(data)} bytes"
    if args.command == "verify":  # the operation *check* of section 10
        return dcf.check_link(Path(args.link).read_bytes()).header.target.hex()
    target = dcf.apply_chain([Path(path).read_bytes() for path in args.links], base)
    safetensors.write(args.output, target)
    return state_digest(target).hex()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="tool.py", description="delta chain links, the second implementation")
    commands = parser.add_subparsers(dest="command", required=True)
    diff, apply = commands.add_parser("diff"), commands.add_parser("apply")
    diff.add_argument("target", help="state, a safetensors file")
    diff.add_argument("--profile", choices=("direct", "local", "compact"), default="compact")
    apply.add_argument("links", nargs="+", metavar="link")
    for command in (diff, apply):
        command.add_argument("--base", help="state; without it, the empty one")
        command.add_argument("-o", "--output", required=True)
    commands.add_parser("verify").add_argument("link")
    commands.add_parser("digest").add_argument("state")
    try:
        print(run(parser.parse_args(arguments)))  # exits with 2 on wrong usage
    except (DcfError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
