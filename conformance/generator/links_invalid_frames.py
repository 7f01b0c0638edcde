"""Links with a zstd frame that breaks R-STR-02 or R-STR-03 (SPEC section 5): each row of its structure, in a stream and
in the index. The content of compressed blocks is up to the writer (R-STR-07), so it is valid in all of them."""
from . import frames
from .frames import MAGIC, RAW, RESERVED, RLE, block, divided, header, joined
from .links import copy_of, refused
from .registry import makes_vectors

TWIN, INDEX_TWIN = "frame-size-4", "index-frame-raw-block"  # both have runs and other bytes


def frame(raw, **changes):
    return header(**({"content_size": len(raw)} | changes)) + frames.blocks(raw)


def unmarked(raw):
    """Blocks of which none is marked as the last one."""
    return b"".join(block(*piece) for piece in divided(raw))


def checksum(raw):
    return frames.frame(raw, checksum=True)[-4:]


def flip_last(stored):
    return stored[:-1] + bytes([stored[-1] ^ 1])


def in_compressed(raw):
    """All data in compressed blocks without sequences."""
    return [frames.run(content, size) if kind == RLE else frames.literals(content)
            for kind, size, content in divided(raw)]


BAD = (
    # 1. magic
    ("no-bytes", lambda raw: b"", "no stored byte"),
    ("magic-cut", lambda raw: MAGIC[:3], "three bytes of the magic"),
    ("no-frame", lambda raw: b"some text", "bytes that are no frame"),
    ("old-magic", lambda raw: b"\x27" + frame(raw)[1:], "the magic of zstd 0.7"),
    ("magic-last-byte", lambda raw: frame(raw)[:3] + b"\xfc" + frame(raw)[4:], "the last byte of the magic"),
    ("no-magic", lambda raw: frame(raw)[4:], "a frame in the format without magic"),
    ("gzip", lambda raw: b"\x1f\x8b\x08" + bytes(7) + b"\3\0" + bytes(8), "gzip"),
    ("skippable", lambda raw: b"\x50\x2a\x4d\x18\x01\0\0\0x", "a skippable frame"),
    ("skippable-before", lambda raw: b"\x50\x2a\x4d\x18\0\0\0\0" + frame(raw), "a skippable frame before the frame"),
    # 2. descriptor and dictionary flag
    ("magic-only", lambda raw: MAGIC, "only the magic"),
    ("dictionary-1", lambda raw: frame(raw, dictionary=b"\1"), "a dictionary id of one byte"),
    ("dictionary-2", lambda raw: frame(raw, dictionary=b"\1\2"), "a dictionary id of two bytes"),
    ("dictionary-4", lambda raw: frame(raw, dictionary=b"\1\2\3\4"), "a dictionary id of four bytes"),
    ("dictionary-0", lambda raw: frame(raw, dictionary=b"\0"), "a dictionary id of one byte that says none"),
    ("dictionary-2-0", lambda raw: frame(raw, dictionary=b"\0\0"), "a dictionary id of two bytes that says none"),
    ("dictionary-4-0", lambda raw: frame(raw, dictionary=bytes(4)), "a dictionary id of four bytes that says none"),
    # 3. the rest of the header
    ("header-cut-window", lambda raw: MAGIC + b"\0", "no window descriptor"),
    ("header-cut-size", lambda raw: MAGIC + b"\x80\x58\xf7\x01", "half a content size"),
    ("header-cut-size-2", lambda raw: MAGIC + b"\x40\x58\xf7", "half a content size of two bytes"),
    ("header-cut-size-8", lambda raw: MAGIC + b"\xc0\x58" + bytes(7), "seven bytes of a content size of eight"),
    ("header-cut-single-segment", lambda raw: MAGIC + b"\x20", "a single segment without its content size"),
    ("header-cut-single-segment-8", lambda raw: MAGIC + b"\xe0" + bytes(7), "a single segment with half its content size"),
    # 5. reserved bit
    ("reserved-bit", lambda raw: frame(raw, reserved=1), "the reserved bit of the frame header"),
    ("reserved-bit-and-unused", lambda raw: frame(raw, reserved=1, unused=1), "the reserved bit, and the unused one"),
    # 6. content size
    ("size-one-more", lambda raw: frame(raw, content_size=len(raw) + 1), "a content size that is one too large"),
    ("size-one-less", lambda raw: frame(raw, content_size=len(raw) - 1), "a content size that is one too small"),
    ("size-256-less", lambda raw: header(len(raw) + 256, 2) + frames.blocks(raw),
     "a content size of two bytes without the 256 that belong to it"),
    ("size-2-32", lambda raw: frame(raw, content_size=len(raw) + 2**32, size_bytes=8), "a content size right modulo 2^32"),
    ("size-max", lambda raw: frame(raw, content_size=2**64 - 1, size_bytes=8),
     "content size 2^64 - 1, which libzstd takes for unknown"),
    ("size-max-minus-1", lambda raw: frame(raw, content_size=2**64 - 2, size_bytes=8),
     "content size 2^64 - 2, which libzstd takes for an error"),
    ("size-zero", lambda raw: frame(raw, content_size=0, size_bytes=8), "content size 0, and content"),
    ("size-beyond-32-mib", lambda raw: frame(raw, content_size=2**25 + 1, size_bytes=4),
     "a content size above the largest window, which is no window"),
    ("single-segment-32-mib", lambda raw: frame(raw, content_size=2**25, window=None, size_bytes=4),
     "a single segment with the largest window: not R-STR-03, but the wrong size"),
    ("single-segment-other-size", lambda raw: frame(raw, content_size=len(raw) % 256, window=None, size_bytes=1),
     "a single segment whose size is right modulo 256"),
    ("single-segment-empty", lambda raw: frame(raw, content_size=0, window=None, size_bytes=4),
     "a single segment of no bytes, and content"),
    # 7. blocks
    ("no-block", lambda raw: header(len(raw)), "a header without blocks"),
    ("block-header-cut-1", lambda raw: header() + unmarked(raw) + b"\1", "one byte of a block header"),
    ("block-header-cut-2", lambda raw: header() + unmarked(raw) + b"\1\0", "two bytes of a block header"),
    ("no-last-block", lambda raw: header(len(raw)) + unmarked(raw), "no block is marked as the last"),
    ("cut-after-block", lambda raw: header(len(raw)) + b"".join(block(*piece) for piece in divided(raw)[:-1]),
     "the last block is missing"),
    ("block-after-last", lambda raw: header(len(raw)) + b"".join(
        block(*piece, last=True) for piece in divided(raw)), "each block is marked as the last"),
    ("reserved-block", lambda raw: header() + unmarked(raw) + block(RESERVED, 0, b"", last=True),
     "a block of the reserved type"),
    ("reserved-block-first", lambda raw: header() + block(RESERVED, 1, b"e") + frames.blocks(raw),
     "the first block is of the reserved type"),
    ("cut-last-byte", lambda raw: frame(raw)[:-1], "the last byte of the frame is missing"),
    ("raw-block-cut", lambda raw: header() + joined([(RAW, len(raw), raw[:9])]),
     "a raw block that is longer than the bytes left"),
    ("rle-block-cut", lambda raw: header() + unmarked(raw[:-1]) + block(RLE, 1, b"", last=True),
     "an RLE block without its byte"),
    ("compressed-block-cut", lambda raw: header() + joined(in_compressed(raw))[:-1],
     "a compressed block that is longer than the bytes left"),
    ("block-above-raw-length", lambda raw: header() + joined([(RLE, len(raw) + 1, b"a")]),
     "an RLE block of more bytes than there are"),
    ("blocks-above-raw-length", lambda raw: header() + joined([*divided(raw), (RLE, 1, b"a")]),
     "blocks of more bytes than there are"),
    ("rle-above-raw-length-empty-block", lambda raw: header() + joined([(RLE, len(raw) + 1, b"a"), frames.literals(b"")]),
     "an RLE block of more bytes than there are, before a compressed one of none"),
    ("one-byte-less", lambda raw: header() + frames.blocks(raw[:-1]), "one byte less than the raw length"),
    ("empty-content", lambda raw: header() + frames.blocks(b""), "a frame that holds nothing"),
    ("empty-blocks-only", lambda raw: header() + joined([(RAW, 0, b"")] * 9 + [(RLE, 0, b"x")]), "empty blocks only"),
    # 8. checksum and end
    ("checksum-missing", lambda raw: header(len(raw), checksum=True) + frames.blocks(raw),
     "the checksum is announced and missing"),
    ("checksum-cut", lambda raw: frames.frame(raw, checksum=True)[:-1], "three bytes of the checksum"),
    ("checksum-unannounced", lambda raw: frame(raw) + checksum(raw), "a checksum that is not announced"),
    ("checksum-twice", lambda raw: frames.frame(raw, checksum=True) + checksum(raw), "the checksum twice"),
    ("byte-after", lambda raw: frame(raw) + b"\0", "a byte after the frame"),
    ("byte-after-checksum", lambda raw: frames.frame(raw, checksum=True) + b"\0", "a byte after the checksum"),
    ("skippable-after", lambda raw: frame(raw) + b"\x5f\x2a\x4d\x18\0\0\0\0", "a skippable frame after the frame"),
    ("empty-frame-after", lambda raw: frame(raw) + frame(b""), "a second frame that holds nothing"),
    ("two-frames", lambda raw: frame(raw[:103]) + frame(raw[103:]), "two frames that hold the bytes together"),
    # Faults that decompression finds.
    ("checksum-wrong", lambda raw: flip_last(frames.frame(raw, checksum=True)), "one bit of the checksum is wrong"),
    ("checksum-zero", lambda raw: frames.frame(raw, checksum=True)[:-4] + bytes(4), "a checksum of zeros"),
    ("checksum-high-half", lambda raw: frames.frame(raw, checksum=True)[:-4] + (frames.xxh64(raw) >> 32).to_bytes(
        4, "little"), "the high half of XXH64 instead of the low one"),
    ("checksum-wrong-compressed", lambda raw: header(checksum=True) + joined(in_compressed(raw)) + flip_last(checksum(raw)),
     "compressed blocks, and one bit of the checksum is wrong"),
    ("compressed-byte-more", lambda raw: header() + joined([*in_compressed(raw), frames.literals(b"e")]),
     "compressed blocks of one byte more than the raw length"),
    ("compressed-byte-less", lambda raw: header() + joined(in_compressed(raw[:-1])),
     "compressed blocks of one byte less than the raw length"),
    ("compressed-and-rle-more", lambda raw: header() + joined([(RLE, len(raw), b"a"), frames.literals(b"e")]),
     "an RLE block of all bytes, and a compressed one of one more"),
    ("compressed-empty", lambda raw: header(window=0x38) + joined([frames.literals(b"")]),
     "a compressed block of no bytes"),
    ("compressed-sized-byte-more", lambda raw: header(len(raw)) + joined([*in_compressed(raw), frames.literals(b"e")]),
     "compressed blocks of one byte more than the content size says, which is right"))


def spoiled(id, rule, reason, twin, name, stored):
    """`name`: a stream of the first segment; None: the index."""
    link = copy_of(twin)
    if name is None:
        link.index_stored = stored
    else:
        link.segments[0].compress(name, stored)
    return refused(f"streams/{id}", link, rule, reason, twin, "5")


@makes_vectors
def structure():
    for id, stored, reason in BAD:
        yield spoiled(f"frame-{id}", "R-STR-02", reason, TWIN, "plane 0", stored)
        yield spoiled(f"index-frame-{id}", "R-STR-02", f"the index: {reason}", INDEX_TWIN, None, stored)


@makes_vectors
def in_tables_and_escapes():
    for place, twin, name in (("table", "table-compressed", "table"), ("escape", "escapes-compressed", "gap escape")):
        for id, stored, reason in BAD:
            if id in ("byte-after", "blocks-above-raw-length", "one-byte-less", "no-frame"):
                yield spoiled(f"{place}-frame-{id}", "R-STR-02", f"{name}: {reason}", twin, name, stored)


@makes_vectors
def block_sizes():
    """Blocks above Block_Maximum_Size: the window, or 2^17."""
    for id, window, largest in (("1-kib", 0x00, 1024), ("1920-bytes", 0x07, 1920), ("2-kib", 0x08, 2048)):
        for kind, twin, pieces in (
                ("raw", "raw", lambda raw: [(RAW, largest + 1, raw[:largest + 1]), (RLE, largest - 1, b"r")]),
                ("rle", "raw", lambda raw: [(RAW, largest - 1, raw[:largest - 1]), (RLE, largest + 1, b"r")]),
                ("compressed", "compressed", lambda raw: [frames.literals(raw[:largest - 3]),
                                                          (RAW, 3, raw[largest - 3:largest]), (RLE, largest, b"r")])):
            yield spoiled(f"block-{kind}-{id}", "R-STR-02",
                          f"a {kind} block of one byte more than a window of {largest} bytes allows",
                          f"frame-block-{twin}-{id}", "plane 0",
                          lambda raw: header(window=window) + joined(pieces(raw)))
    for id, window, size in (("128-kib", 0x38, (1 << 17) + 1), ("window-32-mib", 0x78, (1 << 17) + 1),
                             ("15-16ths", 0x37, (15 << 13) + 1)):
        yield spoiled(f"block-rle-{id}", "R-STR-02", f"an RLE block of {size} bytes, one more than there may be",
                      "frame-block-rle-128-kib", "plane 0", lambda raw: header(window=window) + joined(
                          [(RLE, size, b"r"), *[(RLE, 1 << 16, b"r")] * 2, (RLE, 2**17 - size, b"r")]
                          if size < 2**17 else [(RLE, size, b"r"), (RLE, 2**18 - size, b"r")]))
    yield spoiled("block-above-single-segment", "R-STR-02", "a block above the window of a single segment",
                  "frame-single-segment-8", "plane 0",
                  lambda raw: header(len(raw), 8, None) + joined([(RLE, len(raw) + 1, b"a")]))
    # The structure is right, but the blocks cannot hold that many bytes.
    yield spoiled("frame-too-few-blocks", "R-STR-02", "one compressed block for more bytes than two can give",
                  "frame-block-compressed-128-kib", "plane 0",
                  lambda raw: header(window=0x38) + joined([frames.run(b"r", 1 << 17)]))


@makes_vectors
def frames_of_libzstd():
    def damaged(raw):
        good = frames.compressed(raw, 3, checksum=True)
        return good[:60] + bytes([good[60] ^ 0x10]) + good[61:]
    yield spoiled("frame-damaged-block", "R-STR-02", "one bit of a compressed block, under a checksum", "zstd-checksum",
                  "plane 0", damaged)
    yield spoiled("frame-cut-block", "R-STR-02", "a compressed block that is cut off", "zstd-level-19", "plane 0",
                  lambda raw: frames.compressed(raw)[:-20])


@makes_vectors
def windows():
    for id, descriptor, reason in (("mantissa", 0x79, "a window of 2^25 and one eighth"), ("double", 0x80, "2^26"),
                                   ("max", 0xFF, "the largest window there is, 3.75 TiB")):
        for place, twin, name in (("", "frame-window-32-mib", "plane 0"), ("index-", INDEX_TWIN, None)):
            yield spoiled(f"{place}window-{id}", "R-STR-03", reason, twin, name,
                          lambda raw: frame(raw, window=descriptor))
    for id, size, size_bytes in (("one-more", 2**25 + 1, 4), ("max", 2**64 - 1, 8)):
        yield spoiled(f"window-single-segment-{id}", "R-STR-03",
                      "a single segment's content size is its window, which is reported before the wrong size",
                      "frame-window-32-mib", "plane 0",
                      lambda raw: frame(raw, content_size=size, window=None, size_bytes=size_bytes))
