"""Links, damaged mostly in ways that get past the checksums.

The index, a directory and a table are lists of fields [kind, value], kind one of u8, u32, varint, string, bytes, raw.
"""
from dataclasses import dataclass, field, replace
from math import gcd

from deltachain_py import link as dcf
from deltachain_py.errors import DcfError, Limits
from deltachain_py.header import MAGIC, SIZE
from deltachain_py.index import ABSOLUTE, PATCH, PLANES, REMOVE, SET, SMALL, SPARSE, Coding
from deltachain_py.model import BY_NAME, DESCRIBED, DTYPES, Tensor, state_digest
from deltachain_py.primitives import Reader, crc32, varint
from deltachain_py.segment import stream_names
from deltachain_py.streams import read_stream, write_stream

from .extension import extension_area
from .frames import stored_form, strange_frame
from .states import change_tensor
from .texts import damage_text, layout_of
from .values import BAD_STRINGS, BAD_VARINTS, NUMBERS, damage_bytes, near


def encode_fields(fields):
    out = bytearray()
    for kind, value in fields:
        if kind == "u8":
            out.append(value & 0xFF)
        elif kind == "u32":
            out += (value & 0xFFFFFFFF).to_bytes(4, "little")
        elif kind == "varint":
            out += varint(value)
        elif kind == "string":
            out += varint(len(value)) + value
        else:
            out += value
    return bytes(out)


def index_fields(index, bodies):
    """Returns the fields of an index; lengths and CRCs of the segments are those of `bodies`."""
    fields = [["varint", len(index.metadata)]]
    for pair in index.metadata:
        fields += [["string", text.encode()] for text in pair]
    fields.append(["varint", len(index.segments)])
    for entry, body in zip(index.segments, bodies):
        fields += [["u8", entry.coding.encode()], ["varint", len(body)], ["u32", crc32(body)]]
    fields.append(["varint", len(index.tensors)])
    for entry in index.tensors:
        fields += [["string", entry.name.encode()], ["u8", entry.operation]]
        if entry.operation != REMOVE:
            d = entry.dtype
            fields.append(["u8", d.code])
            if d.code == DESCRIBED:
                numbers = d.lane_bytes, int(d.sign_magnitude), d.exponent_bits
                fields += [["string", d.name.encode()], ["varint", d.bits], *(["u8", n] for n in numbers)]
            fields += [["varint", n] for n in (len(entry.shape), *entry.shape, *entry.segments)]
    fields += [["bytes", digest] for entry in index.tensors if entry.operation != REMOVE for digest in entry.digests]
    return fields


def split_segment(stored, coding):
    """Returns name -> raw bytes of a valid segment's streams."""
    reader = Reader(stored, "")
    lengths = [(name, reader.varint(), reader.varint()) for name in stream_names(coding)]
    return {name: read_stream(reader.bytes(length), raw, "") for name, raw, length in lengths}


def table_fields(raw, coding):
    """Returns the fields of a table: number of contexts, parameters, then varints. Or only varints: an escape stream
    (coding None)."""
    count = 1 + raw[0] * ((coding.positions == SPARSE) + (coding.values == SMALL)) if coding else 0
    reader = Reader(raw, "")
    fields = [["u8", reader.u8()] for _ in range(count)]
    while reader.left():
        fields.append(["varint", reader.varint()])
    return fields

SET_BYTES = 1 << 25  # links that set more are compared by *check* only


@dataclass
class Draft:
    """A valid link, taken apart; `seal` joins it again with right lengths and CRCs."""
    base: dict
    link: dcf.Link
    bodies: list
    codings: list                                # of the bodies as they were
    header: dict = field(default_factory=dict)   # fields with wrong values
    index: list = None                           # fields of the index if they were changed
    index_raw: bytes = None
    index_stored: bytes = None
    area: bytes = b""                            # the extension area
    tail: bytes = b""

    def seal(self):
        raw = self.index_raw
        if raw is None:
            raw = encode_fields(self.index or index_fields(self.link.index, self.bodies))
        stored = write_stream(raw) if self.index_stored is None else self.index_stored
        body = b"".join(self.bodies)
        old = self.link.header
        values = dict(magic=MAGIC, version=1, incompatible=0, compatible=old.compatible, reserved=0, base=old.base,
                      target=old.target, index_stored=len(stored), index_raw=len(raw), segments=len(body),
                      extension=len(self.area), index_crc=crc32(stored)) | self.header
        out, sizes = b"", dict(version=4, incompatible=4, compatible=4, reserved=4, index_crc=4)
        for name, value in values.items():
            size = sizes.get(name, 8)
            out += value if isinstance(value, bytes) else (value % (1 << 8 * size)).to_bytes(size, "little")
        return out + crc32(out).to_bytes(4, "little") + stored + body + self.area + self.tail


def take_apart(base, link):
    segments = list(link.stored_segments())
    area = link.data[link.header.file_length() - link.header.extension_length:]
    return Draft(base, link, [bytes(stored) for _, _, stored in segments], [entry.coding for _, entry, _ in segments],
                 area=area)


def damage_fields(rng, fields):
    fields = [list(f) for f in fields]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not fields:
            break
        at, kind = rng.randrange(len(fields)), rng.random()
        name, value = fields[at]
        if kind < 0.07:
            del fields[at]
        elif kind < 0.12:
            fields.insert(at, list(fields[at]))
        elif kind < 0.17:
            other = rng.randrange(len(fields))
            fields[at], fields[other] = fields[other], fields[at]
        elif name == "u8":
            fields[at][1] = rng.choice([0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 18, 22, 23, 31, 32, 33, 255, value ^ 1,
                                        value + 1, value ^ 1 << rng.randrange(8)])
        elif name == "varint":
            fields[at] = ["raw", rng.choice(BAD_VARINTS)] if rng.random() < 0.12 else ["varint", near(rng, value)]
        elif name == "string":
            kind = rng.random()
            if kind < 0.2:
                fields[at] = ["raw", varint(near(rng, len(value))) + value]
            else:
                fields[at][1] = rng.choice(BAD_STRINGS) if kind < 0.6 else damage_bytes(rng, value)
        elif name == "u32":
            fields[at][1] = value ^ 1 << rng.randrange(32)
        else:
            fields[at][1] = damage_bytes(rng, value)
    return fields


def damage_stream(rng, name, raw, coding):
    if (name == "table" or name.endswith("escape")) and raw and rng.random() < 0.7:
        try:
            return encode_fields(damage_fields(rng, table_fields(raw, coding if name == "table" else None)))
        except DcfError:
            pass  # other damage came first
    if name in ("gap high", "magnitude") and raw and rng.random() < 0.3:
        data = bytearray(raw)
        data[rng.randrange(len(data))] = 255
        return bytes(data)
    if raw and rng.random() < 0.15:  # the last byte has the padding
        return raw[:-1] + bytes([raw[-1] ^ 1 << rng.randrange(8)])
    return damage_bytes(rng, raw)


def damage_segment(rng, draft):
    number = rng.randrange(len(draft.bodies))
    coding = draft.codings[number]
    streams = split_segment(draft.bodies[number], coding)
    forms, kind = {}, rng.random()
    if kind < 0.15:
        draft.bodies[number] = damage_bytes(rng, draft.bodies[number])
        return
    if kind < 0.8:
        useful = [name for name, raw in streams.items() if raw]
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            name = rng.choice(useful) if rng.random() < 0.85 else rng.choice(list(streams))
            streams[name] = damage_stream(rng, name, streams[name], coding)
            if name in ("gap high", "magnitude") and rng.random() < 0.6:  # one more escape, one more escape value
                escape = "gap escape" if name == "gap high" else "magnitude escape"
                streams[escape] += rng.choice([b"\0", b"\5", varint(rng.choice(NUMBERS)), b"\x80\0"])
    else:
        name = max(streams, key=lambda n: len(streams[n])) if rng.random() < 0.6 else rng.choice(list(streams))
        if streams[name]:
            forms[name] = strange_frame(rng, streams[name])
    directory, body = [], b""
    for name, raw in streams.items():
        stored = forms.get(name) or stored_form(rng, raw)
        directory += [["varint", len(raw)], ["varint", len(stored)]]
        body += stored
    if kind > 0.9 or rng.random() < 0.08:
        directory = damage_fields(rng, directory)
    draft.bodies[number] = encode_fields(directory) + body


def damage_index(rng, draft):
    fields = index_fields(draft.link.index, draft.bodies)
    kind = rng.random()
    if kind < 0.65:
        draft.index = damage_fields(rng, fields)
    elif kind < 0.85:
        draft.index_raw = damage_bytes(rng, encode_fields(fields))
    else:
        draft.index_stored = strange_frame(rng, encode_fields(fields))
        if rng.random() < 0.1:
            draft.header["index_raw"] = near(rng, len(encode_fields(fields)))
        return
    raw = encode_fields(draft.index) if draft.index_raw is None else draft.index_raw
    draft.index_stored = stored_form(rng, raw)


def damage_structure(rng, draft):
    """Changes the index without breaking its grammar, so that later rules are reached."""
    index, kind = draft.link.index, rng.randrange(15)
    entry = rng.choice(index.tensors) if index.tensors else None
    if kind == 0 and index.segments:  # another coding for a segment
        segment = rng.choice(index.segments)
        segment.coding = Coding(rng.choice([segment.coding.lane_bytes] * 3 + [1, 2, 4, 8]), rng.randrange(2),
                                rng.choice([ABSOLUTE, PLANES, SMALL]))
    elif kind == 1 and entry:
        entry.operation = rng.randrange(3)
        if entry.operation != REMOVE and entry.dtype is None:
            entry.dtype, entry.shape, entry.digests = BY_NAME["U8"], (0,), [bytes(32)]
    elif kind == 2 and entry and entry.dtype:
        same = [d for d in DTYPES.values() if d.lane_bytes == entry.dtype.lane_bytes]
        entry.dtype = rng.choice(same if rng.random() < 0.8 else list(DTYPES.values()))
        if rng.random() < 0.4:
            entry.dtype = (describe if rng.random() < 0.7 else damage_description)(rng, entry.dtype)
    elif kind == 3 and entry and entry.segments:
        entry.segments[rng.randrange(len(entry.segments))] = rng.randrange(len(index.segments) + 2)
    elif kind == 4 and entry:
        entry.shape = rng.choice([entry.shape[::-1], entry.shape + (1,), entry.shape + (0,), entry.shape[:-1],
                                  (2,) + entry.shape, (1,) * 255 + entry.shape, (2**63, 2) + entry.shape])
    elif kind == 5 and index.tensors:
        index.tensors.remove(entry)
    elif kind == 6 and entry:
        entry.name = rng.choice(["", "\0", "zz", entry.name + "x", entry.name[:-1]])
        index.tensors.sort(key=lambda e: e.name.encode())
    elif kind == 7 and len(index.segments) > 1:
        a, b = rng.sample(range(len(index.segments)), 2)
        draft.bodies[a], draft.bodies[b] = draft.bodies[b], draft.bodies[a]
        draft.codings[a], draft.codings[b] = draft.codings[b], draft.codings[a]
        if rng.random() < 0.7:  # a legal swap: any order of segments is allowed
            index.segments[a], index.segments[b] = index.segments[b], index.segments[a]
            for tensor in index.tensors:
                tensor.segments = [{a + 1: b + 1, b + 1: a + 1}.get(n, n) for n in tensor.segments]
    elif kind == 8:
        index.metadata = [pair for pair in (("", "x"), ("a", ""), ("deltachain!x", "y"), ("é", "\0"))
                          if rng.random() < 0.6]
    elif kind == 9 and entry and entry.digests:
        entry.digests[rng.randrange(len(entry.digests))] = rng.randbytes(32)
    elif kind == 10 and index.tensors:
        index.tensors.insert(0, replace(entry, name=""))
    elif kind > 11:
        kept = {*draft.base} - {entry.name for entry in index.tensors}
        layout = layout_of(rng, {*kept, *(entry.name for entry in index.tensors if entry.operation != REMOVE)})
        index.metadata = [("deltachain.layout", damage_text(rng, layout) if rng.random() < 0.8 else layout)]
    else:
        index.tensors.append(type(entry)("zzz", REMOVE) if entry else None)
        index.tensors = [e for e in index.tensors if e]


def damage_header(rng, draft):
    name = rng.choice(["version", "incompatible", "compatible", "reserved", "extension", *["area"] * 4, "base",
                       "target", "index_stored", "index_raw", "segments", "index_crc"])
    link = draft.link
    if name == "area":
        draft.area = extension_area(rng)
        return
    if name in ("base", "target"):
        value = rng.choice([link.header.base, link.header.target, state_digest({}), rng.randbytes(32)])
    else:
        value = near(rng, {"index_stored": link.header.index_stored, "index_raw": link.header.index_raw,
                           "segments": link.header.segments_length}.get(name, 0))
    draft.header[name] = value


def damage_base(rng, draft):
    """Changes the base, which the header then (mostly) names."""
    base = dict(draft.base)
    name = rng.choice(list(base)) if base else None
    kind = rng.randrange(5)
    if kind == 0 or name is None:
        base["zzz"] = Tensor(BY_NAME["U8"], (1,), b"z")
    elif kind == 1:
        del base[name]
    elif kind == 2:
        base[name] = change_tensor(rng, base[name], 0.5)
    elif kind == 3:
        base[name] = replace(base[name], shape=(1, *base[name].shape))
    else:
        same = [d for d in DTYPES.values() if d.bits == base[name].dtype.bits] or [describe(rng, base[name].dtype)]
        base[name] = replace(base[name], dtype=rng.choice(same))
    draft.base = base
    if rng.random() < 0.9:
        draft.header["base"] = state_digest(base)


class Anything:
    """Equal to any digests."""

    def __eq__(self, other):
        return True


def promise(data, base):
    """Inserts the digests that the link must promise, if it is well-formed otherwise. Returns None if not."""
    try:
        link = dcf.parse(data, Limits(set_bytes=SET_BYTES))
        for entry in link.index.tensors:
            old = base.get(entry.name)
            if entry.operation == PATCH and (
                    old is None or (old.dtype, len(old.data)) != (entry.dtype, entry.byte_length)):
                return None
            entry.digests = entry.digests and Anything()
        state = dcf.build(link, base)
    except DcfError:
        return None
    for entry in link.index.tensors:
        if entry.operation != REMOVE:
            entry.digests = state[entry.name].digests()
    draft = take_apart(base, link)
    draft.header["target"] = state_digest(state)
    return draft.seal()


def reseal(data, **fields):
    """Returns the link with other digests of base or target."""
    draft = take_apart({}, dcf.parse(data))
    draft.index_stored = data[SIZE:SIZE + draft.link.header.index_stored]
    draft.header = fields | {"index_raw": draft.link.header.index_raw}
    return draft.seal()


def describe(rng, dtype):
    """Returns a described dtype that could replace the other."""
    return replace(dtype, code=DESCRIBED, name=rng.choice(["X", "F16_X", "A" * 32]))


def damage_description(rng, dtype):
    good = describe(rng, dtype)
    return replace(good, **rng.choice([{"name": name} for name in ("x", "", "A" * 33, "BF16", "1", "X-", "É")] + [
        *({"bits": bits} for bits in (0, 12, 127, 128, 144, 255, 256, 65535, 65536, 65537, 2**32, 2**53, 2**64 - 1)),
        {"lane_bytes": 3}, {"lane_bytes": 8}, {"sign_magnitude": 2}, {"sign_magnitude": 0, "exponent_bits": 1},
        *({"exponent_bits": bits} for bits in (1, 11, 12, 8 * dtype.lane_bytes - 1))]))


def divisor(rng, number):
    """Returns a number of bits per element that divides this number of bits."""
    bits = rng.choice([1, 3, 8, 16, 24, 144, 255, 256, 1 << rng.randrange(17), number])
    return bits if 1 <= bits <= 65536 and number % bits == 0 else min(number & -number, 65536) or 8


def described(rng, base, data):
    """Returns a link with described dtypes, made from the link of a state, and for a base with the same dtypes.
    Elements may have any number of bits."""
    link = dcf.parse(data)
    written = [entry for entry in link.index.tensors if entry.dtype]
    sizes = {}
    for tensor in (*base.values(), *written):
        length = len(tensor.data) if isinstance(tensor, Tensor) else tensor.byte_length
        sizes[tensor.dtype] = gcd(sizes.get(tensor.dtype, 0), 8 * length)
    other = {dtype: describe(rng, dtype) for dtype in sizes}
    if rng.random() < 0.5:
        other = {dtype: replace(new, bits=divisor(rng, sizes[dtype])) for dtype, new in other.items()}

    def shape(tensor, length):
        bits = other[tensor.dtype].bits
        return tensor.shape if bits == tensor.dtype.bits else (8 * length // bits,)

    base = {name: replace(tensor, dtype=other[tensor.dtype], shape=shape(tensor, len(tensor.data)))
            for name, tensor in base.items()}
    for entry in written:
        entry.shape, entry.dtype = shape(entry, entry.byte_length), other[entry.dtype]
    draft = take_apart(base, link)
    draft.header["base"] = state_digest(base)
    data = draft.seal()
    return base, promise(data, base) or data


def some_limits(rng, data):
    """Returns limits of a caller (R-LIM-04, R-LIM-08): mostly none, otherwise about as much as the link needs."""
    limits = {"set_bytes": None, "coded_bytes": None}
    if rng.random() < 0.15:
        try:
            index = dcf.parse(data).index
        except DcfError:
            return limits
        sums = {"set_bytes": sum(entry.byte_length for entry in index.tensors if entry.operation == SET),
                "coded_bytes": sum(end - start for segment in index.segments
                                   for start, end in (part.range for part in segment.parts))}
        for name in rng.choice([["set_bytes"], ["coded_bytes"], [*limits]]):
            limits[name] = max(0, sums[name] + rng.choice([-1, 0, 0, 1]))
    return limits


def mutate(rng, base, data):
    """Returns (kind of mutation, base, damaged link)."""
    kind = rng.random()
    if kind < 0.08:
        return "unsealed", base, damage_bytes(rng, data)
    draft = take_apart(base, dcf.parse(data))
    names = []
    for _ in range(rng.choice([1, 1, 1, 1, 2])):
        kind = rng.random()
        if kind < 0.5 and draft.bodies and "segment" not in names:
            damage_segment(rng, draft)
            names.append("segment")
        elif kind < 0.68:
            damage_structure(rng, draft)
            names.append("structure")
        elif kind < 0.9:
            damage_index(rng, draft)
            names.append("index")
        elif kind < 0.95:
            damage_header(rng, draft)
            names.append("header")
        else:
            damage_base(rng, draft)
            names.append("base")
    if rng.random() < 0.01:
        draft.tail = b"\0"
    data = draft.seal()
    if rng.random() < 0.5:
        promised = promise(data, draft.base)
        if promised is not None:
            return "+".join([*names, "promised"]), draft.base, promised
    return "+".join(names), draft.base, data
