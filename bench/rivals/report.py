"""The tables of a run, as Markdown."""

import datetime
import math
import statistics
from pathlib import Path


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def speeds(row: dict, way: str, data: int) -> tuple[float, float, float]:
    """Median, minimum and maximum, in bytes of the model per second."""
    times = row[way]
    return data / statistics.median(times), data / max(times), data / min(times)


def mebibytes(count: float) -> str:
    return f"{count / (1 << 20):,.1f}"


def table(run: dict) -> str:
    data = run["data"]
    lines = [
        "| method | | bytes | of the data | encode MB/s | decode MB/s | the pause in it | memory MiB: encode, decode "
        "| checks in these times |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, row in sorted(run["rows"].items(), key=lambda item: item[1]["bytes"]):
        cells = [name, row["kind"], f"{row['bytes']:,}", f"{100 * row['bytes'] / data:.3f} %"]
        for way in ("encode", "decode"):
            middle, slow, fast = (speed / 1e6 for speed in speeds(row, way, data))
            cells.append(f"**{middle:,.0f}** ({slow:,.0f} - {fast:,.0f})")
        cells.append(f"{1e3 * statistics.median(row['pause']):.2f} ms" if "pause" in row else "")
        cells.append(f"{mebibytes(row['encode memory'])}, {mebibytes(row['decode memory'])}")
        cells.append(row["checks"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# Our methods that rivals are compared with: rivals of the same kind, which check as much, or at most as much.
OURS = {"in process": "deltachain compact", "command": "deltachain compact, tool"}
UNCHECKED = "deltachain direct, unverified"
# Methods that verify before anything changes, without a second copy of the model: by all digests, or by the sums of
# changed elements.
IN_PLACE = ["deltachain compact, patched in place", "deltachain local, patched in place"]

# Speeds of lines in Gbit/s.
LINES = (0.1, 1, 10, 100)


def seconds_to_new_weights(row: dict, line: float) -> float:
    """Returns the seconds for encoding, transfer and decoding, one after another."""
    coding = statistics.median(row["encode"]) + statistics.median(row["decode"])
    return coding + row["bytes"] * 8 / (line * 1e9)


def times_table(run: dict) -> str:
    """Time to new weights over lines of several speeds, the fastest over 1 Gbit/s first."""
    head = [f"{line} Gbit/s" for line in LINES]
    lines = [
        f"| method | bytes | encode ms | decode ms | {' | '.join(head)} | what the result is verified by |",
        f"|---|---:|---:|---:|{'---:|' * len(LINES)}---|",
    ]
    rows = sorted(run["rows"].items(), key=lambda item: seconds_to_new_weights(item[1], 1))
    best = {
        (line, only): min(
            (seconds_to_new_weights(row, line) for _, row in rows if not only or row["proof"]), default=0.0)
        for line in LINES for only in (False, True)
    }
    for name, row in rows:
        cells = [name, f"{row['bytes']:,}"]
        cells += [f"{1e3 * statistics.median(row[way]):,.1f}" for way in ("encode", "decode")]
        for line in LINES:
            own = seconds_to_new_weights(row, line)
            text = f"{1e3 * own:,.1f} ms"
            if own == best[line, False]:
                text = f"**{text}**"
            elif own == best[line, True] and row["proof"]:
                text = f"*{text}*"
            cells.append(text)
        lines.append(f"| {' | '.join([*cells, row['proof'] or 'nothing'])} |")
    return "\n".join(lines)


# Our methods that followers use by default, and the ones that change the engine's own memory.
SHOWN = [
    "deltachain local, patched in place",
    "deltachain direct, patched in place",
    "deltachain compact, base digests known",
]


def short_table(run: dict) -> list[str]:
    """A table of our methods and the fastest method of each rival over 1 Gbit/s."""
    rows: dict[str, tuple[str, dict]] = {}
    for name, row in sorted(run["rows"].items(), key=lambda item: seconds_to_new_weights(item[1], 1)):
        if name in SHOWN or not name.startswith("deltachain"):
            rows.setdefault(name if name in SHOWN else name.split()[0], (name, row))
    head = " | ".join(f"{line} Gbit/s" for line in LINES)
    lines = [
        f"{run['pair']}, {run['data'] / 1e6:.0f} MB, {run['threads']} thread:",
        "",
        f"| method | bytes | {head} | verified by |",
        f"|---|---:|{'---:|' * len(LINES)}---|",
    ]
    for name, row in rows.values():
        cells = [name, f"{row['bytes']:,}"]
        cells += [f"{1e3 * seconds_to_new_weights(row, line):,.0f} ms" for line in LINES]
        lines.append(f"| {' | '.join([*cells, row['proof'] or 'nothing'])} |")
    return lines


def first_table(runs: list[dict]) -> list[str]:
    """For each pair, with one thread: "ours" where our method is first, or the rivals that are first, with the ratio to
    ours.

    Our methods are the ones that verify their result. The rivals are the first of all, and the first one that verifies,
    too.
    """
    contests = [
        ("bytes", lambda row: row["bytes"]),
        *((way, lambda row, way=way: statistics.median(row[way])) for way in ("encode", "decode")),
        *((f"{line} Gbit/s", lambda row, line=line: seconds_to_new_weights(row, line)) for line in LINES[:3]),
    ]
    runs = [run for run in runs if run["threads"] == 1]
    lines = [f"| | {' | '.join(run['pair'] for run in runs)} |", f"|---|{'---|' * len(runs)}"]
    for contest, of in contests:
        cells = []
        for run in runs:
            figures = {name: (of(row), bool(row["proof"])) for name, row in run["rows"].items()}
            rivals = {name: figure for name, figure in figures.items() if not name.startswith("deltachain")}
            ours = (figure for name, (figure, checks) in figures.items() if name not in rivals and checks)
            own = min(ours, default=math.inf)
            ahead = []
            for known in (rivals, {name: figure for name, figure in rivals.items() if figure[1]}):
                first = min(known, key=lambda name: known[name][0], default=None)
                # In a tie the rival is first.
                if first and known[first][0] <= own:
                    text = f"{first} ({own / known[first][0]:.2f})"
                    ahead.append(f"**{text}**" if known[first][1] else text)
            cells.append("; ".join(dict.fromkeys(ahead)) or "ours")
        lines.append(f"| {contest} | {' | '.join(cells)} |")
    return lines


def facts_table(methods: dict) -> list[str]:
    """A table of the facts about the methods, without figures."""
    lines = [
        "| method | what runs | dtypes | tensors may come, go and change shape | a wrong base is noticed by "
        "| a wrong result is noticed by | what changes while it decodes |",
        "|---|---|---|---|---|---|---|",
    ]
    alike: dict[tuple, list[str]] = {}
    for name, facts in methods.items():
        cells = facts.what, "BF16" if facts.bf16_only else "all", "yes" if facts.reshapes else "no"
        cells += facts.base or "nothing", facts.proof or "nothing", facts.place
        alike.setdefault(cells, []).append(name)
    return [*lines, *(f"| {' | '.join(['; '.join(names), *cells])} |" for cells, names in alike.items())]


def within(page: str, what: str, lines: list[str]) -> str:
    """Replaces a table that `./task rivals` writes in a page."""
    begin, end = f"<!-- {what}: written by ./task rivals -->", f"<!-- {what}: end -->"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return "\n".join([f"{before}{begin}", *lines, f"{end}{after}"])


def write_pages(repository: Path, runs: list[dict], methods: dict) -> None:
    """Writes the tables of docs/comparison.md."""
    page = repository / "docs/comparison.md"
    text = page.read_text()
    tables = {"rivals": short_table(runs[0]), "first": first_table(runs), "methods": facts_table(methods)}
    for what, lines in tables.items():
        text = within(text, what, lines)
    page.write_text(text)


def comparison(run: dict) -> list[str]:
    """For each rival, the ratios of its size and its times to ours."""
    lines = []
    for name, row in run["rows"].items():
        if name.startswith("deltachain"):
            continue
        ours = OURS[row["kind"]]
        own = run["rows"].get(ours)
        if own is None:
            continue
        times = [statistics.median(row[way]) / statistics.median(own[way]) for way in ("encode", "decode")]
        size = f"{row['bytes'] / own['bytes']:.2f}"
        cells = [run["pair"], str(run["threads"]), name, ours, size, *(f"{x:.2f}" for x in times)]
        others = IN_PLACE if row["kind"] == "in process" else [None, None]
        for other in [*others, UNCHECKED if row["checks"] == "none" else None]:
            held = run["rows"].get(other)
            ratio = held and statistics.median(row["decode"]) / statistics.median(held["decode"])
            cells.append(f"{ratio:.2f}" if ratio else "")
        wins = [row["bytes"] > own["bytes"], times[0] > 1, times[1] > 1]
        missed = [word for word, won in zip(("size", "encode", "decode"), wins) if not won]
        lines.append(f"| {' | '.join([*cells, ', '.join(missed)])} |")
    return lines


def summary(runs: list[dict]) -> str:
    head = [
        "| pair | threads | rival | held against | its size / ours | its encode time / ours | its decode time / ours "
        "| decode / compact in place | decode / local in place | decode, without checks on both sides "
        "| where it is ahead |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    return "\n".join(head + [line for run in runs for line in comparison(run)])


def report(runs: list[dict], command: str, machine: str, date: datetime.date, rounds: int) -> str:
    parts = [
        "# Rivals, in one run",
        f"`{command}`, {date}, on {machine}. Medians of {rounds} alternated rounds, slowest and fastest in brackets; "
        "MB/s are 10^6 bytes of the model's data per second. Every result was compared with the target, bit for bit. "
        "[README.md](README.md) says how this is measured.",
        "## Held against each other",
        "Above 1: the rival is larger, or slower. In place: ours verifies the result before it changes the only copy "
        "of the base; \"where it is ahead\" is of ours with a second copy.",
        summary(runs),
    ]
    for run in runs:
        threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
        parts.append(f"## {run['pair']}, {threads}")
        parts.append(
            f"{run['data']:,} bytes of data. A copy in memory by one thread: {run['copy'] / 1e6:,.0f} MB/s. "
            f"Load of the machine at the start: {run['load']:.2f}."
        )
        parts.append(table(run))
        parts.append(
            "Time to new weights: encoding, transfer and decoding, one after another. Bold: the first of all; italic: "
            "the first of those that verify the result."
        )
        parts.append(times_table(run))
        if run["failures"]:
            parts.append("\n".join(f"- {name}: not measured: {reason}" for name, reason in run["failures"].items()))
    return "\n\n".join(parts) + "\n"
