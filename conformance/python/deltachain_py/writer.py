"""Writes links. The format leaves all choices to the writer (section 14); these are simple ones.

profile direct:  absolute values, one context
profile compact: relative values for patches, up to four contexts
profile local:   one context, relative values where positions are sparse; with sums (spec/in-place.md)
Both code a piece sparse if few of its lanes change.
"""
from collections import namedtuple
from dataclasses import dataclass

from . import codings, in_place
from .codings import BITMAP
from .errors import SEGMENT_BYTES
from .header import Header
from .index import (ABSOLUTE, DENSE, PATCH, PLANES, REMOVE, SET, SMALL, SPARSE, Coding, Index, Part, SegmentEntry,
                    TensorEntry)
from .model import piece_count, piece_range, state_digest, to_lanes
from .primitives import crc32
from .segment import Table, encode_segment
from .streams import write_stream


@dataclass
class Options:
    profile: str = "compact"
    level: int = 3                    # of zstd
    contexts: int = 4                 # maximum in compact links; local ones have one
    segment_bytes: int = SEGMENT_BYTES
    # Forced choices, for tests; None means "choose".
    positions: int = None             # DENSE or SPARSE
    values: int = None                # ABSOLUTE, PLANES or SMALL; pieces of set tensors are absolute all the same
    position_parameters: list = None  # used in turn by the contexts
    widths: list = None


# A piece that changes: its coding, the base's lanes, and {lane: value} of the coded lanes.
Plan = namedtuple("Plan", "part old coded")


def diff(base, target, options=Options(), metadata=None):
    """Returns the link from one state to another, as bytes."""
    entries, plans = [], []
    for name in sorted({*base, *target}, key=str.encode):
        old, new = base.get(name), target.get(name)
        if new is None:
            entries.append(TensorEntry(name, REMOVE))
        elif old != new:
            patch = old is not None and old.dtype == new.dtype and len(old.data) == len(new.data)
            entry = TensorEntry(name, PATCH if patch else SET, new.dtype, new.shape, digests=new.digests())
            entries.append(entry)
            plans += _plan(entry, old.data if patch else bytes(len(new.data)), new.data, options)
    segments, body = [], bytearray()
    for number, group in enumerate(_group(plans, options), 1):
        stored = _encode_group(group, options)
        segments.append(SegmentEntry(group[0].part.coding, len(stored), crc32(stored)))
        body += stored
        for plan in group:
            plan.part.entry.segments[plan.part.piece] = number
    index_raw = Index(sorted((metadata or {}).items(), key=lambda item: item[0].encode()), segments, entries).encode()
    index = write_stream(index_raw, options.level, checksum=True)  # R-STR-08
    header = Header(state_digest(base), state_digest(target), len(index), len(index_raw), len(body), crc32(index))
    area = b""
    if options.profile == "local":
        area = in_place.area(header, index_raw, _sums(entries, target, plans))
        header.compatible, header.extension_length = in_place.BIT, len(area)
    return header.encode() + index + bytes(body) + area


def _sums(entries, target, plans):
    """Yields the pairs of a record, from the bytes of the target (R-SUM-01)."""
    coded = {(plan.part.entry.name, plan.part.piece): plan.coded for plan in plans}
    for entry in entries:
        for piece in range(len(entry.segments)):
            data, width = target[entry.name].data[slice(*piece_range(entry.byte_length, piece))], entry.dtype.lane_bytes
            yield in_place.sums_of(data)
            if (entry.name, piece) in coded:
                lanes = to_lanes(data, width)
                yield in_place.sums_of_lanes([(lane, lanes[lane]) for lane in coded[entry.name, piece]], width)


def snapshot(target, options=Options(), metadata=None):
    return diff({}, target, options, metadata)


def _plan(entry, old, new, options):
    """Plans the pieces of a tensor that change."""
    width = entry.dtype.lane_bytes
    entry.segments = [0] * piece_count(len(new))
    for piece in range(len(entry.segments)):
        start, end = piece_range(len(new), piece)
        old_lanes, new_lanes = to_lanes(old[start:end], width), to_lanes(new[start:end], width)
        changed = [lane for lane, (a, b) in enumerate(zip(old_lanes, new_lanes)) if a != b]
        if changed:
            coding = _choose(entry, len(changed) / len(new_lanes), options)
            lanes = range(len(new_lanes)) if coding.positions == DENSE else changed
            if coding.values == ABSOLUTE:
                coded = {lane: new_lanes[lane] for lane in lanes}
            else:
                coded = {lane: codings.difference(entry.dtype, old_lanes[lane], new_lanes[lane]) for lane in lanes}
            yield Plan(Part(entry, piece, coding), old_lanes, coded)


def _choose(entry, density, options):
    """Chooses the coding of a piece: dense if more than a quarter of its lanes change; relative if allowed."""
    positions, values = options.positions, options.values
    if positions is None:
        positions = DENSE if density > 0.25 and values != SMALL else SPARSE
    if options.profile == "direct" or entry.operation == SET:
        values = ABSOLUTE
    elif values is None:
        values = SMALL if positions == SPARSE else ABSOLUTE if options.profile == "local" else PLANES
    return Coding(entry.dtype.lane_bytes, positions, values)


def _width(differences):
    """Returns the symbol width that takes the fewest bits, if each escape takes a byte."""
    return min((1, 2, 4, 8), key=lambda width: sum(width + 8 * (abs(d) >= 1 << width) for d in differences))


def _position_parameter(ranks, counts):
    """Returns a bitmap, or the shift that leaves the high part about one value, whichever is smaller without zstd."""
    coded, total = sum(map(len, ranks)), sum(counts)
    shift = min(23, max(0, (total // max(coded, 1)).bit_length() - 1))
    return BITMAP if coded and total <= coded * (shift + 8) else shift


def _group(plans, options):
    """Returns lists of plans that share a segment: same coding, at most `segment_bytes`, in order of (entry, piece)."""
    groups, last, sizes = [], {}, {}
    for plan in plans:
        coding = plan.part.coding
        size = len(plan.old) * coding.lane_bytes
        if coding not in last or sizes[coding] + size > options.segment_bytes:
            last[coding], sizes[coding] = [], 0
            groups.append(last[coding])
        last[coding].append(plan)
        sizes[coding] += size
    return groups


def _thresholds(plan, count):
    """Returns `count` thresholds that divide the coded lanes into about equal parts by the exponent of the base."""
    exponents = sorted(plan.part.entry.dtype.exponent(plan.old[lane]) for lane in plan.coded)
    return [exponents[len(exponents) * i // (count + 1)] for i in range(1, count + 1)]


def _encode_group(group, options):
    coding = group[0].part.coding
    k = 1 if coding.values == ABSOLUTE or options.profile == "local" else options.contexts
    thresholds = [_thresholds(plan, k - 1) for plan in group]

    ranks, counts, values = ([[] for _ in range(k)] for _ in range(3))  # [c][p]; counts of members
    for plan, part_thresholds in zip(group, thresholds):
        lists = codings.members(plan.part.entry.dtype, part_thresholds, len(plan.old), plan.old)
        for c, lanes in enumerate(lists):
            ranks[c].append([rank for rank, lane in enumerate(lanes) if lane in plan.coded])
            counts[c].append(len(lanes))
            values[c].append([plan.coded[lane] for lane in lanes if lane in plan.coded])

    def parameters(forced, choose):
        return [forced[c % len(forced)] for c in range(k)] if forced else [choose(c) for c in range(k)]

    table, streams = Table([], [], thresholds, []), {}
    if coding.positions == SPARSE:
        table.positions = parameters(options.position_parameters, lambda c: _position_parameter(ranks[c], counts[c]))
        streams |= codings.encode_positions(ranks, counts, table.positions)
    if coding.values == SMALL:
        table.widths = parameters(options.widths, lambda c: _width([d for run in values[c] for d in run]))
    streams |= codings.encode_values(coding, [plan.part.entry.dtype for plan in group], values, table.widths)
    for p in range(len(group)):
        all_members = [not table.positions or table.positions[c] == BITMAP for c in range(k)]
        table.counts.append([counts[c][p] if all_members[c] else len(ranks[c][p]) for c in range(k)])
    streams["table"] = table.encode()
    return encode_segment(coding, streams, options.level)
