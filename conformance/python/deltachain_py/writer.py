"""Writes links. The format leaves all choices to the writer (section 14); these are simple ones.

profile direct:  absolute values, one context
profile compact: relative values for patches, up to four contexts
Both choose dense or sparse positions for each piece by an estimate of the cost (order-0 entropy).
"""
from collections import Counter
from dataclasses import dataclass
from math import log2

from . import codings
from .codings import BITMAP
from .errors import SEGMENT_BYTES
from .header import Header
from .index import ABSOLUTE, DENSE, PATCH, PLANES, REMOVE, SET, SMALL, SPARSE, Coding, Index, Part, SegmentEntry
from .index import TensorEntry
from .model import piece_count, piece_range, state_digest, to_lanes
from .primitives import crc32, varint
from .segment import Table, encode_segment
from .streams import write_stream


@dataclass
class Options:
    profile: str = "compact"
    level: int = 3                    # of zstd
    contexts: int = 4                 # at most, in compact links
    segment_bytes: int = SEGMENT_BYTES
    # Forced choices, for tests; None means "choose".
    positions: int = None             # DENSE or SPARSE
    values: int = None                # ABSOLUTE, PLANES or SMALL; pieces of set tensors are absolute all the same
    position_parameters: list = None  # taken in turn by the contexts
    widths: list = None


@dataclass
class Plan:
    """A piece that changes: its lanes before and after, and how it will be coded."""
    part: Part
    old: tuple
    new: tuple
    changed: list  # lane numbers

    def lanes(self):
        """The lanes that will be coded."""
        return range(len(self.new)) if self.part.coding.positions == DENSE else self.changed

    def value(self, lane):
        if self.part.coding.values == ABSOLUTE:
            return self.new[lane]
        return codings.difference(self.part.entry.dtype, self.old[lane], self.new[lane])


def diff(base, target, options=Options(), metadata=None):
    """The link from one state to another, as bytes."""
    entries, plans = [], []
    for name in sorted({*base, *target}, key=str.encode):
        old, new = base.get(name), target.get(name)
        if new is None:
            entries.append(TensorEntry(name, REMOVE))
        elif old != new:
            patch = old is not None and old.dtype == new.dtype and len(old.data) == len(new.data)
            entry = TensorEntry(name, PATCH if patch else SET, new.dtype, new.shape)
            entry.digest = new.digest()
            entries.append(entry)
            plans += _plan(entry, old.data if patch else None, new.data, options)
    groups = _group(plans, options)
    segments, body = [], bytearray()
    for number, group in enumerate(groups, 1):
        stored = _encode_group(group, options)
        segments.append(SegmentEntry(group[0].part.coding, len(stored), crc32(stored)))
        body += stored
        for plan in group:
            plan.part.entry.segments[plan.part.piece] = number
    index_raw = Index(sorted((metadata or {}).items(), key=lambda item: item[0].encode()), segments, entries).encode()
    index = write_stream(index_raw, options.level)
    header = Header(state_digest(base), state_digest(target), len(index), len(index_raw), len(body), crc32(index))
    return header.encode() + index + bytes(body)


def snapshot(target, options=Options(), metadata=None):
    return diff({}, target, options, metadata)


def _plan(entry, old, new, options):
    """The pieces of a tensor that change; `old` is None where the tensor starts as zeros."""
    entry.segments = [0] * piece_count(len(new))
    for piece in range(len(entry.segments)):
        start, end = piece_range(len(new), piece)
        new_bytes = new[start:end]
        old_bytes = bytes(len(new_bytes)) if old is None else old[start:end]
        if old_bytes == new_bytes:
            continue
        width = entry.dtype.lane_bytes
        old_lanes, new_lanes = to_lanes(old_bytes, width), to_lanes(new_bytes, width)
        changed = [i for i, (a, b) in enumerate(zip(old_lanes, new_lanes)) if a != b]
        plan = Plan(Part(entry, piece, None), old_lanes, new_lanes, changed)
        relative = options.profile == "compact" and entry.operation == PATCH
        allowed = [(DENSE, PLANES), (SPARSE, PLANES), (SPARSE, SMALL)] if relative else [(DENSE, ABSOLUTE),
                                                                                         (SPARSE, ABSOLUTE)]
        if relative and options.values == ABSOLUTE:
            allowed = [(DENSE, ABSOLUTE), (SPARSE, ABSOLUTE)]
        wanted = [(p, v) for p, v in allowed
                  if options.positions in (None, p) and (options.values in (None, v) or not relative)]
        plan.part.coding = min((Coding(width, p, v) for p, v in wanted or allowed), key=lambda c: _cost(plan, c))
        yield plan


# --- Estimates, in bits ---

def _entropy(items):
    counts = Counter(items)
    total = sum(counts.values())
    return 0.02 * total + sum(n * log2(total / n) for n in counts.values())  # no coder is perfect


def _cost(plan, coding):
    plan.part.coding = coding
    values = [plan.value(lane) for lane in plan.lanes()]
    positions = 0 if coding.positions == DENSE else _entropy([0] * (len(plan.new) - len(values)) + [1] * len(values))
    if coding.values == SMALL:
        return positions + len(values) + _magnitude_cost(values, _width(values))
    if coding.values == PLANES:
        values = [codings.zigzag(d) for d in values]
    return positions + sum(_entropy([v >> (8 * j) & 0xFF for v in values]) for j in range(coding.lane_bytes))


def _magnitude_cost(values, width):
    escape = (1 << width) - 1
    return sum(width + (8 * len(varint(abs(d) - 1 - escape)) if abs(d) > escape else 0) for d in values)


def _width(values):
    return min((1, 2, 4, 8), key=lambda width: _magnitude_cost(values, width))


def _position_parameter(ranks, counts):
    """A bitmap or the shift that leaves about one value of the high part, whichever is smaller without zstd."""
    coded, total = sum(map(len, ranks)), sum(counts)
    if not coded:
        return 0
    shift = min(31, max(0, (total // coded).bit_length() - 1))
    return BITMAP if total <= coded * (shift + 8) else shift


# --- Segments ---

def _group(plans, options):
    """Lists of plans that share a segment: same coding, at most `segment_bytes`, in order of (entry, piece)."""
    groups, open_groups, sizes = [], {}, {}
    for plan in plans:
        coding = plan.part.coding
        size = len(plan.new) * coding.lane_bytes
        if coding not in open_groups or sizes[coding] + size > options.segment_bytes:
            open_groups[coding], sizes[coding] = [], 0
            groups.append(open_groups[coding])
        open_groups[coding].append(plan)
        sizes[coding] += size
    return groups


def _thresholds(plan, count):
    """`count` thresholds that cut the coded lanes in about equal parts by the exponent of the base."""
    exponents = sorted(plan.part.entry.dtype.exponent(plan.old[lane]) for lane in plan.lanes())
    return [exponents[len(exponents) * i // (count + 1)] for i in range(1, count + 1)]


def _encode_group(group, options):
    coding = group[0].part.coding
    has_exponent = any(plan.part.entry.dtype.exponent_bits for plan in group)
    k = 1 if coding.values == ABSOLUTE else options.contexts
    if not has_exponent and options.positions is None:
        k = 1  # contexts cannot separate anything
    thresholds = [_thresholds(plan, k - 1) for plan in group]

    ranks, counts, values = ([[] for _ in range(k)] for _ in range(3))  # [c][p]; counts of members
    for plan, part_thresholds in zip(group, thresholds):
        coded = set(plan.lanes())
        lists = codings.members(plan.part.entry.dtype, part_thresholds, len(plan.old), plan.old)
        for c, lanes in enumerate(lists):
            ranks[c].append([rank for rank, lane in enumerate(lanes) if lane in coded])
            counts[c].append(len(lanes))
            values[c].append([plan.value(lane) for lane in lanes if lane in coded])

    table, streams = Table([], [], thresholds, []), {}
    if coding.positions == SPARSE:
        table.positions = [_position_parameter(ranks[c], counts[c]) for c in range(k)]
        if options.position_parameters:
            table.positions = [options.position_parameters[c % len(options.position_parameters)] for c in range(k)]
        streams |= codings.encode_positions(ranks, counts, table.positions)
    if coding.values == SMALL:
        table.widths = [_width([d for run in values[c] for d in run]) for c in range(k)]
        if options.widths:
            table.widths = [options.widths[c % len(options.widths)] for c in range(k)]
    streams |= codings.encode_values(coding, [plan.part.entry.dtype for plan in group], values, table.widths)
    for p in range(len(group)):
        all_members = [not table.positions or table.positions[c] == BITMAP for c in range(k)]
        table.counts.append([counts[c][p] if all_members[c] else len(ranks[c][p]) for c in range(k)])
    streams["table"] = table.encode()
    return encode_segment(coding, streams, options.level)
