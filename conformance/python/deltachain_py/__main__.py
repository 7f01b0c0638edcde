"""python -m deltachain_py diff | snapshot | apply | digest | inspect | verify (see README.md)

Exit status: 0 good, 1 rejected, 2 usage.
"""
import argparse
import json
import os
import sys
from dataclasses import replace

from . import link as dcf
from . import safetensors, writer
from .errors import MINIMUM_LIMITS, DcfError, Limits
from .index import OPERATIONS, REMOVE
from .model import state_digest


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def write_whole(path, data):
    """The result becomes visible only when it is complete (section 9, step 5)."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def diff(args):
    base = safetensors.read(args.base) if args.command == "diff" else {}
    options = writer.Options(profile=args.profile, level=args.level)
    data = writer.diff(base, safetensors.read(args.target), options)
    write_whole(args.output, data)
    return {"bytes": len(data)}


def apply(args):
    base = safetensors.read(args.base) if args.base else {}
    target = dcf.apply_chain([read_file(path) for path in args.links], base, args.limits)
    write_whole(args.output, safetensors.encode(target))
    return {"digest": state_digest(target).hex(), "tensors": len(target)}


def digest(args):
    return {"digest": state_digest(safetensors.read(args.state)).hex()}


def verify(args):
    """The operations of section 10: apply (its result is dropped) with --base, check without."""
    data = read_file(args.link)
    if args.base:
        return {"ok": True, "applied": True, "target": state_digest(dcf.apply(data, safetensors.read(args.base),
                                                                              args.limits)).hex()}
    return {"ok": True, "applied": False, "target": dcf.check_link(data, args.limits).header.target.hex()}


def inspect(args):
    """Header and index: steps 1 to 6."""
    link = dcf.parse(read_file(args.link), args.limits)
    header, index = link.header, link.index
    return {
        "base": header.base.hex(), "target": header.target.hex(), "snapshot": link.is_snapshot,
        "profile": link.profile, "index_bytes": header.index_raw, "segments_bytes": header.segments_length,
        "metadata": dict(index.metadata),
        "segments": [{"coding": str(s.coding), "stored": s.stored_length, "crc": s.crc, "parts": len(s.parts)}
                     for s in index.segments],
        "tensors": [{"name": t.name, "operation": OPERATIONS[t.operation]} if t.operation == REMOVE else
                    {"name": t.name, "operation": OPERATIONS[t.operation], "dtype": t.dtype.name,
                     "shape": list(t.shape), "segments": t.segments, "digest": t.digest.hex()}
                    for t in index.tensors],
    }


def parser():
    top = argparse.ArgumentParser(prog="deltachain_py", description="delta chain links, the second implementation")
    commands = top.add_subparsers(dest="command", required=True)

    def command(name, function, *arguments):
        sub = commands.add_parser(name)
        sub.set_defaults(function=function)
        sub.add_argument("--json", action="store_true", help="one JSON line")
        for argument in arguments:
            sub.add_argument(argument)
        return sub

    for sub in (command("diff", diff, "base", "target"), command("snapshot", diff, "target")):
        sub.add_argument("-o", "--output", required=True)
        sub.add_argument("--profile", choices=("direct", "compact"), default="compact")
        sub.add_argument("--level", type=int, default=3, help="of zstd")
    apply_command = command("apply", apply)
    apply_command.add_argument("links", nargs="+", metavar="link")
    apply_command.add_argument("-o", "--output", required=True)
    verify_command, inspect_command = command("verify", verify, "link"), command("inspect", inspect, "link")
    command("digest", digest, "state")
    for sub in (apply_command, verify_command):
        sub.add_argument("--base", help="state, a safetensors file; without it, apply takes the empty state")
    for sub in (apply_command, verify_command, inspect_command):
        sub.add_argument("--minimum-limits", dest="limits", action="store_const", const=MINIMUM_LIMITS,
                         default=Limits(), help="refuse what not every reader supports (first column of section 13)")
        sub.add_argument("--set-bytes", type=int, metavar="N", help="at most N bytes of set tensors (R-LIM-04)")
    return top


def main(arguments=None):
    args = parser().parse_args(arguments)  # exits with 2 on wrong usage
    if getattr(args, "set_bytes", None) is not None:
        args.limits = replace(args.limits, set_bytes=args.set_bytes)
    try:
        result = args.function(args)
    except (DcfError, OSError, MemoryError) as error:
        if not isinstance(error, DcfError):
            error = DcfError("IO", None, str(error))
        if args.json:
            report = {"class": error.error_class, "rule": error.rule, "message": error.message, "where": error.where,
                      "offset": error.offset, "tensor": error.tensor}
            print(json.dumps(report))
        else:
            print(error, file=sys.stderr)
        return 1
    print(json.dumps(result, indent=None if args.json else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
