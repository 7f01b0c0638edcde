"""Random states, and files made by hand: every field can have a wrong value, with right CRCs."""
import random
import struct

from deltachain_py import link as dcf
from deltachain_py.errors import DcfError, Limits
from deltachain_py.header import MAGIC
from deltachain_py.index import PATCH, Coding, Index, SegmentEntry, TensorEntry
from deltachain_py.model import BY_NAME, DTYPES, Tensor, state_digest
from deltachain_py.primitives import crc32
from deltachain_py.segment import encode_segment


def random_tensor(rng, dtype, count=None):
    if count is None:
        count = rng.choice([1, 2, 7, 40, 130])
    count *= 8 if dtype.bits < 8 else 1  # whole bytes
    shape = (count,) if rng.random() < 0.5 else (1, count, 1)
    data = bytearray(rng.randbytes(count * dtype.bits // 8))
    return Tensor(dtype, shape, bytes(data))


def random_state(rng, dtypes=None, count=None):
    return {f"t.{d.name}": random_tensor(rng, d, count) for d in dtypes or DTYPES.values()}


def mutate(rng, state, density):
    """Changes lanes: some a little, some to anything."""
    result = {}
    for name, tensor in state.items():
        data, width = bytearray(tensor.data), tensor.dtype.lane_bytes
        for start in range(0, len(data), width):
            if rng.random() < density:
                lane = int.from_bytes(data[start:start + width], "little")
                step = rng.choice([1, -1, 2, -3, 5, rng.getrandbits(8 * width)])
                data[start:start + width] = ((lane + step) % (1 << 8 * width)).to_bytes(width, "little")
        result[name] = Tensor(tensor.dtype, tensor.shape, bytes(data))
    return result


def header(base, target, index_stored=0, index_raw=0, segments=0, index_crc=0, magic=MAGIC, version=1, incompatible=0,
           compatible=0, reserved=0, extension=0):
    raw = struct.pack("<8sIIII32s32sQQQQI", magic, version, incompatible, compatible, reserved, base, target,
                      index_stored, index_raw, segments, extension, index_crc)
    return raw + crc32(raw).to_bytes(4, "little")


def make(index, body=b"", base=None, target=None, stored_index=None, **fields):
    """Returns a file with right CRCs from an Index (or its raw bytes) and the bytes of the segments."""
    raw = index.encode() if isinstance(index, Index) else bytes(index)
    stored = raw if stored_index is None else stored_index
    base = base if isinstance(base, bytes) else state_digest(base or {})
    target = target if isinstance(target, bytes) else state_digest(target or {})
    values = dict(index_stored=len(stored), index_raw=len(raw), segments=len(body), index_crc=crc32(stored)) | fields
    return header(base, target, **values) + stored + body


def remake(data, change_index=None, change_segments=None):
    """Parses a good file, lets functions change the Index or the list of stored segments, and writes it again."""
    link = dcf.parse(data)
    bodies = [bytes(stored) for _, _, stored in link.stored_segments()]
    if change_segments:
        change_segments(bodies)
        for entry, stored in zip(link.index.segments, bodies):
            entry.stored_length, entry.crc = len(stored), crc32(stored)
    if change_index:
        change_index(link.index)
    return make(link.index, b"".join(bodies), link.header.base, link.header.target)


def one_tensor(dtype="U8", values=(0,) * 8):
    lanes = struct.pack(f"<{len(values)}{ {1: 'B', 2: 'H', 4: 'I', 8: 'Q'}[BY_NAME[dtype].lane_bytes]}", *values)
    return {"t": Tensor(BY_NAME[dtype], (len(values),), lanes)}


def segment_link(base, target, positions, values, streams, stored=None):
    """Returns a link that patches tensor `t` by one segment with the given raw streams."""
    tensor = target["t"]
    coding = Coding(tensor.dtype.lane_bytes, positions, values)
    if stored is None:
        stored = encode_segment(coding, streams, 3)
    entry = TensorEntry("t", PATCH, tensor.dtype, tensor.shape, [1], tensor.digests())
    return make(Index([], [SegmentEntry(coding, len(stored), crc32(stored))], [entry]), stored, base, target)


def verify(data, base=None, limits=Limits()):
    """Checks a link, or applies it if there is a base."""
    return dcf.check_link(data, limits) if base is None else dcf.apply(data, base, limits)


def rule_of(function, *arguments):
    """Returns the rule that a call violates; None if it succeeds."""
    try:
        function(*arguments)
    except DcfError as error:
        return error.rule
    return None


def seeded(seed):
    return random.Random(seed)
