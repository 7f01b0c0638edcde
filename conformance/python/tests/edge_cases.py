"""Files at the edges of the rules, for `../../interop.py`: (label, base, link). Both readers must give the same answer;
the unit tests only require an answer of this reader. In each of these cases readers could easily differ."""
from deltachain_py import writer
from deltachain_py.header import MAGIC
from deltachain_py.index import (DENSE, PATCH, PLANES, REMOVE, SET, SMALL, SPARSE, Coding, Index, SegmentEntry,
                                 TensorEntry)
from deltachain_py.model import BY_NAME, Tensor
from deltachain_py.primitives import string, varint
from tests.helper import make, one_tensor, segment_link

U8, F4, F6 = (BY_NAME[name] for name in ("U8", "F4", "F6_E2M3"))
HUGE = 2**64 - 1
BASE = one_tensor("BF16", [0x0100, 0, 0x0101, 1, 0x0102, 2, 0x0103, 3])
TARGET = one_tensor("BF16", [0x0101, 0, 0x0101, 1, 0x0102, 2, 0x0106, 3])


def edge_cases():
    for label, data in [*headers(), *indexes(), *frames()]:
        yield label, BASE, data
    for label, positions, values, streams in segments():
        yield label, BASE, segment_link(BASE, TARGET, positions, values, streams)


def headers():
    for data in (b"", b"\x89", MAGIC[:7], MAGIC, MAGIC + bytes(3), b"\x89DCG", b"x", bytes(200), MAGIC + bytes(119),
                 MAGIC + bytes(120)):
        yield f"{len(data)} bytes", data
    for raw in (2**30, 2**30 + 1, 2**63, HUGE):
        yield f"index raw length {raw}", make(b"\0\0\0", index_raw=raw)
    for stored, segments, extension in ((2**63 - 129, 0, 0), (2**63 - 128, 0, 0), (3, HUGE, 0), (HUGE, 1, 0),
                                        (3, 0, 2**63 - 132), (3, 0, 2**63 - 131), (3, 0, HUGE), (3, 0, 1)):
        yield f"lengths {stored} + {segments} + {extension}", make(
            b"\0\0\0", index_stored=stored, index_raw=HUGE, segments=segments, extension=extension)
    for extra in (b"x", b"xy", b"xyz", b"xyzz"):
        yield f"extension area of 3 bytes, {len(extra)} there", make(b"\0\0\0", extension=3) + extra


def indexes():
    def tensor(dtype, *dimensions, operation=SET):
        shape = b"".join(map(varint, dimensions))
        return make(b"\0\0\1" + string("t") + bytes([operation, dtype.code, len(dimensions)]) + shape)

    # The index ends early, with another fault before its end.
    pieces = b"\0\0\1" + string("t") + bytes([PATCH, U8.code, 1]) + varint(2**24 * 5)
    dimensions = b"\0\0\1" + string("t") + bytes([SET, U8.code]) + varint(200)
    for raw in (pieces + b"\x80\0", pieces + b"\7", b"\0\5\xff", b"\0\5\0\x80\0", b"\0" + varint(2**20) + b"\0\x80\0",
                b"\0\0\5\x80\0", b"\0\0" + varint(1000) + b"\1\xff", varint(200) + b"\x80\0", varint(200) + b"\1\xff",
                dimensions + b"\x80\0", dimensions + varint(HUGE) * 3,
                b"\0\0\2" + string("t") + bytes([SET, U8.code, 1, 0]) + string("a"),
                b"\0\1" + bytes(7) + b"\1" + string("t") + bytes([SET, U8.code, 1, 0])):
        yield f"index {raw.hex()}", make(raw)
    # Limits.
    for n in (65535, 65536):
        yield f"name of {n}", make(b"\0\0\1" + string("n" * n) + bytes([REMOVE]))
    for n in (255, 256):
        yield f"{n} dimensions", writer.snapshot({"t": Tensor(U8, (1,) * n, b"x")})
    for dtype, shape in ((U8, [2**60]), (U8, [2**60 + 1]), (F4, [2**61]), (F4, [2**61 + 1]), (F4, [2**61 + 2]),
                         (F6, [2**62]), (F6, [5]), (F4, [HUGE, HUGE]), (F4, [HUGE, HUGE, 0]), (F4, [0, HUGE, HUGE]),
                         (U8, [2**32, 2**32]), (U8, [2**32, 2**31, 2])):
        yield f"{dtype.name} {shape}", tensor(dtype, *shape)
    for raw in (varint(65536), varint(65537), b"\1" + varint(2**26), b"\1" + varint(2**26 + 1), b"\0" + varint(2**24),
                b"\0" + varint(2**24 + 1), b"\0\0" + varint(2**24), b"\0\0" + varint(2**24 + 1),
                b"\1" + string("k" * 9) + varint(2**26 - 9), b"\1" + string("k" * 9) + varint(2**26 - 8)):
        yield f"limit {raw.hex()}", make(raw)
    # Rules about segments, and their order.
    sparse = SegmentEntry(Coding(1, SPARSE, PLANES), 0, 0)
    for count in (65536, 65537):
        entries = [TensorEntry(f"{i:05}", PATCH, U8, (1,), [1], [bytes(32)]) for i in range(count)]
        yield f"{count} pieces", make(Index([], [sparse], entries), base=BASE)
    for size, numbers, count in ((2**25, [1, 1], 1), (2**25 + 1, [1] * 3, 1), (2**25 + 1, [1] * 3, 2),
                                 (2**25 + 1, [2] * 3, 2)):
        entry = TensorEntry("a", PATCH, U8, (size,), numbers, [bytes(32)] * len(numbers))
        yield f"{size} bytes in {numbers} of {count}", make(Index([], [sparse] * count, [entry]), base=BASE)
    for stored in (512 + 94 + 9 * 5, 512 + 94 + 9 * 5 + 1):  # R-LIM-06
        entry = TensorEntry("a", PATCH, U8, (5,), [1], [bytes(32)])
        index = Index([], [SegmentEntry(sparse.coding, stored, 0)], [entry])
        yield f"segment of {stored} bytes", make(index, bytes(stored), base=BASE)
    other = SegmentEntry(Coding(1, SPARSE, SMALL), 0, 0)
    for dtypes, codings, numbers in ((["U8", "U8"], [sparse, sparse], [2, 1]), (["U8", "I8"], [sparse, sparse], [2, 1]),
                                     (["U8", "U8"], [sparse, other], [2, 1]), (["U8", "U8"], [sparse, sparse], [1, 2]),
                                     (["U8", "I8", "U8"], [sparse, sparse], [2, 1, 1]),
                                     (["U8", "I8", "U8"], [sparse, sparse], [2, 1, 2])):  # R-IDX-19
        tensors = [TensorEntry(str(i), PATCH, BY_NAME[name], (5,), [number], [bytes(32)])
                   for i, (name, number) in enumerate(zip(dtypes, numbers))]
        yield f"segments {numbers} of {dtypes}", make(Index([], codings, tensors), base=BASE)
    entry = TensorEntry("a", PATCH, U8, (2**24 + 1,), [2, 1], [bytes(32)] * 2)
    yield "pieces in falling segments", make(Index([], [sparse] * 2, [entry]), base=BASE)
    for description in (string("X") + b"\x08\1\0\0", string("F8_E4M3") + b"\x08\1\1\4", string("") + b"\x08\1\0\0",
                        string("A" * 32) + b"\x08\1\0\0", string("A" * 33) + b"\x08\1\0\0", string("x") + b"\x08\1\0\0",
                        string("1X") + b"\x08\1\0\0", string("X-") + b"\x08\1\0\0", string("É") + b"\x08\1\0\0",
                        string("X") + b"\0\1\0\0", string("X") + b"\x08\0\0\0", string("X") + b"\x08\3\0\0",
                        string("X") + b"\x08\x08\2\0", string("X") + b"\x08\1\0\1", string("X") + b"\x08\1\1\7",
                        string("X") + b"\x08\1\1\x08", string("X") + b"\x40\x08\1\x0b", string("X") + b"\x40\x08\1\x0c",
                        string("X") + b"\xff\1\x08\0\0", string("X") + b"\x0c\2\0\0", string("X") + b"\4\1\0\0",
                        b"\1\xff", varint(65536), string("x") + b"\0\0"):  # R-IDX-20
        index = b"\0\0\1" + string("t") + bytes([PATCH, 255]) + description + b"\1\4\0" + bytes(32)
        yield f"described dtype {description.hex()}", make(index, base=BASE)
    entry = TensorEntry("a", PATCH, U8, (2**24 + 1,), [1, 2], [bytes(32)] * 2)
    lengths = [SegmentEntry(sparse.coding, n, 0) for n in (HUGE, 1)]
    yield "stored lengths overflow", make(Index([], lengths, [entry]), base=BASE)


def segments():
    good = {"table": bytes([2, 32, 0, 1, 2, 1, 4, 2]), "bitmap": b"\0", "gap low": b"", "gap high": b"\0\2",
            "gap escape": b"", "sign": b"\0", "magnitude": bytes([8]), "magnitude escape": b""}
    wide = bytes([2, 32, 0, 8, 8, 1, 4, 2])

    def small(**changes):
        label = ", ".join(f"{name} {value[:20].hex()}" for name, value in changes.items())
        return label, SPARSE, SMALL, good | {name.replace("_", " "): value for name, value in changes.items()}

    yield small()
    for table in (b"\2\41", b"\20\41", bytes([2, 32, 0, 3]), bytes([2, 32, 0, 1, 2, 0x80, 0]),
                  good["table"][:6] + b"\x80\0",
                  good["table"][:6] + varint(HUGE) * 2, good["table"][:6] + varint(HUGE) + b"\x80\0",
                  bytes([3, 32, 0, 0, 1, 2, 1]) + varint(HUGE) * 2):
        yield small(table=table)
    yield small(magnitude=b"\3", magnitude_escape=b"\0\x80\0")
    yield small(magnitude=b"\x0f", magnitude_escape=b"\0")
    yield small(magnitude=b"\x0f", magnitude_escape=varint(2**20) + b"\x80\0")
    yield small(magnitude=b"\3", magnitude_escape=varint(HUGE))
    for value in (2**64 - 255, 2**15 - 1 - 255, 2**15 - 2 - 255):
        for sign in (0, 1):
            yield small(table=wide, sign=bytes([sign]), magnitude=b"\xff\0", magnitude_escape=varint(value))
    yield small(gap_high=b"\xff\xff", gap_escape=varint(HUGE) + b"\x80\0")
    yield small(gap_high=b"\xff\xff", gap_escape=varint(HUGE) * 2)
    yield small(gap_high=b"\xff\xff", gap_escape=varint(HUGE) * 2, sign=b"")
    yield small(gap_high=b"\0\7", sign=b"\xff")
    yield small(gap_high=b"\0\6", sign=b"\xff")
    yield small(table=good["table"][:6] + b"\5\2", gap_high=b"\0\3")
    yield small(table=good["table"][:6] + b"\5\2", bitmap=b"\x10", sign=b"\0\0", magnitude=b"\0\x08")
    for counts in ((4, 4), (3, 5), (5, 3), (8, 0), (0, 8)):
        planes = {"plane 0": bytes([0, 0, 0, 0, 2, 0, 0, 6]), "plane 1": bytes(8)}
        yield f"dense {counts}", DENSE, PLANES, planes | {"table": bytes([2, 1, *counts])}

    one = {"table": bytes([1, 0, 1]), "bitmap": b"", "gap low": b"", "gap high": b"\0", "gap escape": b"",
           "plane 0": b"\2", "plane 1": b"\0"}
    two = one | {"table": bytes([1, 0, 2]), "gap high": b"\xff\xff", "plane 0": b"\2\2", "plane 1": b"\0\0"}
    none = {"gap high": b"", "plane 0": b"", "plane 1": b""}
    for label, streams in {
        "one gap": one,
        "no coded lane": one | none | {"table": bytes([1, 7, 0])},
        "no coded lane, no bitmap": one | none | {"table": bytes([1, 32, 8]), "bitmap": b"\0"},
        "table at its limit": one | {"table": one["table"] + bytes(124)},
        "table above its limit": one | {"table": one["table"] + bytes(125)},
        "escape at its limit": one | {"gap high": b"\xff", "gap escape": bytes(4)},
        "escape above its limit": one | {"gap high": b"\xff", "gap escape": bytes(5)},
        "51 bits": one | {"table": b"\1\x17\1", "gap low": b"\xff\xff\x7f", "gap high": b"\xff",
                          "gap escape": varint(2**28 - 1)},
        "23 bits": one | {"table": b"\1\x17\1", "gap low": b"\xff\xff\x7f"},
        "23 bits, small": one | {"table": b"\1\x17\1", "gap low": b"\7\0\0"},
        "24 bits": one | {"table": b"\1\x18\1", "gap low": b"\7\0\0"},
        # Ranks that are right again modulo 2^32.
        "wrap 1": two | {"table": b"\1\x08\2", "gap low": b"\0\3", "gap high": b"\0\xff",
                         "gap escape": varint(2**24 - 255)},
        "wrap 2": two | {"gap high": b"\1\xff", "gap escape": varint(2**32 - 255)},
    }.items():
        yield label, SPARSE, PLANES, streams


def frames():
    """The index as a frame with any header, and with any structure."""
    raw = b"\1" + string("k") + string("x" * 2000) + b"\0\0"
    blocks = b"\x50\0\0" + raw[:10] + (2 | (len(raw) - 12) << 3).to_bytes(3, "little") + b"x" + b"\x11\0\0" + raw[-2:]
    size, magic = len(raw), b"\x28\xb5\x2f\xfd"
    for header in (b"\0\x58", b"\xc0\x58" + b"\xff" * 8, b"\xc0\x58\xfe" + b"\xff" * 7,
                   b"\xc0\x58" + size.to_bytes(8, "little"),
                   b"\x80\x58" + size.to_bytes(4, "little"), b"\x40\x58" + (size - 256).to_bytes(2, "little"),
                   b"\xe0" + b"\xff" * 8, b"\xe0\xfe" + b"\xff" * 7, b"\xe0" + size.to_bytes(8, "little"),
                   b"\xa0" + size.to_bytes(4, "little"), b"\x60" + (size - 256).to_bytes(2, "little"),
                   b"\x20" + bytes([size & 255]), b"\xc0\x58" + bytes(8), b"\xa0" + bytes(4), b"\x10\x58", b"\x08\x58",
                   b"\1\x58\0", b"\3\x58\0\0\0\0", b"\2\x58\1\0", b"\1\xff\0", b"\x08\xff", b"\0\x79", b"\0\x78",
                   b"\xa0" + (2**25 + 1).to_bytes(4, "little"), b"\xa0" + (2**25).to_bytes(4, "little"),
                   b"\xa1\0" + b"\xff" * 4, b"\x80\x58" + (2**25 + 1).to_bytes(4, "little"), b"\0\0"):
        yield f"frame header {header.hex()}", make(raw, stored_index=magic + header + blocks)
    for header in (b"\xe3" + bytes(12), b"\xc0\xff" + bytes(12), b"\xe0" + b"\xff" * 8, b"\x04\x58"):
        for length in range(len(header) + 4):
            yield f"frame cut: {header[:length].hex()}", make(raw, stored_index=magic + (header + blocks)[:length])
    def block(kind, size, content=b"", last=0):
        return (last | kind << 1 | size << 3).to_bytes(3, "little") + content

    def whole(kind):  # the raw bytes as blocks of at most 1000, the last of them of this kind
        start = b"".join(block(0, 1000, raw[at:at + 1000]) for at in range(0, size // 1000 * 1000, 1000))
        return start + block(kind, size % 1000, raw[-(size % 1000):], 1)

    none, rle = b"\0\0", bytes([0x50]) * 3
    for label, frame in {
        "good": none + whole(0), "unused bit": b"\x10\0" + whole(0), "reserved bit": b"\x08\0" + whole(0),
        "raw block of 1024": none + block(0, 1024, raw[:1024]) + block(0, size - 1024, raw[1024:], 1),
        "raw block of 1025": none + block(0, 1025, raw[:1025]) + block(0, size - 1025, raw[1025:], 1),
        "RLE block of 1025": none + block(0, 10, raw[:10]) + block(1, 1025, b"x") + block(
            0, size - 1035, raw[1035:], 1),
        "RLE block of 2^17": b"\0\x58" + block(1, 1 << 17, b"x", 1), "RLE block of 2^17 + 1": b"\0\x58" + block(
            1, (1 << 17) + 1, b"x", 1),
        "block of 2^21 - 1": b"\0\x58" + block(0, (1 << 21) - 1, raw),
        "no last block": none + whole(0)[:-3 - size % 1000],
        "reserved block": none + block(3, 0) + whole(0), "reserved last block": none + whole(3),
        "too little": none + whole(0)[1003:], "too much": none + block(0, 1, b"x") + whole(0),
        "empty blocks": none + block(0, 0) * 3 + block(1, 0, b"y") + whole(0), "bytes after it": none + whole(0) + b"x",
        "two frames": none + whole(0) + magic + none + block(0, 0, b"", 1), "no checksum": b"\4\0" + whole(0),
        "wrong checksum": b"\4\0" + whole(0) + b"abcd", "half a checksum": b"\4\0" + whole(0) + b"ab",
        "a compressed block of nothing": none + block(2, 0) + whole(0),
        "raw blocks too long beside a compressed one": none + block(2, 3, rle) + block(0, 1, b"x") + whole(0),
        "a compressed block, too few for the rest": none + block(2, 3, rle, 1),
    }.items():
        yield f"frame: {label}", make(raw, stored_index=magic + frame)
