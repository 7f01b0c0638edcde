"""The parts of a link file (SPEC sections 4 to 7) as objects. `Link.encode` computes lengths, checksums and digests,
except for fields that were set to something else."""
import struct
from dataclasses import dataclass, field

from .model import Dtype, State, byte_length, state_digest, tensor_digest
from .primitives import Raw, crc32, string, u32, u8, varint

MAGIC = b"\x89DCF\r\n\x1a\n"
REMOVE, SET, PATCH = 0, 1, 2
DENSE, SPARSE = 0, 1
ABSOLUTE, PLANES, SMALL = 0, 1, 2  # values: absolute, relative planes, relative small
BITMAP = 32  # position parameter


@dataclass
class Stream:
    """Section 5. With `stored` None, the stream is stored as it is. The lengths in the directory can differ from those
    of the bytes."""
    raw: bytes
    stored: bytes = None
    raw_length: int = None
    stored_length: int = None

    def bytes(self):
        return self.raw if self.stored is None else self.stored

    def directory(self):
        raw_length = len(self.raw) if self.raw_length is None else self.raw_length
        stored_length = len(self.bytes()) if self.stored_length is None else self.stored_length
        return varint(raw_length) + varint(stored_length)


@dataclass
class Table:
    """Section 7.1. `parts` holds a pair of lists, threshold increments and counts, for each part."""
    positions: list
    widths: list
    parts: list
    contexts: int = None
    tail: bytes = b""

    def encode(self):
        contexts = len(self.parts[0][1]) if self.contexts is None else self.contexts
        out = bytes([contexts, *self.positions, *self.widths])
        for increments, counts in self.parts:
            out += b"".join(map(varint, [*increments, *counts]))
        return out + self.tail


def stream_names(lane_bytes, positions, values):
    names = ["table"]
    if positions == SPARSE:
        names += ["bitmap", "gap low", "gap high", "gap escape"]
    if values == SMALL:
        return names + ["sign", "magnitude", "magnitude escape"]
    return names + [f"plane {j}" for j in range(lane_bytes)]


@dataclass
class Segment:
    """Sections 6.1 and 7. `streams` has a Stream for every name except "table", which is made from `table` unless it is
    there, too; `stored` replaces all bytes of the segment."""
    lane_bytes: int
    positions: int
    values: int
    table: Table
    streams: dict
    tail: bytes = b""
    stored: bytes = None
    coding: object = None
    stored_length: object = None
    crc: int = None
    parts: list = field(default_factory=list)  # the coded parts, as objects of coding.py; not in the file

    def stream(self, name):
        if name == "table" and "table" not in self.streams:
            return Stream(self.table.encode())
        return self.streams[name]

    def set_raw(self, name, raw):
        """Replaces the content of a stream, stored as it is."""
        self.streams[name] = Stream(bytes(raw))

    def compress(self, name, stored):
        """Replaces the stored form; `stored` is a function of the raw bytes."""
        self.streams[name] = Stream(self.stream(name).raw, stored(self.stream(name).raw))

    def names(self):
        return stream_names(self.lane_bytes, self.positions, self.values)

    def encode(self):
        if self.stored is not None:
            return self.stored
        streams = [self.stream(name) for name in self.names()]
        return b"".join(s.directory() for s in streams) + b"".join(s.bytes() for s in streams) + self.tail

    def entry(self):
        body = self.encode()
        coding = self.lane_bytes.bit_length() - 1 | self.positions << 2 | self.values << 3
        return (u8(coding if self.coding is None else self.coding)
                + varint(len(body) if self.stored_length is None else self.stored_length)
                + u32(crc32(body) if self.crc is None else self.crc))


@dataclass
class Entry:
    """A tensor entry (section 6.2). `digests`: its digests in the index, one for each piece, at least one; none for a
    removal."""
    name: object
    operation: object
    dtype: object = None  # Dtype, or a code
    shape: tuple = ()
    segments: list = field(default_factory=list)
    digests: list = field(default_factory=list)
    dimensions: object = None  # their number, if it is to be wrong
    coded: list = field(default_factory=list)  # lanes of the tensor that some segment codes; not in the file

    def encode(self):
        out = string(self.name) + u8(self.operation)
        if self.operation == REMOVE:
            return out
        out += (self.dtype.encode() if isinstance(self.dtype, Dtype) else u8(self.dtype)) + varint(len(self.shape) if self.dimensions is None else self.dimensions)
        return out + b"".join(map(varint, [*self.shape, *self.segments]))


@dataclass
class Link:
    """A link file. `index` and `index_stored` replace the index's raw and stored bytes; `header` has fields that differ
    from the content."""
    base: State
    target: State
    metadata: list = field(default_factory=list)
    segments: list = field(default_factory=list)
    entries: list = field(default_factory=list)
    index: bytes = None
    index_stored: object = None  # bytes, or a function of the raw bytes
    index_tail: bytes = b""
    counts: dict = field(default_factory=dict)  # "metadata", "segments", "entries": a wrong count
    header: dict = field(default_factory=dict)
    extension: bytes = b""
    header_crc: int = None
    tail: bytes = b""

    def index_raw(self):
        if self.index is not None:
            return self.index
        out = varint(self.counts.get("metadata", len(self.metadata)))
        out += b"".join(string(key) + string(value) for key, value in self.metadata)
        out += varint(self.counts.get("segments", len(self.segments))) + b"".join(s.entry() for s in self.segments)
        out += varint(self.counts.get("entries", len(self.entries))) + b"".join(e.encode() for e in self.entries)
        return out + b"".join(digest for e in self.entries for digest in e.digests) + self.index_tail

    def body(self):
        return b"".join(segment.encode() for segment in self.segments)

    def encode(self):
        raw, body = self.index_raw(), self.body()
        stored = self.index_stored(raw) if callable(self.index_stored) else self.index_stored
        stored = raw if stored is None else stored
        fields = dict(magic=MAGIC, version=1, incompatible=0, compatible=0, reserved=0, base=self.base.digest(),
                      target=self.target.digest(), index_stored=len(stored), index_raw=len(raw), segments=len(body),
                      extension=len(self.extension), index_crc=crc32(stored)) | self.header
        head = struct.pack("<8sIIII32s32sQQQQI", *fields.values())
        crc = u32(crc32(head) if self.header_crc is None else self.header_crc)
        return head + crc + stored + body + self.extension + self.tail

    def promised(self):
        """Returns the state digest that follows from the base's tensors and the digests of the index (R-APP-05)."""
        tensors = {name: (item.dtype, item.shape, len(item.data), item.digest())
                   for name, item in self.base.tensors.items()}
        for entry in self.entries:
            tensors.pop(entry.name, None)
            if entry.operation != REMOVE:
                tensors[entry.name] = (entry.dtype, entry.shape, byte_length(entry.dtype, entry.shape),
                                       tensor_digest(entry.digests))
        return state_digest(tensors)

    def features(self):
        """Returns the features that a reader of the link must know."""
        found = set()
        for segment in self.segments:
            found.add("sparse" if segment.positions == SPARSE else "dense")
            found.add(("absolute", "relative-planes", "relative-small")[segment.values])
            found |= {"bitmap" if p == BITMAP else "gaps" for p in segment.table.positions}
            found |= {name.replace(" ", "-") for name in ("gap escape", "magnitude escape")
                      if name in segment.streams and segment.streams[name].raw}
            if len(segment.table.parts[0][1]) > 1:
                found.add("contexts")
            if any(stream.stored is not None for stream in segment.streams.values()):
                found.add("zstd")
        for entry in self.entries:
            if not isinstance(entry.operation, Raw):
                found.add(("remove", "set", "patch")[entry.operation])
            if len(entry.segments) > 1:
                found.add("pieces")
        if self.metadata:
            found.add("metadata")
        if self.index_stored is not None:
            found.add("zstd")
        return found
