"""A segment (section 7): directory, streams and table."""
from collections import namedtuple
from dataclasses import dataclass

from .codings import BITMAP, decode_positions, decode_values
from .errors import check
from .index import ABSOLUTE, DENSE, SMALL, SPARSE
from .primitives import Reader, crc32, varint
from .streams import read_stream, write_stream


def stream_names(coding):
    """Returns the streams of a segment, in the order of the directory."""
    names = ["table"]
    if coding.positions == SPARSE:
        names += ["bitmap", "gap low", "gap high", "gap escape"]
    if coding.values == SMALL:
        return names + ["sign", "magnitude", "magnitude escape"]
    return names + [f"plane {j}" for j in range(coding.lane_bytes)]


@dataclass
class Table:
    positions: list   # position parameter of each context; empty if dense
    widths: list      # symbol width of each context; empty unless relative small
    thresholds: list  # [part]: thresholds t[1] ..
    counts: list      # [part][context]

    @property
    def contexts(self):
        return len(self.thresholds[0]) + 1

    def encode(self):
        out = bytearray([self.contexts, *self.positions, *self.widths])
        for thresholds, counts in zip(self.thresholds, self.counts):
            previous = 0
            for threshold in thresholds:
                out += varint(threshold - previous)
                previous = threshold
            for count in counts:
                out += varint(count)
        return bytes(out)


def parse_table(raw, coding, parts, where):
    reader = Reader(raw, f"table of {where}")
    k = reader.u8()
    reader.check(1 <= k <= 16, "R-SEG-03", f"{k} contexts")
    reader.check(k == 1 or coding.values != ABSOLUTE, "R-SEG-04", f"absolute values with {k} contexts")
    table = Table([], [], [], [])
    for _ in range(k if coding.positions == SPARSE else 0):
        parameter = reader.u8()
        reader.check(parameter in (*range(24), BITMAP), "R-SEG-05", f"position parameter {parameter}")
        table.positions.append(parameter)
    for _ in range(k if coding.values == SMALL else 0):
        table.widths.append(reader.u8())
        reader.check(table.widths[-1] in (1, 2, 4, 8), "R-SEG-06", f"symbol width {table.widths[-1]}")
    every_lane_counts = coding.positions == DENSE or all(p == BITMAP for p in table.positions)
    for part in parts:
        thresholds, threshold = [], 0
        for _ in range(k - 1):
            threshold += reader.varint()
            reader.check(threshold <= 1 << part.entry.dtype.exponent_bits, "R-SEG-07", f"threshold {threshold}")
            thresholds.append(threshold)
        counts = [reader.varint() for _ in range(k)]
        total = sum(counts)
        good = total == part.lanes if every_lane_counts else total <= part.lanes
        reader.check(good, "R-SEG-08", f"counts add up to {total}, the part has {part.lanes} lanes")
        table.thresholds.append(thresholds)
        table.counts.append(counts)
    reader.check(reader.left() == 0, "R-SEG-09", "bytes after the last count")
    return table


# A decoded segment. `ranks[c][p]` are the coded ranks and `values[c][p]` the values of context c in part p (absolute:
# the new lanes; relative: the differences).
Segment = namedtuple("Segment", "parts table ranks values")


def decode_segment(stored, entry, where):
    """Does steps 8.1 to 8.4 of the validation order: all checks that do not need the base."""
    check(crc32(stored) == entry.crc, "R-SEG-01", "segment CRC", where)
    streams = _read_directory(stored, stream_names(entry.coding), where)

    def take(name, needed=None, limit=None):
        """Returns the raw bytes of a stream whose length is known (R-STR-04) or at least bounded (R-LIM-03)."""
        raw_length, data = streams[name]
        at = f"{name} of {where}"
        check(needed is None or raw_length == needed, "R-STR-04", f"raw length {raw_length}, not {needed}", at)
        check(limit is None or raw_length <= limit, "R-LIM-03", f"raw length {raw_length} above {limit}", at)
        return read_stream(data, raw_length, at)

    table = parse_table(take("table", limit=33 + 94 * len(entry.parts)), entry.coding, entry.parts, where)
    ranks = decode_positions(take, table, entry.parts, where)
    values = decode_values(take, entry.coding, table, entry.parts, ranks, where)
    return Segment(entry.parts, table, ranks, values)


def _read_directory(stored, names, where):
    """Returns name -> (raw length, stored bytes)."""
    reader, lengths = Reader(stored, f"directory of {where}"), []
    for name in names:
        raw_length, stored_length = reader.varint(), reader.varint()
        reader.check(stored_length <= raw_length, "R-STR-01", f"{name}: stored length above raw length")
        lengths.append((raw_length, stored_length))
    total = sum(stored_length for _, stored_length in lengths)
    reader.check(total == reader.left(), "R-SEG-02", f"streams of {total} bytes in {reader.left()}")
    return {name: (raw, reader.bytes(length)) for name, (raw, length) in zip(names, lengths)}


def encode_segment(coding, streams, level):
    """Returns the stored bytes of a segment from its raw streams."""
    stored = {name: write_stream(streams[name], level) for name in stream_names(coding)}
    directory = [varint(len(streams[name])) + varint(len(data)) for name, data in stored.items()]
    return b"".join([*directory, *stored.values()])
