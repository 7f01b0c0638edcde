"""The model (SPEC section 2) and digests (section 3): dtypes, tensors, states, and the files that hold states."""
import json
from dataclasses import dataclass

from blake3 import blake3

from .primitives import ceil_div, string, text_bytes, u8, u64, varint

PIECE = 1 << 24
DESCRIBED = 255  # code of a dtype that has its description with it


@dataclass(frozen=True)
class Dtype:
    code: int
    name: str
    bits: int  # of an element
    lane_bytes: int
    sign_magnitude: bool
    exponent_bits: int

    def encode(self):
        """Returns the form in a tensor entry: the code, and for a described dtype the description (section 6.2)."""
        if self.code != DESCRIBED:
            return u8(self.code)
        fields = (self.lane_bytes, self.sign_magnitude, self.exponent_bits)
        return u8(self.code) + string(self.name) + varint(self.bits) + b"".join(map(u8, fields))


# The table of section 2.1.
DTYPES = {row[1]: Dtype(*row) for row in (
    (1, "BOOL", 8, 1, False, 0), (2, "F4", 4, 1, False, 0), (3, "F6_E2M3", 6, 1, False, 0),
    (4, "F6_E3M2", 6, 1, False, 0), (5, "U8", 8, 1, False, 0), (6, "I8", 8, 1, False, 0),
    (7, "F8_E5M2", 8, 1, True, 5), (8, "F8_E4M3", 8, 1, True, 4), (9, "F8_E8M0", 8, 1, False, 0),
    (10, "F8_E4M3FNUZ", 8, 1, True, 4), (11, "F8_E5M2FNUZ", 8, 1, True, 5), (12, "I16", 16, 2, False, 0),
    (13, "U16", 16, 2, False, 0), (14, "F16", 16, 2, True, 5), (15, "BF16", 16, 2, True, 8),
    (16, "I32", 32, 4, False, 0), (17, "U32", 32, 4, False, 0), (18, "F32", 32, 4, True, 8),
    (19, "C64", 64, 8, False, 0), (20, "F64", 64, 8, True, 11), (21, "I64", 64, 8, False, 0),
    (22, "U64", 64, 8, False, 0))}


def described(name, bits, lane_bytes, sign_magnitude=False, exponent_bits=0):
    return Dtype(DESCRIBED, name, bits, lane_bytes, sign_magnitude, exponent_bits)


@dataclass(frozen=True)
class Tensor:
    dtype: Dtype
    shape: tuple
    data: bytes

    def digests(self):
        """Returns the digests in an index (section 6): the tensor's digest, or those of its pieces if there are
        several."""
        return [blake3(self.data[start:start + PIECE]).digest() for start in range(0, len(self.data) or 1, PIECE)]

    def digest(self):
        return tensor_digest(self.digests())


def tensor_digest(digests):
    """Section 3: computes the tensor digest from the digests in an index."""
    return digests[0] if len(digests) == 1 else blake3(b"".join(digests)).digest()


def tensor(dtype, lanes, shape=None):
    """Makes a tensor from its lanes as numbers, or from bytes; by default with one dimension. `dtype`: a name of the
    table, or a Dtype."""
    dtype = DTYPES.get(dtype, dtype)
    data = lanes if isinstance(lanes, bytes) else b"".join(lane.to_bytes(dtype.lane_bytes, "little") for lane in lanes)
    shape = (len(data) * 8 // dtype.bits,) if shape is None else tuple(shape)
    assert byte_length(dtype, shape) == len(data), f"{dtype.name} {shape} is not {len(data)} bytes"
    return Tensor(dtype, shape, data)


def byte_length(dtype, shape):
    elements = 0 if 0 in shape else 1
    for dimension in shape:
        elements *= dimension
    return elements * dtype.bits // 8


def piece_count(length):
    return ceil_div(length, PIECE)


def state_digest(tensors):
    """Section 3: from {name: (dtype, shape, bytes, tensor digest)}."""
    preimage = [u64(len(tensors))]
    for raw, name in sorted((text_bytes(name), name) for name in tensors):
        dtype, shape, length, digest = tensors[name]
        preimage += [u64(len(raw)), raw, dtype.encode(), u64(len(shape)), *map(u64, shape), u64(length), digest]
    return blake3(b"".join(preimage), derive_key_context="deltachain 2026-11-21 state digest v1").digest()


class State:
    """A set of tensors with distinct names. `label` is the file's name below vectors/states/."""

    def __init__(self, label, tensors):
        self.label, self.tensors = label, dict(sorted(tensors.items(), key=lambda item: text_bytes(item[0])))

    def __deepcopy__(self, memo):
        return self  # never changed

    def digest(self):
        return state_digest({name: (item.dtype, item.shape, len(item.data), item.digest())
                             for name, item in self.tensors.items()})

    def changed(self, label, **tensors):
        """Returns a copy with some tensors replaced; None removes."""
        merged = self.tensors | tensors
        return State(label, {name: item for name, item in merged.items() if item is not None})

    suffix = ".safetensors"

    def file(self):
        """Returns the state as safetensors: tensors with the widest lanes first, so that each is aligned. None if a
        dtype is not one of safetensors."""
        if any(item.dtype.code == DESCRIBED for item in self.tensors.values()):
            return None
        header, body = {}, bytearray()
        for name, item in sorted(self.tensors.items(), key=lambda pair: -pair[1].dtype.lane_bytes):
            header[name] = {"dtype": item.dtype.name, "shape": list(item.shape),
                            "data_offsets": [len(body), len(body) + len(item.data)]}
            body += item.data
        raw = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
        raw += b" " * (-len(raw) % 8)
        return u64(len(raw)) + raw + bytes(body)


class RuleState(State):
    """A large state, kept as a text: byte i of a tensor's data is (i * multiply + add) mod modulus."""

    suffix = ".json"

    def __init__(self, label, rules):
        self.rules = rules
        super().__init__(label, {rule["name"]: self.tensor(rule) for rule in rules})

    @staticmethod
    def tensor(rule):
        dtype, shape = DTYPES[rule["dtype"]], tuple(rule["shape"])
        period = bytes((i * rule["multiply"] + rule["add"]) % rule["modulus"] for i in range(rule["modulus"]))
        length = byte_length(dtype, shape)
        return Tensor(dtype, shape, (period * ceil_div(length, len(period)))[:length])

    def file(self):
        return (json.dumps({"tensors": self.rules}, indent=1) + "\n").encode()


EMPTY = State("empty", {})
