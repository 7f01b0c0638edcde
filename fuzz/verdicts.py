"""Writes verdicts.txt: the Python reader's verdicts on a corpus of links, for the Rust tests to compare with.

    python fuzz/verdicts.py FOLDER...

takes links (any bytes) from the folders, up to a maximum number for each verdict, the shortest first, and writes one
line per link: VALID or class and rule of *check* (SPEC.md section 10), and the link in hexadecimal. Links that are in
verdicts.txt already stay. Needs the packages of conformance/python/requirements.txt.
"""
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE / "verdicts.txt"
sys.path.insert(0, str(HERE.parent / "conformance" / "python"))

from deltachain_py import link as dcf  # noqa: E402
from deltachain_py.errors import DcfError, Limits  # noqa: E402

MOST_BYTES = 600
PER_VERDICT = 15
VALID = 60


def verdict(data):
    try:
        dcf.check_link(data, Limits())
    except DcfError as error:
        return f"{error.error_class} {error.rule}"
    return "VALID"


def main():
    links = set()
    if OUT.exists():
        links = {bytes.fromhex(line.rsplit(" ", 1)[1]) for line in OUT.read_text().splitlines() if line[0] != "#"}
    kept = set(links)
    for folder in sys.argv[1:]:
        files = (path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size <= MOST_BYTES)
        links |= {path.read_bytes() for path in files}
    by_verdict = defaultdict(list)
    for data in sorted(links, key=lambda data: (data not in kept, len(data), data)):
        name = verdict(data)
        chosen = by_verdict[name]
        if data in kept or len(chosen) < (VALID if name == "VALID" else PER_VERDICT):
            chosen.append(data)
    lines = [f"{name} {data.hex()}" for name, chosen in sorted(by_verdict.items()) for data in chosen]
    head = "# Verdicts of the Python reader on links; made by fuzz/verdicts.py.\n"
    OUT.write_text(head + "".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} links, {len(by_verdict)} verdicts")


if __name__ == "__main__":
    main()
