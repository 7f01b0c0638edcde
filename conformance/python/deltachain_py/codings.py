"""Codings (section 8): positions and values, in both directions.

Everything is ordered by context, then part, then lane; so `x[c][p]` below is the list of something for the coded
lanes of context c in part p.
"""
from bisect import bisect_right

from .errors import check
from .index import ABSOLUTE, SMALL, SPARSE
from .primitives import ceil_div, pack, read_varints, unpack, varint

BITMAP = 32  # the position parameter that means a bitmap; smaller ones are shifts of gaps


def split(items, lengths):
    """Cut a list in runs of the given lengths."""
    runs, start = [], 0
    for length in lengths:
        runs.append(items[start:start + length])
        start += length
    return runs


def cut(data, lengths):
    """The same for the bytes of a stream: one run per context, each beginning on a byte boundary."""
    return iter(split(data, lengths))


# --- Contexts (7.1) and positions (8.1) ---

def members(dtype, thresholds, lanes, base_lanes):
    """The members of each context: lists of lane numbers. `base_lanes` is not needed without thresholds."""
    if not thresholds:
        return [range(lanes)]
    lists = [[] for _ in range(len(thresholds) + 1)]
    for lane, old in enumerate(base_lanes):
        lists[bisect_right(thresholds, dtype.exponent(old))].append(lane)
    return lists


def decode_positions(take, table, parts, where):
    """The coded ranks [c][p], below the part's number of lanes. `resolve` compares them with the members."""
    k = table.contexts
    counts = [[part_counts[c] for part_counts in table.counts] for c in range(k)]  # [c][p]
    if not table.positions:  # dense: every member is coded
        return [[range(count) for count in counts[c]] for c in range(k)]
    sums = [sum(counts[c]) for c in range(k)]
    bitmaps = [c for c in range(k) if table.positions[c] == BITMAP]
    gaps = [c for c in range(k) if table.positions[c] != BITMAP]
    ranks = [None] * k

    sizes = [ceil_div(sums[c], 8) for c in bitmaps]
    runs = cut(take("bitmap", needed=sum(sizes)), sizes)
    for c, run in zip(bitmaps, runs):
        bits = unpack(run, 1, sums[c], f"bitmap of {where}")
        ranks[c] = [[rank for rank, bit in enumerate(part) if bit] for part in split(bits, counts[c])]

    sizes = [ceil_div(sums[c] * table.positions[c], 8) for c in gaps]
    runs = cut(take("gap low", needed=sum(sizes)), sizes)
    low = {c: unpack(run, table.positions[c], sums[c], f"gap low of {where}") for c, run in zip(gaps, runs)}
    high = take("gap high", needed=sum(sums[c] for c in gaps))
    escape_count = high.count(255)
    escapes = iter(read_varints(take("gap escape", limit=10 * escape_count), escape_count, f"gap escape of {where}"))
    high_parts = iter([h if h < 255 else 255 + next(escapes) for h in high])
    for c in gaps:
        ranks[c] = []
        for part, low_parts in zip(parts, split(low[c], counts[c])):
            part_ranks, rank = [], -1
            for low_bits in low_parts:
                rank += 1 + (next(high_parts) << table.positions[c] | low_bits)
                part_ranks.append(rank)
            check(rank < part.lanes, "R-POS-01", f"rank {rank} of {part.lanes} lanes", where)
            ranks[c].append(part_ranks)
    return ranks


def encode_positions(ranks, counts, positions):
    """The position streams; `counts[c][p]` are the members, needed for bitmaps."""
    streams = {name: bytearray() for name in ("bitmap", "gap low", "gap high", "gap escape")}
    for c, parameter in enumerate(positions):
        if parameter == BITMAP:
            bits = []
            for part_ranks, count in zip(ranks[c], counts[c]):
                coded = set(part_ranks)
                bits += [int(rank in coded) for rank in range(count)]
            streams["bitmap"] += pack(bits, 1)
            continue
        low_bits = []
        for part_ranks in ranks[c]:
            for gap in to_gaps(part_ranks):
                low_bits.append(gap & (1 << parameter) - 1)
                high = gap >> parameter
                streams["gap high"].append(min(high, 255))
                if high >= 255:
                    streams["gap escape"] += varint(high - 255)
        streams["gap low"] += pack(low_bits, parameter)
    return streams


def to_gaps(ranks):
    return [rank - previous - 1 for previous, rank in zip([-1, *ranks], ranks)]


def resolve(segment, base_lanes_of, where):
    """Step 8.5: for each part its coded lanes and their values, [(lane, value)] in lane order.

    `base_lanes_of(part)` gives the base's lanes; it is called only with more than one context.
    """
    table, result = segment.table, []
    for p, part in enumerate(segment.parts):
        thresholds, name = table.thresholds[p], part.entry.name
        base_lanes = base_lanes_of(part) if thresholds else None
        contexts = members(part.entry.dtype, thresholds, part.lanes, base_lanes)
        for c, lanes in enumerate(contexts):
            inside = not table.positions or not segment.ranks[c][p] or segment.ranks[c][p][-1] < len(lanes)
            check(inside, "R-POS-01", f"context {c}: rank beyond {len(lanes)} members", where, tensor=name)
        for c, lanes in enumerate(contexts):
            same = bool(table.positions) and table.positions[c] != BITMAP or table.counts[p][c] == len(lanes)
            check(same, "R-POS-02", f"context {c}: {len(lanes)} members", where, tensor=name)
        coded = [(lanes[rank], value) for c, lanes in enumerate(contexts)
                 for rank, value in zip(segment.ranks[c][p], segment.values[c][p])]
        result.append(sorted(coded))
    return result


# --- Lanes as numbers (8.2, 8.3) ---

def rotate_left(dtype, lane):
    top = dtype.width - 1
    return (lane << 1 & (1 << dtype.width) - 1) | lane >> top if dtype.sign_magnitude else lane


def rotate_right(dtype, lane):
    return lane >> 1 | (lane & 1) << (dtype.width - 1) if dtype.sign_magnitude else lane


def key(dtype, lane):
    """The place of a lane on the line of section 8.3; its own inverse."""
    negative = dtype.sign_magnitude and lane >> (dtype.width - 1)
    return lane ^ ((1 << (dtype.width - 1)) - 1) if negative else lane


def difference(dtype, old, new):
    d = (key(dtype, new) - key(dtype, old)) % (1 << dtype.width)
    return d - (1 << dtype.width) if d >> (dtype.width - 1) else d


def add_difference(dtype, old, d):
    return key(dtype, (key(dtype, old) + d) % (1 << dtype.width))


def zigzag(d):
    return 2 * d if d >= 0 else -2 * d - 1


def unzigzag(z):
    return -((z + 1) >> 1) if z & 1 else z >> 1


# --- Values (8.2, 8.4, 8.5) ---

def decode_values(take, coding, table, parts, ranks, where):
    """The values [c][p]: new lanes if absolute, differences if relative."""
    numbers = [[len(part_ranks) for part_ranks in ranks[c]] for c in range(table.contexts)]
    total = sum(map(sum, numbers))
    if coding.values == SMALL:
        flat = _decode_small(take, coding, table, [sum(n) for n in numbers], total, where)
    else:
        planes = [take(f"plane {j}", needed=total) for j in range(coding.lane_bytes)]
        flat = [int.from_bytes(item, "little") for item in zip(*planes)]
        if coding.values != ABSOLUTE:
            check(coding.positions != SPARSE or 0 not in flat, "R-VAL-01", "a coded lane does not change", where)
            flat = [unzigzag(z) for z in flat]
    values = [split(run, numbers[c]) for c, run in enumerate(split(flat, map(sum, numbers)))]
    if coding.values == ABSOLUTE:
        values = [[[rotate_right(part.entry.dtype, lane) for lane in run] for part, run in zip(parts, runs)]
                  for runs in values]
    return values


def _decode_small(take, coding, table, sizes, total, where):
    runs = cut(take("sign", needed=sum(ceil_div(n, 8) for n in sizes)), [ceil_div(n, 8) for n in sizes])
    signs = [unpack(run, 1, n, f"sign of {where}") for run, n in zip(runs, sizes)]
    lengths = [ceil_div(n * width, 8) for n, width in zip(sizes, table.widths)]
    runs = cut(take("magnitude", needed=sum(lengths)), lengths)
    symbols = [unpack(run, width, n, f"magnitude of {where}") for run, n, width in zip(runs, sizes, table.widths)]
    escape_count = sum(run.count((1 << width) - 1) for run, width in zip(symbols, table.widths))
    escapes = iter(read_varints(take("magnitude escape", limit=10 * escape_count), escape_count,
                                f"magnitude escape of {where}"))
    flat, half = [], 1 << (8 * coding.lane_bytes - 1)
    for c, width in enumerate(table.widths):
        escape = (1 << width) - 1
        for negative, m in zip(signs[c], symbols[c]):
            if m == escape:
                m += next(escapes)
            check(m < half if negative else m < half - 1, "R-VAL-02", f"magnitude {m}", where)
            flat.append(-m - 1 if negative else m + 1)
    return flat


def encode_values(coding, dtypes, values, widths):
    """The value streams of values[c][p]; `dtypes[p]` are the parts' dtypes."""
    if coding.values == SMALL:
        streams = {name: bytearray() for name in ("sign", "magnitude", "magnitude escape")}
        for c, width in enumerate(widths):
            flat = [d for run in values[c] for d in run]
            escape = (1 << width) - 1
            magnitudes = [abs(d) - 1 for d in flat]
            streams["sign"] += pack([int(d < 0) for d in flat], 1)
            streams["magnitude"] += pack([min(m, escape) for m in magnitudes], width)
            for m in magnitudes:
                if m >= escape:
                    streams["magnitude escape"] += varint(m - escape)
        return streams
    if coding.values == ABSOLUTE:
        flat = [rotate_left(dtype, lane) for runs in values for dtype, run in zip(dtypes, runs) for lane in run]
    else:
        flat = [zigzag(d) for runs in values for run in runs for d in run]
    return {f"plane {j}": bytes(item >> (8 * j) & 0xFF for item in flat) for j in range(coding.lane_bytes)}
