"""The model: dtypes, tensors, states, pieces (section 2) and digests (section 3).

A state is a dict from name (str) to Tensor.
"""
import struct
from dataclasses import dataclass

from blake3 import blake3

from .primitives import ceil_div, string, varint

PIECE_BYTES = 1 << 24
DESCRIBED = 255  # the code of dtypes that are not in the table and have their own description


@dataclass(frozen=True)
class Dtype:
    code: int
    name: str
    bits: int          # per element
    lane_bytes: int
    sign_magnitude: bool
    exponent_bits: int

    def encode(self):
        """Returns the code and, for a described dtype, the description, as in the index and in the state digest."""
        fields = varint(self.bits) + bytes([self.lane_bytes, self.sign_magnitude, self.exponent_bits])
        return bytes([self.code]) + (string(self.name) + fields if self.code == DESCRIBED else b"")

    @property
    def width(self):
        """W: bits of a lane."""
        return 8 * self.lane_bytes

    def exponent(self, lane):
        """Returns the exponent field of a lane; 0 if the dtype has none."""
        return (lane >> (self.width - 1 - self.exponent_bits)) & ((1 << self.exponent_bits) - 1)


_TABLE = [("BOOL", 8, 0), ("F4", 4, 0), ("F6_E2M3", 6, 0), ("F6_E3M2", 6, 0), ("U8", 8, 0), ("I8", 8, 0),
          ("F8_E5M2", 8, 5), ("F8_E4M3", 8, 4), ("F8_E8M0", 8, 0), ("F8_E4M3FNUZ", 8, 4), ("F8_E5M2FNUZ", 8, 5),
          ("I16", 16, 0), ("U16", 16, 0), ("F16", 16, 5), ("BF16", 16, 8), ("I32", 32, 0), ("U32", 32, 0),
          ("F32", 32, 8), ("C64", 64, 0), ("F64", 64, 11), ("I64", 64, 0), ("U64", 64, 0)]
# A lane is one element, or one byte of the packed dtypes. The dtypes with exponent bits are exactly the sign-magnitude
# ones.
DTYPES = {code: Dtype(code, name, bits, max(bits, 8) // 8, exponent > 0, exponent)
          for code, (name, bits, exponent) in enumerate(_TABLE, 1)}
BY_NAME = {dtype.name: dtype for dtype in DTYPES.values()}


def elements(shape):
    """Returns the number of elements (section 2.2): 0 if any dimension is 0, 1 for a scalar."""
    count = 0 if 0 in shape else 1
    for dimension in shape:
        count *= dimension
    return count


@dataclass(frozen=True)
class Tensor:
    dtype: Dtype
    shape: tuple
    data: bytes

    def digests(self):
        """Returns the digest of each piece, or that of no data if there is no piece."""
        ranges = [piece_range(len(self.data), p) for p in range(piece_count(len(self.data)))] or [(0, 0)]
        return [blake3(self.data[start:end]).digest() for start, end in ranges]

    def row(self):
        return Row(self.dtype, self.shape, tensor_digest(self.digests()))


@dataclass(frozen=True)
class Row:
    """The facts about a tensor in a state digest. The *table* of a state is a dict from name to Row."""
    dtype: Dtype
    shape: tuple
    digest: bytes

    @property
    def byte_length(self):
        return elements(self.shape) * self.dtype.bits // 8


def tensor_digest(digests):
    """Returns the tensor digest, from the piece digests, or the one digest of a tensor with at most one piece."""
    return digests[0] if len(digests) == 1 else blake3(b"".join(digests)).digest()


def piece_count(byte_length):
    return ceil_div(byte_length, PIECE_BYTES)


def piece_range(byte_length, piece):
    """Returns the first byte of a piece, and the byte after its last one."""
    return piece * PIECE_BYTES, min(byte_length, (piece + 1) * PIECE_BYTES)


_FORMAT = {1: "B", 2: "H", 4: "I", 8: "Q"}


def to_lanes(data, lane_bytes):
    return struct.unpack(f"<{len(data) // lane_bytes}{_FORMAT[lane_bytes]}", data)


def from_lanes(lanes, lane_bytes):
    return struct.pack(f"<{len(lanes)}{_FORMAT[lane_bytes]}", *lanes)


def table_of(state):
    return {name: tensor.row() for name, tensor in state.items()}


def table_digest(table):
    """Returns the state digest."""
    def u64(*values):
        return struct.pack(f"<{len(values)}Q", *values)

    hasher = blake3(u64(len(table)), derive_key_context="deltachain 2026-11-21 state digest v1")
    for name, row in sorted((name.encode("utf-8"), row) for name, row in table.items()):
        hasher.update(u64(len(name)) + name + row.dtype.encode() + u64(len(row.shape), *row.shape))
        hasher.update(u64(row.byte_length) + row.digest)
    return hasher.digest()


def state_digest(state):
    return table_digest(table_of(state))


EMPTY_DIGEST = table_digest({})
