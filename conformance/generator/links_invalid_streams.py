"""Links that break a rule of streams (SPEC section 5)."""
from . import frames
from .builder import Stream
from .links import copy_of, refused
from .registry import makes_vectors

MAGIC = frames.MAGIC


def spoiled(id, rule, reason, twin, change, section="5"):
    link = copy_of(twin)
    change(link)
    return refused(f"streams/{id}", link, rule, reason, twin, section)


def in_stream(id, rule, reason, twin, name, stored):
    """Another stored form of one stream; `stored` is a function of the raw bytes."""
    return spoiled(id, rule, reason, twin, lambda link: link.segments[0].compress(name, stored))


@makes_vectors
def longer_than_raw():
    in_table, escape = Stream(b"\1\0\1", b"\1\0\1\0"), Stream(b"", b"\0")

    def put(name, stream):
        return lambda link: link.segments[0].streams.update({name: stream})
    yield spoiled("stored-longer-table", "R-STR-01", "a table with one stored byte too many", "one-lane",
                  put("table", in_table))
    yield spoiled("stored-longer-escape", "R-STR-01", "a stream of no raw bytes has a stored one", "one-lane",
                  put("gap escape", escape))
    yield in_stream("frame-longer-than-raw", "R-STR-01", "a frame of the right bytes that makes them longer",
                    "one-lane",
                    "plane 0", frames.frame)
    yield in_stream("frame-longer-by-one", "R-STR-01", "a frame that is one byte longer than what it holds",
                    "frame-of-10-bytes", "plane 0",
                    lambda raw: frames.header(14, size_bytes=4, window=0) + frames.block(frames.RAW, 2, b"qq")
                    + frames.block(frames.RLE, 12, b"q", last=True))


TWIN = "frame-size-4"  # 503 bytes: 100 times "a", "bcd", 400 times "e"


def frame(raw, **changes):
    return frames.header(**({"content_size": len(raw)} | changes)) + frames.blocks(raw)


def bad_frames():
    last = frames.block(frames.RLE, 400, b"e", last=True)
    first = frames.block(frames.RLE, 100, b"a") + frames.block(frames.RAW, 3, b"bcd")
    return (
        ("no-bytes", lambda raw: b"", "no stored byte"),
        ("magic-only", lambda raw: MAGIC, "only the magic"),
        ("magic-cut", lambda raw: MAGIC[:3], "three bytes of the magic"),
        ("header-cut-window", lambda raw: MAGIC + b"\0", "no window descriptor"),
        ("header-cut-size", lambda raw: MAGIC + b"\x80\x58\xf7\x01", "half a content size"),
        ("no-block", lambda raw: frames.header(len(raw)), "a header without blocks"),
        ("no-frame", lambda raw: b"some text", "bytes that are no frame"),
        ("old-magic", lambda raw: b"\x27" + frame(raw)[1:], "the magic of zstd 0.7"),
        ("no-magic", lambda raw: frame(raw)[4:], "a frame in the format without magic"),
        ("gzip", lambda raw: b"\x1f\x8b\x08" + bytes(7) + b"\3\0" + bytes(8), "gzip"),
        ("skippable", lambda raw: b"\x50\x2a\x4d\x18\x01\0\0\0x", "a skippable frame"),
        ("skippable-before", lambda raw: b"\x50\x2a\x4d\x18\0\0\0\0" + frame(raw),
         "a skippable frame before the frame"),
        ("skippable-after", lambda raw: frame(raw) + b"\x5f\x2a\x4d\x18\0\0\0\0", "a skippable frame after the frame"),
        ("byte-after", lambda raw: frame(raw) + b"\0", "a byte after the frame"),
        ("two-frames", lambda raw: frame(raw[:103]) + frame(raw[103:]), "two frames that hold the bytes together"),
        ("empty-frame-after", lambda raw: frame(raw) + frame(b""), "a second frame that holds nothing"),
        ("cut-last-byte", lambda raw: frame(raw)[:-1], "the last byte of the frame is missing"),
        ("cut-after-block", lambda raw: frames.header(len(raw)) + first, "the last block is missing"),
        ("no-last-block", lambda raw: frames.header(len(raw)) + first + frames.block(frames.RLE, 400, b"e"),
         "no block is marked as the last"),
        ("block-after-last", lambda raw: frames.header(len(raw)) + frames.block(frames.RLE, 100, b"a", last=True)
         + frames.block(frames.RAW, 3, b"bcd") + last, "the first block is marked as the last"),
        ("reserved-block",
         lambda raw: frames.header(len(raw)) + first + frames.block(frames.RESERVED, 1, b"e", last=True),
         "a block of the reserved type"),
        ("reserved-bit", lambda raw: frame(raw, reserved=1), "the reserved bit of the frame header"),
        ("raw-block-cut", lambda raw: frames.header(len(raw)) + frames.block(frames.RAW, 503, b"aaaa", last=True),
         "a raw block that is longer than the bytes left"),
        ("dictionary-1", lambda raw: frame(raw, dictionary=b"\1"), "a dictionary id of one byte"),
        ("dictionary-2", lambda raw: frame(raw, dictionary=b"\1\2"), "a dictionary id of two bytes"),
        ("dictionary-4", lambda raw: frame(raw, dictionary=b"\1\2\3\4"), "a dictionary id of four bytes"),
        ("dictionary-2-0", lambda raw: frame(raw, dictionary=b"\0\0"), "a dictionary id of two bytes that says none"),
        ("dictionary-4-0", lambda raw: frame(raw, dictionary=bytes(4)), "a dictionary id of four bytes that says none"),
        ("dictionary-0", lambda raw: frame(raw, dictionary=b"\0"), "a dictionary id of one byte that says none"),
        ("size-one-more", lambda raw: frame(raw, content_size=504), "a content size that is one too large"),
        ("size-one-less", lambda raw: frame(raw, content_size=502), "a content size that is one too small"),
        ("size-max", lambda raw: frame(raw, content_size=2**64 - 1, size_bytes=8),
         "content size 2^64 - 1, which libzstd takes for unknown"),
        ("size-max-minus-1", lambda raw: frame(raw, content_size=2**64 - 2, size_bytes=8),
         "content size 2^64 - 2, which libzstd takes for an error"),
        ("size-zero", lambda raw: frame(raw, content_size=0, size_bytes=8), "content size 0, and content"),
        ("single-segment-32-mib", lambda raw: frame(raw, content_size=2**25, window=None, size_bytes=4),
         "a single segment with the largest window: not R-STR-03, but the wrong size"),
        ("size-beyond-32-mib", lambda raw: frame(raw, content_size=2**25 + 1, size_bytes=4),
         "a content size above the largest window, which is no window"),
        ("single-segment-other-size", lambda raw: frame(raw, content_size=247, window=None, size_bytes=1),
         "a single segment whose size is right modulo 256"),
        ("single-segment-empty", lambda raw: frame(raw, content_size=0, window=None, size_bytes=4),
         "a single segment of no bytes, and content"),
        ("one-byte-more", lambda raw: frames.header() + frames.blocks(raw + b"e"), "one byte more than the raw length"),
        ("one-byte-less", lambda raw: frames.header() + frames.blocks(raw[:-1]), "one byte less than the raw length"),
        ("empty-content", lambda raw: frames.header() + frames.blocks(b""), "a frame that holds nothing"),
        ("checksum-wrong", lambda raw: flip_last(frames.frame(raw, checksum=True)), "one bit of the checksum is wrong"),
        ("checksum-missing", lambda raw: frames.header(len(raw), checksum=True) + frames.blocks(raw),
         "the checksum is announced and missing"),
        ("checksum-cut", lambda raw: frames.frame(raw, checksum=True)[:-1], "three bytes of the checksum"),
        ("checksum-unannounced", lambda raw: frame(raw) + frames.frame(raw, checksum=True)[-4:],
         "a checksum that is not announced"))


def flip_last(stored):
    return stored[:-1] + bytes([stored[-1] ^ 1])


@makes_vectors
def frames_that_are_wrong():
    for id, stored, reason in bad_frames():
        yield in_stream(f"frame-{id}", "R-STR-02", reason, TWIN, "plane 0", stored)


@makes_vectors
def frames_of_libzstd():
    def damaged(raw):
        good = frames.compressed(raw, 3, checksum=True)
        return good[:60] + bytes([good[60] ^ 0x10]) + good[61:]
    yield in_stream("frame-damaged-block", "R-STR-02", "one bit of a compressed block, under a checksum",
                    "zstd-checksum",
                    "plane 0", damaged)
    yield in_stream("frame-cut-block", "R-STR-02", "a compressed block that is cut off", "zstd-level-19", "plane 0",
                    lambda raw: frames.compressed(raw)[:-20])


@makes_vectors
def other_places():
    """The same faults in the index, the table and an escape stream."""
    chosen = {id: (stored, reason) for id, stored, reason in bad_frames()}
    for id in ("byte-after", "one-byte-more", "one-byte-less", "checksum-missing", "skippable-before", "dictionary-0"):
        stored, reason = chosen[id]

        def in_index(link):
            link.index_stored = stored
        yield spoiled(f"index-frame-{id}", "R-STR-02", f"the index: {reason}", "index-frame-raw-block", in_index)
    for place, twin, name in (("table", "table-compressed", "table"), ("escape", "escapes-compressed", "gap escape")):
        for id in ("byte-after", "one-byte-more", "one-byte-less", "no-frame"):
            stored, reason = chosen[id]
            yield in_stream(f"{place}-frame-{id}", "R-STR-02", f"{name}: {reason}", twin, name, stored)


@makes_vectors
def windows():
    for id, descriptor, reason in (("mantissa", 0x79, "a window of 2^25 and one eighth"), ("double", 0x80, "2^26"),
                                   ("max", 0xFF, "the largest window there is, 3.75 TiB")):
        yield in_stream(f"window-{id}", "R-STR-03", reason, "frame-window-32-mib", "plane 0",
                        lambda raw: frame(raw, window=descriptor))

        def in_index(link):
            link.index_stored = lambda raw: frame(raw, window=descriptor)
        yield spoiled(f"index-window-{id}", "R-STR-03", f"the index: {reason}", "index-frame-raw-block", in_index)
    for id, size, size_bytes in (("one-more", 2**25 + 1, 4), ("max", 2**64 - 1, 8)):
        yield in_stream(f"window-single-segment-{id}", "R-STR-03",
                        "a single segment's content size is its window, which is reported before the wrong size",
                        "frame-window-32-mib", "plane 0",
                        lambda raw: frame(raw, content_size=size, window=None, size_bytes=size_bytes))


@makes_vectors
def raw_lengths():
    """Streams of another length than the coding requires; all bytes are there."""
    def resize(name, by):
        def change(link):
            raw = link.segments[0].streams[name].raw
            link.segments[0].set_raw(name, raw + b"\0" if by > 0 else raw[:-1])
        return change

    for twin, names in (("worked-contexts", ("bitmap", "gap low", "gap high", "sign", "magnitude")),
                        ("signs-absolute", ("gap high", "plane 0", "plane 1")),
                        ("gap-shift-02", ("gap low",)), ("signs-planes", ("plane 0", "plane 1"))):
        for name in names:
            for by, word in ((1, "more"), (-1, "less")):
                if by < 0 and not copy_of(twin).segments[0].streams[name].raw:
                    continue
                yield spoiled(f"length-{twin}-{name.replace(' ', '-')}-{word}", "R-STR-04", f"{name}: one byte {word}",
                              twin, resize(name, by), "8")


@makes_vectors
def padding():
    def change_bits(name, position, bits):
        def change(link):
            raw = bytearray(link.segments[0].streams[name].raw)
            raw[position] |= bits
            link.segments[0].set_raw(name, raw)
        return change

    for id, twin, name, position, bits, reason in (
            ("bitmap", "worked-contexts", "bitmap", 0, 0x10, "the lowest bit of padding"),
            ("bitmap-high", "worked-contexts", "bitmap", 0, 0x80, "the highest bit of padding"),
            ("bitmap-between-contexts", "contexts-16-bitmaps", "bitmap", 0, 0x80,
             "padding before another context's bits"),
            ("gap-low", "gap-shift-03", "gap low", -1, 0x80, "15 bits in two bytes"),
            ("gap-low-23-bits", "gap-shift-23", "gap low", -1, 0x80, "115 bits in 15 bytes"),
            ("sign", "worked-contexts", "sign", 1, 0x04, "two signs in a byte"),
            ("sign-between-contexts", "worked-contexts", "sign", 0, 0x80, "padding before another context's signs"),
            ("magnitude", "worked-contexts", "magnitude", 1, 0x10, "two symbols of two bits"),
            ("magnitude-between-contexts", "worked-contexts", "magnitude", 0, 0x04, "two symbols of one bit")):
        yield spoiled(f"padding-{id}", "R-STR-05", f"{name}: {reason}", twin, change_bits(name, position, bits))


@makes_vectors
def number_of_escapes():
    def raw(name, new):
        return lambda link: link.segments[0].set_raw(name, new)
    for id, twin, name, new, reason in (
            ("gap-none", "gap-256", "gap escape", b"", "a gap escape is announced and missing"),
            ("gap-two", "gap-256", "gap escape", b"\1\0", "one gap escape too many"),
            ("gap-four", "gap-256", "gap escape", b"\1" + bytes(3), "as many bytes as one escape may have"),
            ("magnitude-none", "worked-contexts", "magnitude escape", b"",
             "a magnitude escape is announced and missing"),
            ("magnitude-two", "worked-contexts", "magnitude escape", b"\1\0", "one magnitude escape too many"),
            ("magnitude-three", "worked-contexts", "magnitude escape", b"\1" + bytes(2),
             "as many bytes as one escape may have")):
        yield spoiled(f"escapes-{id}", "R-STR-06", reason, twin, raw(name, new))

    def one_more_announced(link):
        link.segments[0].set_raw("magnitude", b"\x03\x04")
    yield spoiled("escapes-one-of-two", "R-STR-06", "two escapes are announced, one is there", "worked-contexts",
                  one_more_announced)
