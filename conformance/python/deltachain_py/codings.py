"""Codings (section 8): positions and values, in both directions.

Everything is ordered by context, then part, then lane; so `x[c][p]` below is the list for the coded lanes of context c
in part p.
"""
from bisect import bisect_right

from .errors import check
from .index import ABSOLUTE, SMALL, SPARSE
from .primitives import Reader, ceil_div, pack, unpack, varint

BITMAP = 32  # the position parameter for a bitmap; smaller ones are shifts of gaps


def split(items, lengths):
    """Cuts a list, or the bytes of a stream, into runs of the given lengths."""
    runs, start = [], 0
    for length in lengths:
        runs.append(items[start:start + length])
        start += length
    return runs


def packed(take, name, counts, widths, where):
    """Reads a packed stream: for each context a number of items of some bits each, in whole bytes."""
    sizes = [ceil_div(count * width, 8) for count, width in zip(counts, widths)]
    runs = split(take(name, needed=sum(sizes)), sizes)
    return [unpack(*items, f"{name} of {where}") for items in zip(runs, widths, counts)]


def escapes(take, name, count, longest, where):
    """Reads the varints of an escape stream; there must be `count` of them (R-STR-06), of at most `longest` bytes
    each."""
    reader, values = Reader(take(name, limit=longest * count), f"{name} of {where}"), []
    while reader.left():
        values.append(reader.varint())
    reader.check(len(values) == count, "R-STR-06", f"{len(values)} escapes, {count} wanted")
    return iter(values)


# --- Contexts (7.1) and positions (8.1) ---

def members(dtype, thresholds, lanes, base_lanes):
    """Returns the members of each context: lists of lane numbers. Without thresholds, `base_lanes` is not needed."""
    if not thresholds:
        return [range(lanes)]
    lists = [[] for _ in range(len(thresholds) + 1)]
    for lane, old in enumerate(base_lanes):
        lists[bisect_right(thresholds, dtype.exponent(old))].append(lane)
    return lists


def decode_positions(take, table, parts, where):
    """Returns the coded ranks [c][p], below the part's number of lanes. `resolve` compares them with the members."""
    k = table.contexts
    counts = [[part_counts[c] for part_counts in table.counts] for c in range(k)]  # [c][p]
    if not table.positions:  # dense: every member is coded
        return [[range(count) for count in counts[c]] for c in range(k)]
    sums = [sum(counts[c]) for c in range(k)]
    bitmaps = [c for c in range(k) if table.positions[c] == BITMAP]
    gaps = [c for c in range(k) if table.positions[c] != BITMAP]
    ranks = [[] for _ in range(k)]

    bits = packed(take, "bitmap", [sums[c] for c in bitmaps], [1] * k, where)
    for c, run in zip(bitmaps, bits):
        ranks[c] = [[rank for rank, bit in enumerate(part) if bit] for part in split(run, counts[c])]

    low = packed(take, "gap low", [sums[c] for c in gaps], [table.positions[c] for c in gaps], where)
    high = take("gap high", needed=sum(sums[c] for c in gaps))
    escaped = escapes(take, "gap escape", high.count(255), 4, where)
    high_parts = iter([h if h < 255 else 255 + next(escaped) for h in high])
    for c, run in zip(gaps, low):
        for part, low_parts in zip(parts, split(run, counts[c])):
            part_ranks, rank = [], -1
            for low_bits in low_parts:
                rank += 1 + (next(high_parts) << table.positions[c] | low_bits)
                part_ranks.append(rank)
            check(rank < part.lanes, "R-POS-01", f"rank {rank} of {part.lanes} lanes", where)
            ranks[c].append(part_ranks)
    return ranks


def encode_positions(ranks, counts, positions):
    """Returns the position streams; `counts[c][p]` are the members, needed for bitmaps."""
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
            for previous, rank in zip([-1, *part_ranks], part_ranks):
                gap = rank - previous - 1
                low_bits.append(gap & (1 << parameter) - 1)
                high = gap >> parameter
                streams["gap high"].append(min(high, 255))
                if high >= 255:
                    streams["gap escape"] += varint(high - 255)
        streams["gap low"] += pack(low_bits, parameter)
    return streams


def resolve(segment, taken, base_lanes_of, where):
    """Does step 8.5: yields for each part of a selected tensor its coded lanes and their values: (part,
    [(lane, value)]) in lane order.

    `base_lanes_of(part)` returns the base's lanes; it is called only with more than one context.
    """
    table, result = segment.table, []
    for p, part in enumerate(segment.parts):
        if not taken(part.entry.name):
            continue
        thresholds, name = table.thresholds[p], part.entry.name
        base_lanes = base_lanes_of(part) if thresholds else None
        contexts = members(part.entry.dtype, thresholds, part.lanes, base_lanes)
        for c, lanes in enumerate(contexts):
            if table.positions and table.positions[c] != BITMAP:
                inside = not segment.ranks[c][p] or segment.ranks[c][p][-1] < len(lanes)
                check(inside, "R-POS-01", f"context {c} of {name!r}: rank beyond {len(lanes)} members", where)
            else:
                check(table.counts[p][c] == len(lanes), "R-POS-02", f"context {c} of {name!r}: not its members", where)
        coded = [(lanes[rank], value) for c, lanes in enumerate(contexts)
                 for rank, value in zip(segment.ranks[c][p], segment.values[c][p])]
        result.append((part, sorted(coded)))
    return result


# --- Lanes as numbers (8.2, 8.3) ---

def rotate_left(dtype, lane):
    top = dtype.width - 1
    return (lane << 1 & (1 << dtype.width) - 1) | lane >> top if dtype.sign_magnitude else lane


def rotate_right(dtype, lane):
    return lane >> 1 | (lane & 1) << (dtype.width - 1) if dtype.sign_magnitude else lane


def key(dtype, lane):
    """Returns the position of a lane on the line of section 8.3. The function is its own inverse."""
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
    """Returns the values [c][p]: new lanes if absolute, differences if relative."""
    numbers = [[len(part_ranks) for part_ranks in ranks[c]] for c in range(table.contexts)]
    total = sum(map(sum, numbers))
    if coding.values == SMALL:
        flat = _decode_small(take, coding, table, [sum(n) for n in numbers], where)
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


def _decode_small(take, coding, table, counts, where):
    signs = packed(take, "sign", counts, [1] * len(counts), where)
    symbols = packed(take, "magnitude", counts, table.widths, where)
    escape_count = sum(run.count((1 << width) - 1) for run, width in zip(symbols, table.widths))
    longest = ceil_div(8 * coding.lane_bytes - 1, 7)
    escaped = escapes(take, "magnitude escape", escape_count, longest, where)
    flat, half = [], 1 << (8 * coding.lane_bytes - 1)
    for c, width in enumerate(table.widths):
        escape = (1 << width) - 1
        for negative, m in zip(signs[c], symbols[c]):
            if m == escape:
                m += next(escaped)
            check(m < half if negative else m < half - 1, "R-VAL-02", f"magnitude {m}", where)
            flat.append(-m - 1 if negative else m + 1)
    return flat


def encode_values(coding, dtypes, values, widths):
    """Returns the value streams of values[c][p]; `dtypes[p]` are the parts' dtypes."""
    if coding.values == SMALL:
        streams = {name: bytearray() for name in ("sign", "magnitude", "magnitude escape")}
        for c, width in enumerate(widths):
            flat, escape = [d for run in values[c] for d in run], (1 << width) - 1
            streams["sign"] += pack([int(d < 0) for d in flat], 1)
            streams["magnitude"] += pack([min(abs(d) - 1, escape) for d in flat], width)
            streams["magnitude escape"] += b"".join(varint(abs(d) - 1 - escape) for d in flat if abs(d) > escape)
        return streams
    if coding.values == ABSOLUTE:
        flat = [rotate_left(dtype, lane) for runs in values for dtype, run in zip(dtypes, runs) for lane in run]
    else:
        flat = [zigzag(d) for runs in values for run in runs for d in run]
    return {f"plane {j}": bytes(item >> (8 * j) & 0xFF for item in flat) for j in range(coding.lane_bytes)}
