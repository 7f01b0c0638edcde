"""Codings (SPEC sections 7 and 8): makes a link from two states and a choice of codings."""
from dataclasses import dataclass, field

from .builder import ABSOLUTE, BITMAP, DENSE, PATCH, PLANES, REMOVE, SET, SMALL, SPARSE, Entry, Link, Segment, Stream
from .builder import Table, stream_names
from .model import PIECE, piece_count
from .primitives import pack, text_bytes, varint

CHUNK = 1 << 12


@dataclass
class Plan:
    """One segment. `pieces` are (tensor name, number of the piece); None: all pieces that change. `thresholds` and
    `coded` (lanes) apply to all parts, or by (name, piece) to each."""
    positions: int = SPARSE
    values: int = ABSOLUTE
    pieces: list = None
    parameters: tuple = (0,)  # of the contexts, if sparse
    widths: tuple = (2,)      # of the contexts, if relative small
    thresholds: object = ()
    coded: object = None      # None: the lanes that change


@dataclass
class Part:
    dtype: object
    piece: tuple  # name of its tensor, and number
    old: bytes
    new: bytes
    thresholds: list
    coded: list
    ranks: list = field(default_factory=list)   # of each context: ranks of the coded members
    values: list = field(default_factory=list)  # of each context: (old lane, new lane) of the coded members
    counts: list = field(default_factory=list)  # of each context: members


def link(base, target, *plans, metadata=(), listed=(), operations=None, removed=()):
    """Returns a link whose segments follow the plans. `listed` entries are there although nothing changes, `removed`
    ones although the base has no such tensor; `operations` overrides patch and set."""
    entries = {}
    for name in sorted({*base.tensors, *target.tensors, *removed}, key=text_bytes):
        old, new = base.tensors.get(name), target.tensors.get(name)
        if new is None:
            entries[name] = Entry(name, REMOVE)
        elif old != new or name in listed:
            fits = old is not None and old.dtype == new.dtype and len(old.data) == len(new.data)
            operation = (operations or {}).get(name, PATCH if fits else SET)
            entries[name] = Entry(name, operation, new.dtype, new.shape, [0] * piece_count(len(new.data)), new.digests())
    result = Link(base, target, [tuple(pair) for pair in metadata], [], list(entries.values()))
    for number, plan in enumerate(plans, 1):
        wanted = plan.pieces or [(name, piece) for name,
                                 entry in entries.items() for piece in range(len(entry.segments))
                                 if changed_lanes(*piece_bytes(base, target, entry, piece), entry.dtype.lane_bytes)]
        parts = []
        for name, piece in wanted:
            entry = entries[name]
            assert entry.segments[piece] == 0, "a piece is in at most one segment"
            entry.segments[piece] = number
            old, new = piece_bytes(base, target, entry, piece)
            coded = chosen(plan.coded, name, piece)
            if coded is None:
                coded = changed_lanes(old, new, entry.dtype.lane_bytes)
            parts.append(Part(entry.dtype, (name, piece), old, new, list(chosen(plan.thresholds, name, piece)), coded))
            first = piece * PIECE // entry.dtype.lane_bytes
            every = range(len(new) // entry.dtype.lane_bytes)
            entry.coded += [first + number for number in (every if plan.positions == DENSE else coded)]
        result.segments.append(segment(plan, parts))
    return result


def chosen(value, name, piece):
    return value[name, piece] if isinstance(value, dict) else value


def piece_bytes(base, target, entry, piece):
    """Returns a piece before and after; a set tensor starts as zeros."""
    new = target.tensors[entry.name].data[piece * PIECE:(piece + 1) * PIECE]
    if entry.operation == SET:
        return bytes(len(new)), new
    return base.tensors[entry.name].data[piece * PIECE:(piece + 1) * PIECE], new


def lane(data, number, width):
    return int.from_bytes(data[number * width:(number + 1) * width], "little")


def changed_lanes(old, new, width):
    changed = []
    for start in range(0, len(new), CHUNK):
        if old[start:start + CHUNK] != new[start:start + CHUNK]:
            for number in range(start // width, min(start + CHUNK, len(new)) // width):
                if lane(old, number, width) != lane(new, number, width):
                    changed.append(number)
    return changed


def segment(plan, parts):
    """Section 7: the streams of one segment."""
    width = parts[0].dtype.lane_bytes
    contexts = len(parts[0].thresholds) + 1
    for part in parts:
        divide(part, plan.positions == DENSE)
    streams = dict.fromkeys(stream_names(width, plan.positions, plan.values), b"")
    del streams["table"]
    if plan.positions == SPARSE:
        for context in range(contexts):
            position_streams(streams, plan.parameters[context], parts, context)
    for context in range(contexts):
        value_streams(streams, plan, parts, context)
    rows = []
    for part in parts:
        counts = [part.counts[c] if plan.positions == DENSE or plan.parameters[c] == BITMAP else len(part.ranks[c])
                  for c in range(contexts)]
        rows.append(([t - before for before, t in zip([0, *part.thresholds], part.thresholds)], counts))
    table = Table(list(plan.parameters[:contexts]) if plan.positions == SPARSE else [],
                  list(plan.widths[:contexts]) if plan.values == SMALL else [], rows)
    streams = {name: Stream(raw) for name, raw in streams.items()}
    return Segment(width, plan.positions, plan.values, table, streams, parts=parts)


def exponent(dtype, value):
    return value >> (8 * dtype.lane_bytes - 1 - dtype.exponent_bits) & ((1 << dtype.exponent_bits) - 1)


def members(dtype, thresholds, lanes):
    """Returns the numbers of the lanes of each context (section 7.1). Without thresholds, the lanes do not matter."""
    if not thresholds:
        return [range(len(lanes))]
    found = [[] for _ in range(len(thresholds) + 1)]
    for number, value in enumerate(lanes):
        found[sum(t <= exponent(dtype, value) for t in thresholds)].append(number)
    return found


def divide(part, dense):
    """Adds ranks and lanes of the coded members of each context."""
    width = part.dtype.lane_bytes
    lanes = len(part.new) // width
    wanted = set(part.coded)
    for inside in members(part.dtype, part.thresholds, [lane(part.old, n, width) for n in range(lanes)]
                          if part.thresholds else range(lanes)):
        ranks = range(len(inside)) if dense else [r for r, number in enumerate(inside) if number in wanted]
        part.counts.append(len(inside))
        part.ranks.append(ranks)
        part.values.append([(lane(part.old, inside[r], width), lane(part.new, inside[r], width)) for r in ranks])


def position_streams(streams, parameter, parts, context):
    """Section 8.1, one context."""
    if parameter == BITMAP:
        bits = []
        for part in parts:
            coded = set(part.ranks[context])
            bits += [int(rank in coded) for rank in range(part.counts[context])]
        streams["bitmap"] += pack(bits, 1)
        return
    low = []
    for part in parts:
        previous = -1
        for rank in part.ranks[context]:
            gap, previous = rank - previous - 1, rank
            low.append(gap & (1 << parameter) - 1)
            high = gap >> parameter
            streams["gap high"] += bytes([min(high, 255)])
            if high >= 255:
                streams["gap escape"] += varint(high - 255)
    streams["gap low"] += pack(low, parameter)


def key(dtype, value):
    """Returns the position of a lane on the line of its dtype (section 8.3)."""
    top = 1 << (8 * dtype.lane_bytes - 1)
    return value ^ (top - 1) if dtype.sign_magnitude and value & top else value


def difference(dtype, old, new):
    modulus = 1 << (8 * dtype.lane_bytes)
    d = (key(dtype, new) - key(dtype, old)) % modulus
    return d - modulus if d >= modulus // 2 else d


def rotated(dtype, value):
    bits = 8 * dtype.lane_bytes
    return (value << 1 | value >> (bits - 1)) & ((1 << bits) - 1) if dtype.sign_magnitude else value


def value_streams(streams, plan, parts, context):
    """Sections 8.2, 8.4 and 8.5, one context."""
    if plan.values == ABSOLUTE:
        numbers = [rotated(part.dtype, new) for part in parts for _, new in part.values[context]]
    else:
        numbers = [difference(part.dtype, old, new) for part in parts for old, new in part.values[context]]
    if plan.values == SMALL:
        bits = plan.widths[context]
        escape = (1 << bits) - 1
        magnitudes = [abs(d) - 1 for d in numbers]
        streams["sign"] += pack([int(d < 0) for d in numbers], 1)
        streams["magnitude"] += pack([min(m, escape) for m in magnitudes], bits)
        streams["magnitude escape"] += b"".join(varint(m - escape) for m in magnitudes if m >= escape)
        return
    if plan.values == PLANES:
        numbers = [2 * d if d >= 0 else -2 * d - 1 for d in numbers]
    for j in range(parts[0].dtype.lane_bytes):
        streams[f"plane {j}"] += bytes(number >> (8 * j) & 0xFF for number in numbers)
