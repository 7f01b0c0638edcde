"""Interoperability and differential check of two implementations: the Rust tool and conformance/python.

    python conformance/interop.py --tool PATH/TO/deltachain [--short | --long] [--seed N] [--seconds N] [--keep DIR]

1. Matrix: links that each of the two made are applied by each of the two; the states must be equal bit for bit, by a
   third reader of safetensors (in this file), and so must the state digests.
2. Differential: links are damaged, mostly in ways that get past the checksums, and both readers must give the same
   verdict (accepted, or class and rule id of section 11) for *check* and for *apply* (section 10); if both accept, the
   same state. Every disagreement is kept as a file with its hex dump.

Needs the packages of conformance/python/requirements.txt. Exit status: 0 if all agreed, else 1.
"""
import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "python"))

import zstandard  # noqa: E402

from deltachain_py import link as dcf, safetensors, writer  # noqa: E402
from deltachain_py.errors import DcfError, Limits  # noqa: E402
from deltachain_py.header import MAGIC  # noqa: E402
from deltachain_py.index import ABSOLUTE, DENSE, PLANES, REMOVE, SMALL, SPARSE, Coding  # noqa: E402
from deltachain_py.model import BY_NAME, DTYPES, Tensor, state_digest  # noqa: E402
from deltachain_py.primitives import Reader, crc32, varint  # noqa: E402
from deltachain_py.segment import stream_names  # noqa: E402
from deltachain_py.streams import parse_frame_header, read_stream, write_stream  # noqa: E402
from deltachain_py.writer import Options  # noqa: E402
from tests.edge_cases import edge_cases  # noqa: E402

SET_BYTES = 1 << 28  # links that set more are compared by *check* only
SPARE_MEMORY = 12 << 30  # address space of one run of the tool: a tool that allocates what a file claims will fail


# --- The tool ---

@dataclass
class Outcome:
    verdict: str  # "ok", "CLASS R-XXX-nn", or what went wrong
    answer: dict = None


class Tool:
    def __init__(self, path, folder):
        self.path, self.folder, self.runs = path, folder, 0

    def run(self, *arguments):
        self.runs += 1
        try:
            done = subprocess.run([self.path, "--json", "--threads", "1", *arguments], capture_output=True, timeout=60,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (SPARE_MEMORY,) * 2))
        except subprocess.TimeoutExpired:
            return Outcome("TIMEOUT")
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            return Outcome(f"CRASH: exit {done.returncode}, {done.stderr[-300:]!r}")
        if done.returncode == 0:
            return Outcome("ok", answer)
        error = answer["error"]
        return Outcome(f"{error['class']} {error.get('rule') or ''}".strip(), answer)


def python_outcome(function, *arguments):
    try:
        return Outcome("ok", {"state": function(*arguments)})
    except DcfError as error:
        return Outcome(f"{error.error_class} {error.rule or ''}".strip(), {"message": str(error)})
    except Exception as error:  # any other exception is a bug of the Python package
        return Outcome(f"PYTHON {error!r}")


# --- States ---

def read_safetensors(path):
    """An independent reader: {name: (dtype name, shape, bytes)}."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:8 + size])
    tensors.pop("__metadata__", None)
    body = memoryview(data)[8 + size:]
    return {name: (t["dtype"], tuple(t["shape"]), bytes(body[slice(*t["data_offsets"])]))
            for name, t in tensors.items()}


def plain(state):
    return {name: (t.dtype.name, t.shape, t.data) for name, t in state.items()}


def random_tensor(rng, dtype, elements):
    """`elements` is rounded up to whole bytes. Floats have realistic exponents half of the time."""
    elements += -elements % 4 if dtype.bits < 8 else 0
    width, lanes = dtype.lane_bytes, elements * dtype.bits // 8 // dtype.lane_bytes
    if dtype.exponent_bits and rng.random() < 0.5:
        mantissa = dtype.width - 1 - dtype.exponent_bits
        middle = (1 << dtype.exponent_bits) // 2
        values = [rng.getrandbits(1) << (dtype.width - 1) | rng.randrange(max(0, middle - 9), middle + 1) << mantissa
                  | rng.getrandbits(mantissa) for _ in range(lanes)]
        data = b"".join(v.to_bytes(width, "little") for v in values)
    else:
        data = rng.randbytes(lanes * width)
    shape = rng.choice([(elements,), (1, elements), (elements // 2, 2)] if elements % 2 == 0 else [(elements,)])
    return Tensor(dtype, shape, data)


def special_lanes(dtype):
    """Lanes that must survive: zeros, -0, infinities, NaNs with payloads, the largest and smallest."""
    w = dtype.width
    sign, ones = 1 << (w - 1), (1 << w) - 1
    exponent = ((1 << dtype.exponent_bits) - 1) << (w - 1 - dtype.exponent_bits) if dtype.exponent_bits else sign
    return [0, 1, sign, sign | 1, ones, ones >> 1, exponent & ones, exponent | sign, exponent | 1, exponent | sign | 1]


def change_tensor(rng, tensor, density):
    """Change some lanes: by small steps, to special values, to anything."""
    dtype, data = tensor.dtype, bytearray(tensor.data)
    width, modulus = dtype.lane_bytes, 1 << dtype.width
    special = special_lanes(dtype)
    for start in range(0, len(data), width):
        if rng.random() < density:
            lane = int.from_bytes(data[start:start + width], "little")
            kind = rng.random()
            if kind < 0.7:
                lane = (lane + rng.choice([1, 1, 1, -1, -1, 2, -2, 3, 7, -12])) % modulus
            elif kind < 0.85:
                lane = rng.choice(special)
            elif kind < 0.9:
                lane ^= modulus >> 1
            else:
                lane = rng.randrange(modulus)
            data[start:start + width] = lane.to_bytes(width, "little")
    return Tensor(dtype, tensor.shape, bytes(data))


def change_state(rng, state, density):
    return {name: change_tensor(rng, tensor, density) for name, tensor in state.items()}


def all_dtypes(rng, elements):
    return {f"t.{d.name}": random_tensor(rng, d, elements) for d in DTYPES.values()}


def specials():
    state = {}
    for dtype in DTYPES.values():
        lanes = special_lanes(dtype) * (3 if dtype.bits == 6 else 1)
        data = b"".join(lane.to_bytes(dtype.lane_bytes, "little") for lane in lanes)
        state[dtype.name] = Tensor(dtype, (len(data) * 8 // dtype.bits,), data)
    return state


def reverse_lanes(state):
    def reverse(t):
        width = t.dtype.lane_bytes
        lanes = [t.data[i:i + width] for i in range(0, len(t.data), width)]
        return Tensor(t.dtype, t.shape, b"".join(reversed(lanes)))
    return {name: reverse(tensor) for name, tensor in state.items()}


def pairs(rng, short):
    """(name, base, target): what links are made of."""
    u8, bf16, f32, f4 = (BY_NAME[n] for n in ("U8", "BF16", "F32", "F4"))
    base = all_dtypes(rng, 60)
    for density in (0, 0.02, 0.4, 1):
        yield f"all dtypes, {density:.0%} changed", base, change_state(rng, base, density)
    yield "special values", specials(), reverse_lanes(specials())
    yield "both empty", {}, {}
    yield "all removed", base, {}
    state = {"scalar": Tensor(f32, (), b"\0\0\x80\x3f"), "none": Tensor(bf16, (0,), b""),
             "é\0\n": Tensor(u8, (), b"x"),
             "": Tensor(u8, (1,) * 8, b"y"), "wide": Tensor(u8, (0, 2**53), b""), "zeros": Tensor(f32, (9,), bytes(36)),
             "one": Tensor(f4, (2,), b"\x21"), "🦀" * 200: Tensor(bf16, (3,), b"abcdef"),
             "same": Tensor(u8, (1,), b"s")}
    changed = reverse_lanes(change_state(rng, state, 1)) | {"same": state["same"]}
    yield "scalars, empty tensors, odd names", state, changed
    other = {"shape": Tensor(u8, (4,), b"abcd"), "dtype": Tensor(u8, (4,), b"abcd"), "size": Tensor(u8, (4,), b"abcd"),
             "gone": Tensor(u8, (4,), b"abcd"), "filled": Tensor(u8, (0,), b""), "emptied": Tensor(u8, (3,), b"abc"),
             "same": Tensor(bf16, (1,), b"zz"), "shape and data": Tensor(u8, (2, 2), b"abcd")}
    yield "add, remove, retype, reshape", other, {
        "shape": Tensor(u8, (2, 2), b"abcd"), "dtype": Tensor(bf16, (2,), b"abcd"), "size": Tensor(u8, (5,), b"abcde"),
        "filled": Tensor(u8, (2,), b"zz"), "emptied": Tensor(u8, (0,), b""), "added": Tensor(bf16, (2,), b"1234"),
        "same": other["same"], "shape and data": Tensor(u8, (1, 4), b"abcx"),
        "added zeros": Tensor(f32, (2,), bytes(8))}
    many = {f"layer.{i}": random_tensor(rng, bf16, 1 + i % 5) for i in range(300)}
    yield "300 small tensors", many, change_state(rng, many, 0.1)
    if not short:
        for elements, density in ((3000, 0.01), (3000, 0.2), (700, 0.9)):
            base = all_dtypes(rng, elements)
            yield f"all dtypes, {elements} elements, {density:.0%}", base, change_state(rng, base, density)
        data = bytearray((1 << 24) + 6)
        base = {"t": Tensor(bf16, (len(data) // 2,), bytes(data))}
        data[0] = data[(1 << 24) - 1] = data[1 << 24] = data[-1] = 1
        yield "two pieces", base, {"t": Tensor(bf16, (len(data) // 2,), bytes(data))}


def real_pairs(short):
    folder = os.path.join(os.path.dirname(HERE), "testdata")
    for kind in ("fp8",) if short else ("fp8", "rl3e6", "f32"):
        files = [os.path.join(folder, f"{kind}_step{i}.safetensors") for i in (0, 1)]
        if all(map(os.path.exists, files)):
            yield f"testdata {kind}", *map(safetensors.read, files)


# --- 1. Matrix ---

class Matrix:
    COLUMNS = ("rust>rust", "rust>python", "python>rust", "python>python")

    def __init__(self, tool):
        self.tool, self.passed, self.failed = tool, 0, 0

    def path(self, name):
        return os.path.join(self.tool.folder, name)

    def expect(self, condition, what):
        self.passed += bool(condition)
        self.failed += not condition
        if not condition:
            print(f"  FAILED: {what}")
        return bool(condition)

    def one(self, name, base, target, base_name="base", target_name="target"):
        """All links of one pair of states; returns them with the producers' names."""
        safetensors.write(self.path("base.safetensors"), base)
        safetensors.write(self.path("target.safetensors"), target)
        digests = {"base": state_digest(base).hex(), "target": state_digest(target).hex()}
        for which, digest in digests.items():
            outcome = self.tool.run("digest", self.path(which + ".safetensors"))
            self.expect(outcome.answer and digest in json.dumps(outcome.answer), f"{name}: digest of {which}")
        links, results = [], {column: [0, 0] for column in self.COLUMNS}
        for profile in ("compact", "direct", "snapshot"):
            start = {} if profile == "snapshot" else base
            for producer in ("rust", "python"):
                label, file = f"{name}, {profile} by {producer}", self.path("link.dcf")
                if producer == "python":
                    data = writer.snapshot(target) if profile == "snapshot" else writer.diff(
                        base, target, Options(profile=profile))
                else:
                    arguments = ["snapshot", self.path("target.safetensors")] if profile == "snapshot" else [
                        "diff", self.path("base.safetensors"), self.path("target.safetensors"), "--profile", profile]
                    outcome = self.tool.run(*arguments, "-o", file, "--force")
                    if not self.expect(outcome.verdict == "ok", f"{label}: {outcome.verdict}"):
                        continue
                    with open(file, "rb") as handle:
                        data = handle.read()
                links.append((label, start, data))
                for consumer in ("rust", "python"):
                    good = self.consume(label, consumer, start, target, data, profile)
                    results[f"{producer}>{consumer}"][not good] += 1
        cells = "  ".join(f"{good} of {good + bad}".center(13) for good, bad in results.values())
        print(f"{name[:44]:44}  {cells}")
        return links

    def consume(self, label, consumer, base, target, data, profile):
        link, result = self.path("link.dcf"), self.path("result.safetensors")
        if os.path.exists(result):
            os.remove(result)
        with open(link, "wb") as handle:
            handle.write(data)
        if consumer == "python":
            outcomes = [python_outcome(dcf.check_link, data), python_outcome(dcf.apply, data, base)]
            if outcomes[1].verdict == "ok":
                safetensors.write(result, outcomes[1].answer["state"])
        else:
            with_base = [] if profile == "snapshot" else ["--base", self.path("base.safetensors")]
            outcomes = [self.tool.run("verify", link),
                        self.tool.run("apply", *with_base, link, "-o", result, "--force")]
        good = True
        for outcome in outcomes:
            good &= self.expect(outcome.verdict == "ok", f"{label}, read by {consumer}: {outcome.verdict} "
                                                         f"{outcome.answer}")
        return good and self.expect(read_safetensors(result) == plain(target), f"{label}, read by {consumer}: state")


def matrix(tool, rng, short):
    print(f"{'links: producer > consumer':44}  " + "  ".join(c.center(13) for c in Matrix.COLUMNS))
    table, links = Matrix(tool), []
    for name, base, target in pairs(rng, short):
        links += table.one(name, base, target)
    for name, base, target in real_pairs(short):
        table.one(name, base, target)
    return table, links


# --- 2. Differential: a link as something to be damaged ---
# The index, a directory and a table are lists of fields [kind, value], kind one of u8, u32, varint, string, bytes, raw.

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
    """The fields of an index; lengths and CRCs of the segments are those of `bodies`."""
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
            fields += [["u8", entry.dtype.code], ["varint", len(entry.shape)]]
            fields += [["varint", n] for n in (*entry.shape, *entry.segments)]
    fields += [["bytes", entry.digest] for entry in index.tensors if entry.operation != REMOVE]
    return fields


def split_segment(stored, coding):
    """name -> raw bytes of a valid segment's streams."""
    reader = Reader(stored, "")
    lengths = [(name, reader.varint(), reader.varint()) for name in stream_names(coding)]
    return {name: read_stream(reader.bytes(length), raw, "") for name, raw, length in lengths}


def table_fields(raw, coding):
    """A table: number of contexts, parameters, then varints. Or only varints: an escape stream (coding None)."""
    count = 1 + raw[0] * ((coding.positions == SPARSE) + (coding.values == SMALL)) if coding else 0
    reader = Reader(raw, "")
    fields = [["u8", reader.u8()] for _ in range(count)]
    while reader.left():
        fields.append(["varint", reader.varint()])
    return fields


@dataclass
class Draft:
    """A valid link, taken apart; `seal` puts it together again with right lengths and CRCs."""
    base: dict
    link: dcf.Link
    bodies: list
    codings: list                                # of the bodies as they were
    header: dict = field(default_factory=dict)   # fields that are to be wrong
    index: list = None                           # fields of the index if they were changed
    index_raw: bytes = None
    index_stored: bytes = None
    tail: bytes = b""

    def seal(self):
        raw = self.index_raw
        if raw is None:
            raw = encode_fields(self.index or index_fields(self.link.index, self.bodies))
        stored = write_stream(raw) if self.index_stored is None else self.index_stored
        body = b"".join(self.bodies)
        old = self.link.header
        values = dict(magic=MAGIC, version=0, incompatible=0, compatible=old.compatible, reserved1=0, base=old.base,
                      target=old.target, index_stored=len(stored), index_raw=len(raw), segments=len(body), reserved2=0,
                      index_crc=crc32(stored)) | self.header
        out, sizes = b"", dict(version=4, incompatible=4, compatible=4, reserved1=4, index_crc=4)
        for name, value in values.items():
            size = sizes.get(name, 8)
            out += value if isinstance(value, bytes) else (value % (1 << 8 * size)).to_bytes(size, "little")
        return out + crc32(out).to_bytes(4, "little") + stored + body + self.tail


def take_apart(base, link):
    segments = list(link.stored_segments())
    return Draft(base, link, [bytes(stored) for _, _, stored in segments], [entry.coding for _, entry, _ in segments])


NUMBERS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129, 254, 255, 256, 257, 16383, 16384, 65535, 65536,
           65537, 2**24 - 1, 2**24, 2**24 + 1, 2**25, 2**25 + 1, 2**26 + 1, 2**30 + 1, 2**31, 2**32 - 1, 2**32, 2**40,
           2**54, 2**59, 2**60, 2**60 + 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
BAD_VARINTS = [b"\x80\0", b"\x81\0", b"\xff\x80\0", b"\x80" * 9 + b"\0", b"\x80" * 9 + b"\2", b"\xff" * 9 + b"\1",
               b"\x80" * 10 + b"\0", b"\xff" * 9 + b"\x81\0", b"\xff" * 10, b"\x80", b"\xff\xff", b""]
BAD_STRINGS = [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\0", b"", b"\xef\xbf\xbf",
               b"\xf4\x8f\xbf\xbf", b"n" * 65535, b"n" * 65536, b"a", b"zzzz"]


def near(rng, value):
    return max(0, min(2**64 - 1, rng.choice([value - 1, value + 1, value * 2, value // 2, value + 127, value ^ 128,
                                            rng.choice(NUMBERS), rng.choice(NUMBERS)])))


def damage_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(8)
        if kind < 3 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 5 and at < len(data):
            data[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF, rng.randrange(256)])
        elif kind == 5:
            data[at:at + rng.choice([1, 1, 2, 4])] = b""
        elif kind == 6:
            data[at:at] = bytes(rng.choice([[0], [1], [255], [0x80, 0], [rng.randrange(256)], [0] * 4]))
        elif rng.random() < 0.5:
            del data[at:]
        else:
            data += rng.randbytes(rng.choice([1, 1, 3]))
    return bytes(data)


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


def raw_blocks(raw, sizes):
    """The blocks of a frame, uncompressed."""
    out, pos = b"", 0
    for size in sizes:
        last = pos + size >= len(raw)
        out += (int(last) | size << 3).to_bytes(3, "little") + raw[pos:pos + size]
        pos += size
        if last:
            break
    return out


def strange_frame(rng, raw):
    """A stored form that the other reader may see differently. Some are valid, if they are shorter than `raw`."""
    def compress(**options):
        return zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(
            rng.choice([1, 3, 9, 19]), **options)).compress(raw)

    magic, good, kind = b"\x28\xb5\x2f\xfd", compress(), rng.randrange(22)
    if kind == 0:
        return compress(write_content_size=False)
    if kind == 1:
        return compress(write_checksum=True)
    if kind == 2:
        frame = bytearray(compress(write_checksum=True))
        frame[-rng.randrange(1, 5)] ^= 1 << rng.randrange(8)
        return bytes(frame)
    if kind == 3:  # another content size
        frame = bytearray(good)
        frame[5] ^= 1 << rng.randrange(8)
        return bytes(frame)
    if kind == 4:  # descriptor: dictionary flag, reserved bit, unused bit, single segment, size field
        frame = bytearray(good)
        frame[4] ^= 1 << rng.randrange(8)
        return bytes(frame)
    if kind == 5:  # a dictionary id of 0, in a frame that is otherwise right
        frame = compress(write_content_size=False)
        return frame[:4] + bytes([frame[4] | 1]) + frame[5:6] + b"\0" + frame[6:]
    if kind == 6:  # another window, with the blocks of a good frame; not a smaller one: decoders differ on that
        frame = compress(write_content_size=False)
        return frame[:5] + bytes([rng.choice([15 << 3, 15 << 3 | 1, 16 << 3, 17 << 3, 255])]) + frame[6:]
    if kind == 7:
        return good + rng.choice([b"\0", good, b"\x50\x2a\x4d\x18\0\0\0\0", magic])
    if kind == 8:
        return rng.choice([b"\x50\x2a\x4d\x18\0\0\0\0", b"\x5f\x2a\x4d\x18\1\0\0\0x"]) + good
    if kind == 9:
        return good[:rng.randrange(len(good))]
    if kind == 10:  # old magic numbers
        return bytes([rng.choice([0x1E, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27])]) + good[1:]
    if kind == 11:  # single segment with another content size of 8 bytes
        size = rng.choice([len(raw), 0, 2**25, 2**25 + 1, 2**32, 2**63, 2**64 - 2, 2**64 - 1])
        return magic + b"\xe0" + size.to_bytes(8, "little") + good[6:]
    if kind == 12:
        return magic + b"\0\x58" + raw_blocks(raw, [max(1, len(raw) // 2 + 1)] * 2)
    if kind == 13:  # empty blocks between; the last one empty
        return magic + b"\0\x58" + b"\0\0\0" * 3 + (len(raw) << 3).to_bytes(3, "little") + raw + b"\1\0\0"
    if kind == 14:  # RLE
        return magic + b"\0\x58" + (3 | len(raw) << 3).to_bytes(3, "little") + raw[:1]
    if kind == 15:  # a header that is cut off, with a window that is too large
        return (magic + b"\xc0\xff" + bytes(8))[:rng.randrange(4, 14)]
    if kind == 16:  # reserved block type
        return magic + b"\0\x58" + (7 | len(raw) << 3).to_bytes(3, "little") + raw[:1]
    if kind == 17:  # content sizes that libzstd's functions return for "unknown" and "error"
        return magic + b"\xc0\x58" + rng.choice([b"\xff", b"\xfe"]) + b"\xff" * 7 + good[6:]
    if kind == 18:
        return good[4:]
    if kind == 19:  # single segment without a content size of its own length
        return magic + b"\x20" + bytes([len(raw) & 0xFF]) + raw_blocks(raw, [len(raw)] if raw else [0])
    return damage_bytes(rng, good)


def stored_form(rng, raw, strange=0.06):
    if raw and rng.random() < strange:
        return strange_frame(rng, raw)
    return raw if rng.random() < 0.2 else write_stream(raw)


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
            if name in ("gap high", "magnitude") and rng.random() < 0.6:  # an escape more, an escape value more
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
    """Changes of the index that keep its grammar, so that later rules are reached."""
    index, kind = draft.link.index, rng.randrange(12)
    entry = rng.choice(index.tensors) if index.tensors else None
    if kind == 0 and index.segments:  # another coding for a segment
        segment = rng.choice(index.segments)
        segment.coding = Coding(rng.choice([segment.coding.lane_bytes] * 3 + [1, 2, 4, 8]), rng.randrange(2),
                                rng.choice([ABSOLUTE, PLANES, SMALL]))
    elif kind == 1 and entry:
        entry.operation = rng.randrange(3)
        if entry.operation != REMOVE and entry.dtype is None:
            entry.dtype, entry.shape, entry.digest = BY_NAME["U8"], (0,), bytes(32)
    elif kind == 2 and entry and entry.dtype:
        same = [d for d in DTYPES.values() if d.lane_bytes == entry.dtype.lane_bytes]
        entry.dtype = rng.choice(same if rng.random() < 0.8 else list(DTYPES.values()))
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
        if rng.random() < 0.7:  # a right exchange: any order of segments is allowed
            index.segments[a], index.segments[b] = index.segments[b], index.segments[a]
            for tensor in index.tensors:
                tensor.segments = [{a + 1: b + 1, b + 1: a + 1}.get(n, n) for n in tensor.segments]
    elif kind == 8:
        layout = rng.choice(["{}", "", '{"files":[]}'])
        index.metadata = [pair for pair in (("", "x"), ("a", ""), ("deltachain.layout", layout), ("é", "\0"))
                          if rng.random() < 0.6]
    elif kind == 9 and entry and entry.digest:
        entry.digest = rng.randbytes(32)
    elif kind == 10 and index.tensors:
        index.tensors.insert(0, replace(entry, name=""))
    else:
        index.tensors.append(type(entry)("zzz", REMOVE) if entry else None)
        index.tensors = [e for e in index.tensors if e]


def damage_header(rng, draft):
    name = rng.choice(["version", "incompatible", "compatible", "reserved1", "reserved2", "base", "target",
                       "index_stored", "index_raw", "segments", "index_crc"])
    link = draft.link
    if name in ("base", "target"):
        value = rng.choice([link.header.base, link.header.target, state_digest({}), rng.randbytes(32)])
    else:
        value = near(rng, {"index_stored": link.header.index_stored, "index_raw": link.header.index_raw,
                           "segments": link.header.segments_length}.get(name, 0))
    draft.header[name] = value


def damage_base(rng, draft):
    """Another base, which the header then names (mostly)."""
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
        same = [d for d in DTYPES.values() if d.bits == base[name].dtype.bits]
        base[name] = replace(base[name], dtype=rng.choice(same))
    draft.base = base
    if rng.random() < 0.9:
        draft.header["base"] = state_digest(base)


def promise(data, base):
    """Put the digests in that the link would have to promise, if it is well-formed otherwise. None if not."""
    try:
        link = dcf.parse(data, Limits(set_bytes=SET_BYTES))
        dcf.check_base(link, base)
        state = dcf.build(link, base)
    except DcfError:
        return None
    for entry in link.index.tensors:
        if entry.operation != REMOVE:
            entry.digest = state[entry.name].digest()
    draft = take_apart(base, link)
    draft.header["target"] = state_digest(state)
    return draft.seal()


def mutate(rng, base, data):
    """(kind of mutation, base, damaged link)"""
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


def corpus(rng, links, short):
    """(label, base, link): those of the matrix that are small, and links with every coding forced."""
    result = [link for link in links if 131 < len(link[2]) < (6000 if short else 12000)]
    wide = [d for d in DTYPES.values() if d.name in ("BF16", "F8_E4M3", "F32", "F64", "F16", "U8", "F4")]
    codings = (DENSE, ABSOLUTE), (SPARSE, ABSOLUTE), (DENSE, PLANES), (SPARSE, PLANES), (SPARSE, SMALL)
    for positions, values in codings:
        for contexts in (1,) if values == ABSOLUTE else (1, 2, 16) if short else (1, 2, 3, 5, 16):
            for parameters in [None] if positions == DENSE else ([0], [32], [31], [2, 32]):
                for dtypes, elements in (([rng.choice(wide)], 40), (rng.sample(wide, 3), 7), ([rng.choice(wide)], 700)):
                    base = {d.name: random_tensor(rng, d, elements) for d in dtypes}
                    target = change_state(rng, base, rng.choice([0.05, 0.3, 0.9]))
                    options = Options(positions=positions, values=values, contexts=contexts,
                                      position_parameters=parameters, widths=rng.choice([[1], [2], [4, 1], [8], None]),
                                      segment_bytes=rng.choice([100, 1 << 25]))
                    label = f"python, {positions} {values} {contexts} {parameters} {options.widths}"
                    result.append((label, base, writer.diff(base, target, options)))
    return result


# --- 2. Differential: comparing ---

def chains(tool, diff):
    """Links applied one after another (R-APP-06), right and wrong."""
    u8 = BY_NAME["U8"]
    states = [{}, *({"t": Tensor(u8, (8,), bytes([n]) * 8)} for n in range(3))]
    links = [writer.diff(a, b) for a, b in zip(states, states[1:])]
    path = lambda name: os.path.join(tool.folder, name)
    last = len(links[1]) - 1
    bad_index, bad_segment = (links[1][:at] + bytes([links[1][at] ^ 1]) + links[1][at + 1:] for at in (130, last))
    files = {"0": links[0], "1": links[1], "2": links[2], "index": bad_index, "segment": bad_segment}
    for name, data in files.items():
        with open(path(name + ".dcf"), "wb") as file:
            file.write(data)
    for base, names in ((0, "0 1 2"), (1, "1 2"), (2, "2"), (2, "0 2"), (2, "1 0"), (0, "0 2"), (2, "0 index"),
                        (2, "1 1"), (0, "0 segment 2"), (0, "0 segment 0"), (2, "segment 2"), (2, "1 2"),
                        (0, "index 0")):
        names = names.split()
        safetensors.write(path("m.safetensors"), states[base])
        rust = tool.run("apply", "--base", path("m.safetensors"), *(path(n + ".dcf") for n in names), "-o",
                        path("r.safetensors"), "--force")
        python = python_outcome(dcf.apply_chain, [files[n] for n in names], states[base])
        diff.compare("chain", rust, python, f"state {base}, links {names}", states[base], b"")


class Differential:
    def __init__(self, tool, keep):
        self.tool, self.keep = tool, keep
        self.mutations, self.operations, self.agreed, self.disagreements = 0, 0, 0, Counter()
        self.verdicts, self.kinds = Counter(), Counter()

    def compare(self, operation, rust, python, mutation, base, data, message=""):
        self.operations += 1
        self.verdicts[f"{operation}: {python.verdict}"] += 1
        if rust.verdict == python.verdict:
            self.agreed += 1
            return True
        kind = f"{operation}: rust {rust.verdict[:90]!r}, python {python.verdict!r}"
        self.disagreements[kind] += 1
        if self.disagreements[kind] <= 3:
            path = os.path.join(self.keep, f"{sum(self.disagreements.values()):04}")
            os.makedirs(self.keep, exist_ok=True)
            with open(path + ".dcf", "wb") as file:
                file.write(data)
            safetensors.write(path + ".base.safetensors", base)
            with open(path + ".txt", "w") as file:
                file.write(f"{kind}\nmutation: {mutation}\nrust: {rust.answer}\npython: {python.answer}\n\n")
                for at in range(0, len(data), 16):
                    file.write(f"{at:08x}  {data[at:at + 16].hex(' ')}\n")
            print(f"  DISAGREE {kind} [{mutation}] {path}.txt")
        return False

    def one(self, mutation, base, data):
        self.mutations += 1
        self.kinds[mutation.split("+")[-1]] += 1
        names = ("m.dcf", "m.safetensors", "r.safetensors")
        link, base_file, result = (os.path.join(self.tool.folder, name) for name in names)
        with open(link, "wb") as file:
            file.write(data)
        limits = Limits()
        check = python_outcome(dcf.check_link, data, limits)
        same = self.compare("check", self.tool.run("verify", link, "--trusted"), check, mutation, base, data)
        try:
            dcf.parse(data, replace(limits, set_bytes=SET_BYTES))
        except DcfError as error:
            if error.rule == "R-LIM-04":
                return
        if "__metadata__" in base:
            return
        safetensors.write(base_file, base)
        python = python_outcome(dcf.apply, data, base, limits)
        rust = self.tool.run("verify", link, "--base", base_file, "--trusted")
        same &= self.compare("apply", rust, python, mutation, base, data)
        if same and python.verdict == "ok" and "__metadata__" not in python.answer["state"]:
            if "deltachain.layout" in dict(dcf.parse(data).index.metadata):
                return  # section 12, which the Python package does not implement
            rust = self.tool.run("apply", "--base", base_file, link, "-o", result, "--force", "--trusted")
            if rust.verdict == "ok" and read_safetensors(result) != plain(python.answer["state"]):
                rust.verdict = "another state"
            self.compare("result", rust, Outcome("ok"), mutation, base, data)


def differential(tool, rng, links, keep, mutations, seconds):
    entries, diff = corpus(rng, links, short=seconds < 100), Differential(tool, keep)
    for kind, cases in (("undamaged links", entries), ("edge cases", edge_cases())):
        before = diff.mutations, diff.agreed, diff.operations
        for label, base, data in cases:
            diff.one(f"{kind}: {label}", base, data)
        files, agreed, operations = (b - a for a, b in zip(before, (diff.mutations, diff.agreed, diff.operations)))
        print(f"{files} {kind}: {agreed} of {operations} verdicts agree")
    chains(tool, diff)
    start = time.time()
    diff.mutations = 0
    while diff.mutations < mutations and time.time() - start < seconds:
        _, base, data = rng.choice(entries)
        diff.one(*mutate(rng, base, data))
    return diff


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tool", required=True)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--short", action="store_true", help="about 300 mutations, less than a minute (default)")
    length.add_argument("--long", action="store_true", help="mutations for --seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300, help="of --long")
    parser.add_argument("--keep", default=os.path.join(tempfile.gettempdir(), "deltachain-disagreements"))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        tool = Tool(os.path.abspath(args.tool), folder)
        table, links = matrix(tool, rng, not args.long)
        diff = differential(tool, rng, links, args.keep, 10**9 if args.long else 300, args.seconds if args.long else 40)
    print(f"\n{diff.mutations} mutations, {diff.operations} verdicts compared, {diff.agreed} agree; "
          f"{tool.runs} runs of the tool")
    if args.long:
        for verdict, count in sorted(diff.verdicts.items()):
            print(f"  {count:7} {verdict}")
    for kind, count in diff.disagreements.most_common():
        print(f"  {count:7} DISAGREE {kind}")
    failed = table.failed + sum(diff.disagreements.values())
    print(f"{table.passed + diff.agreed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
