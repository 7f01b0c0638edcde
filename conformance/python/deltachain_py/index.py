"""The index (section 6): metadata, segment entries, tensor entries, digests."""
from dataclasses import dataclass, field

import re

from .errors import SEGMENT_BYTES, SEGMENT_PIECES, check
from .model import (BY_NAME, DESCRIBED, DTYPES, EMPTY_DIGEST, Dtype, Row, elements, piece_count, piece_range,
                    tensor_digest)
from .primitives import Reader, string, varint

REMOVE, SET, PATCH = 0, 1, 2
MOST_BITS = 65536  # per element of a described dtype
DENSE, SPARSE = 0, 1
ABSOLUTE, PLANES, SMALL = 0, 1, 2  # values: absolute, relative planes, relative small


@dataclass(frozen=True)
class Coding:
    """The coding byte of a segment (section 6.1)."""
    lane_bytes: int
    positions: int
    values: int

    def encode(self):
        return self.lane_bytes.bit_length() - 1 | self.positions << 2 | self.values << 3

    @staticmethod
    def decode(byte, reader):
        coding = Coding(1 << (byte & 3), byte >> 2 & 1, byte >> 3 & 3)
        good = byte < 0x20 and coding.values != 3 and not (coding.values == SMALL and coding.positions == DENSE)
        reader.check(good, "R-IDX-05", f"coding byte {byte:#04x}")
        return coding


@dataclass
class Part:
    """One piece as coded in a segment."""
    entry: "TensorEntry"
    piece: int
    coding: Coding

    @property
    def range(self):
        return piece_range(self.entry.byte_length, self.piece)

    @property
    def lanes(self):
        start, end = self.range
        return (end - start) // self.entry.dtype.lane_bytes


@dataclass
class SegmentEntry:
    coding: Coding
    stored_length: int
    crc: int
    parts: list = field(default_factory=list)  # in ascending order of (tensor entry, piece)


@dataclass
class TensorEntry:
    name: str
    operation: int
    dtype: object = None
    shape: tuple = ()
    segments: list = field(default_factory=list)  # for each piece: 0 or segment number + 1
    digests: list = None                          # promised: of each piece, or a single one

    @property
    def byte_length(self):
        return elements(self.shape) * self.dtype.bits // 8

    def row(self):
        return Row(self.dtype, self.shape, tensor_digest(self.digests))


@dataclass
class Index:
    metadata: list  # pairs
    segments: list
    tensors: list

    def encode(self):
        out = bytearray(varint(len(self.metadata)))
        for key, value in self.metadata:
            out += string(key) + string(value)
        out += varint(len(self.segments))
        for entry in self.segments:
            out += bytes([entry.coding.encode()]) + varint(entry.stored_length) + entry.crc.to_bytes(4, "little")
        out += varint(len(self.tensors))
        for entry in self.tensors:
            out += string(entry.name) + bytes([entry.operation])
            if entry.operation != REMOVE:
                out += entry.dtype.encode() + varint(len(entry.shape))
                for number in (*entry.shape, *entry.segments):
                    out += varint(number)
        for entry in self.tensors:
            if entry.operation != REMOVE:
                out += b"".join(entry.digests)
        return bytes(out)


def parse_index(raw, header, limits):
    """Does step 6 of the validation order: fields in file order, then the rules about the whole index."""
    reader = Reader(raw, "index")
    index = Index(_read_metadata(reader, limits), [], [])
    for _ in range(reader.limited(limits.segments, "segment count")):
        coding = Coding.decode(reader.u8(), reader)
        index.segments.append(SegmentEntry(coding, reader.varint(), int.from_bytes(reader.bytes(4), "little")))
    latest = {}  # (dtype, coding): the segment of the last piece (R-IDX-19)
    for _ in range(reader.limited(limits.tensors, "tensor count")):
        previous = index.tensors[-1].name if index.tensors else None
        index.tensors.append(_read_tensor(reader, previous, index.segments, latest, limits))
    for entry in index.tensors:
        if entry.operation != REMOVE:
            entry.digests = [reader.bytes(32) for _ in entry.segments or [0]]
    reader.check(reader.left() == 0, "R-IDX-02", "bytes after the last digest")
    for number, segment in enumerate(index.segments):
        check(segment.parts, "R-IDX-12", "no piece names it", f"segment {number}")
        check(len(segment.parts) <= SEGMENT_PIECES, "R-LIM-02", "too many pieces", f"segment {number}")
        size = sum(end - start for start, end in (part.range for part in segment.parts))
        check(size <= SEGMENT_BYTES, "R-LIM-02", "too many bytes of pieces", f"segment {number}")
        width = segment.coding.lane_bytes
        most = 512 + 94 * len(segment.parts) + (width + 8) * (size // width)
        check(segment.stored_length <= most, "R-LIM-06", f"{segment.stored_length} bytes", f"segment {number}")
    total = sum(segment.stored_length for segment in index.segments)
    check(total == header.segments_length, "R-IDX-14", f"segments add up to {total}", "index")
    if header.base == EMPTY_DIGEST:
        for entry in index.tensors:
            check(entry.operation == SET, "R-IDX-17", f"base is empty, so {entry.name!r} must be set", "index")
    check(index.tensors or header.base == header.target, "R-IDX-18", "no entry, yet base is not target", "index")
    size = sum(entry.byte_length for entry in index.tensors if entry.operation == SET)
    check(limits.set_bytes is None or size <= limits.set_bytes, "R-LIM-04", f"{size} bytes of set tensors", "index")
    coded = sum(end - start for segment in index.segments for start, end in (part.range for part in segment.parts))
    check(limits.coded_bytes is None or coded <= limits.coded_bytes, "R-LIM-08", f"{coded} coded bytes", "index")
    return index


def _read_metadata(reader, limits):
    metadata, total = [], 0
    for _ in range(reader.limited(limits.metadata_entries, "metadata count")):
        key = reader.string(limits.metadata_bytes - total, "metadata bytes before it, and key")
        total += len(key.encode())
        reader.check(not metadata or metadata[-1][0].encode() < key.encode(), "R-IDX-03", "metadata keys not ascending")
        value = reader.string(limits.metadata_bytes - total, "metadata bytes before it, and value")
        total += len(value.encode())
        metadata.append((key, value))
    return metadata


def _read_dtype(reader, limits):
    code = reader.u8()
    reader.check(code in DTYPES or code == DESCRIBED, "R-IDX-08", f"dtype code {code}")
    if code != DESCRIBED:
        return DTYPES[code]
    name = reader.string(limits.name_bytes, "name of a dtype")
    bits = reader.varint()
    lane_bytes, sign, exponent = reader.bytes(3)
    good = (re.fullmatch("[A-Z][A-Z0-9_]{0,31}", name) and name not in BY_NAME and 1 <= bits <= MOST_BITS
            and lane_bytes in (1, 2, 4, 8) and sign <= 1 and exponent <= (min(8 * lane_bytes - 1, 11) if sign else 0))
    reader.check(good, "R-IDX-20", f"no description of a dtype: {name!r}, {bits}, {lane_bytes}, {sign}, {exponent}")
    return Dtype(DESCRIBED, name, bits, lane_bytes, sign == 1, exponent)


def _read_tensor(reader, previous_name, segments, latest, limits):
    entry = TensorEntry(reader.string(limits.name_bytes, "name"), None)
    ascending = previous_name is None or previous_name.encode() < entry.name.encode()
    reader.check(ascending, "R-IDX-06", "tensor names not ascending")
    entry.operation = reader.u8()
    reader.check(entry.operation <= PATCH, "R-IDX-07", f"operation {entry.operation}")
    if entry.operation == REMOVE:
        return entry
    entry.dtype = _read_dtype(reader, limits)
    count = reader.limited(limits.dimensions, "number of dimensions")
    entry.shape = tuple(reader.varint() for _ in range(count))
    bits = elements(entry.shape) * entry.dtype.bits
    reader.check(bits <= 8 * limits.tensor_bytes, "R-LIM-01", "tensor is too large")
    reader.check(bits % (8 * entry.dtype.lane_bytes) == 0, "R-IDX-09", "elements do not fill whole lanes")
    for piece in range(piece_count(bits // 8)):
        number = reader.varint()
        reader.check(number <= len(segments), "R-IDX-10", f"segment {number} of {len(segments)}")
        if number:
            segment = segments[number - 1]
            reader.check(segment.coding.lane_bytes == entry.dtype.lane_bytes, "R-IDX-11", "lanes of different width")
            good = entry.operation == PATCH or segment.coding.values == ABSOLUTE
            reader.check(good, "R-IDX-16", "relative values for a set tensor")
            kind = entry.dtype, segment.coding
            reader.check(number >= latest.get(kind, 0), "R-IDX-19", "segment before that of an earlier piece")
            latest[kind] = number
            segment.parts.append(Part(entry, piece, segment.coding))
        entry.segments.append(number)
    return entry
