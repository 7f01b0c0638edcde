"""decoded.json: the decoded segments of some vectors, part by part and context by context."""
from .builder import ABSOLUTE, BITMAP, DENSE
from .coding import difference, lane, members
from .registry import MADE, SPEC

CHOSEN = ("smallest", "worked-contexts", "worked-escapes", "one-lane", "snapshot", "all-compressed-small-bitmap",
          "contexts-16-dense", "described-b144-patched", "gap-restarts", "lanes-9-bitmap", "magnitudes-u64",
          "parts-dtypes-planes", "signs-absolute", "tensors-200-mixed-codings")


def made():
    links = []
    for name in CHOSEN:
        vector = MADE[f"links/valid/{name}"]
        links.append({"id": vector.id, "segments": [segment(item) for item in vector.source.segments]})
    return {"about": "Decoded segments of vectors. Of each part and context: how many members it has, the ranks of those "
                     "that are coded, the numbers of their lanes, their differences d (decimal; absent where values are "
                     "absolute), and the new lanes as hexadecimal numbers. Lanes are counted in the piece.",
            "spec": SPEC,
            "licence": "CC0-1.0",
            "links": links}


def segment(item):
    return {"coding": item.lane_bytes.bit_length() - 1 | item.positions << 2 | item.values << 3,
            "position_parameters": ["bitmap" if p == BITMAP else p for p in item.table.positions],
            "symbol_widths": item.table.widths, "parts": [part(one, item) for one in item.parts]}


def part(one, item):
    width = one.dtype.lane_bytes
    old = [lane(one.old, number, width) for number in range(len(one.old) // width)]
    found = []
    for inside, ranks, values in zip(members(one.dtype, one.thresholds, old), one.ranks, one.values, strict=True):
        context = {"members": len(inside), "ranks": list(ranks), "lanes": [inside[rank] for rank in ranks]}
        if item.values != ABSOLUTE:
            context["differences"] = [str(difference(one.dtype, before, after)) for before, after in values]
        context["new"] = [f"{after:0{2 * width}x}" for _, after in values]
        found.append(context)
    assert item.positions != DENSE or all(context["members"] == len(context["ranks"]) for context in found)
    return {"tensor": one.piece[0], "piece": one.piece[1], "thresholds": one.thresholds, "contexts": found}
