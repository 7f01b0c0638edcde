"""The board for Grafana and the tables of metrics name what the tool serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
OPERATION = ROOT / "crates/deltachain-cli/src/operation"
BOARD = ROOT / "docs/grafana.json"
# Labels that Prometheus adds to each series.
OF_PROMETHEUS = {"instance", "job"}
METRIC = r"\bdeltachain_\w+"


def served() -> set[str]:
    """Names of the metrics, from the sources of the tool."""
    follower = (OPERATION / "metrics.rs").read_text()
    table = re.search(r"^numbers! \{\n(.*?)^\}", follower, re.DOTALL | re.MULTILINE)
    assert table is not None
    rows = re.findall(r"^    (\w+): ([\w<>, ]+) =", table[1], re.MULTILINE)
    names = {f"deltachain_{name}{ending(kind)}" for name, kind in rows}
    mirror = (OPERATION / "mirroring.rs").read_text()
    fields = re.search(r"pub\(crate\) struct MirrorStatus \{\n(.*?)^\}", mirror, re.DOTALL | re.M)
    assert fields is not None
    kinds = dict(re.findall(r"^    (\w+): ([\w<>, ]+),$", fields[1], re.MULTILINE))
    registered = re.findall(r'registry\.register\("(\w+)"', mirror)
    return names | {f"deltachain_mirror_{name}{ending(kinds[name])}" for name in registered}


def ending(kind: str) -> str:
    """The encoder appends `_total` to the names of counters."""
    return "_total" if "Counter" in kind or "SecondsSum" in kind else ""


def documented() -> dict[str, set[str]]:
    """Metrics of the tables, with their labels."""
    tables = "\n".join(
        (ROOT / f"docs/{page}.md").read_text() for page in ("following", "operating")
    )
    rows = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `deltachain_")]
    found = re.findall(r"`(deltachain_\w+)(?:\{([\w,]+)\})?`", "\n".join(rows))
    return {name: set(filter(None, labels.split(","))) for name, labels in found}


def expressions(part: Any) -> Iterator[tuple[str, str]]:
    """Each expression of the board, with its legend."""
    if isinstance(part, dict):
        if "expr" in part:
            yield part["expr"], part.get("legendFormat", "")
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from expressions(inner)


def test_the_tables_have_all_metrics_and_no_others() -> None:
    metrics = served()
    assert len(metrics) > 30
    assert set(documented()) == metrics


def test_labels_of_the_tables_are_in_the_sources() -> None:
    sources = "".join((OPERATION / f"{name}.rs").read_text() for name in ("metrics", "mirroring"))
    for metric, labels in documented().items():
        for label in labels:
            assert f'("{label}", ' in sources, (metric, label)


def test_the_board_uses_metrics_and_labels_that_exist() -> None:
    board = json.loads(BOARD.read_text())
    metrics = documented()
    used = set()
    for expression, legend in expressions(board["panels"]):
        named = set(re.findall(METRIC, expression))
        assert len(named) == 1, expression
        assert named <= metrics.keys(), expression
        used |= named
        (metric,) = named
        selectors = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
        grouped = [
            word
            for words in re.findall(r"\bby \(([^)]*)\)", expression)
            for word in re.split(r",\s*", words)
        ]
        shown = re.findall(r"\{\{(\w+)\}\}", legend)
        labels = {*selectors, *grouped, *shown}
        assert labels <= metrics[metric] | OF_PROMETHEUS, expression
        # What an expression groups by is all that its legend can show.
        if grouped:
            assert set(shown) <= set(grouped), expression
    assert len(used) > 15
    (variable,) = (item for item in board["templating"]["list"] if item["name"] == "job")
    assert set(re.findall(METRIC, variable["query"]["query"])) <= metrics.keys()


def test_panels_of_the_board_do_not_overlap() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels}) == len(panels)
