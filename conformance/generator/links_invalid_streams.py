"""Links that break a rule of streams (SPEC section 5), other than those of frames."""
from . import frames
from .builder import Stream
from .links import copy_of, refused
from .registry import makes_vectors


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


@makes_vectors
def raw_lengths():
    """Streams whose length differs from what the coding requires; all bytes are there."""
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
