"""Links that break a rule of segments, their directory and their table (SPEC section 7)."""
from .links import copy_of, refused
from .primitives import crc32, pack, varint
from .registry import makes_vectors

HUGE = 2**64 - 1


def spoiled(id, rule, reason, twin, change, section="7.1", **members):
    """`change` gets the first segment."""
    link = copy_of(twin)
    change(link.segments[0])
    return refused(f"segment/{id}", link, rule, reason, twin, section, **members)


@makes_vectors
def checksum():
    def crc(value):
        def change(segment):
            segment.crc = value(segment.encode())
        return change

    def damage(segment):
        segment.crc = crc32(segment.encode())
        segment.stored = segment.encode()[:-1] + bytes([segment.encode()[-1] ^ 0x40])
    yield spoiled("crc-zero", "R-SEG-01", "no checksum was written", "one-lane", crc(lambda body: 0), "6.1")
    yield spoiled("crc-byte-order", "R-SEG-01", "the checksum in the other byte order", "one-lane",
                  crc(lambda body: int.from_bytes(crc32(body).to_bytes(4, "little"), "big")), "6.1")
    yield spoiled("crc-masked", "R-SEG-01", "a masked checksum, as some formats store it", "one-lane",
                  crc(lambda body: (crc32(body) >> 15 | crc32(body) << 17) + 0xA282EAD8 & 0xFFFFFFFF), "6.1")
    yield spoiled("crc-damaged", "R-SEG-01", "one bit of a value was damaged", "one-lane", damage)
    link = copy_of("tensors-200-own-segments")
    bodies = [segment.encode() for segment in link.segments]
    for segment, body in zip(link.segments[:2], (bodies[1], bodies[0])):
        segment.crc, segment.stored = crc32(segment.encode()), body
    assert len(bodies[0]) == len(bodies[1]) and bodies[0] != bodies[1]
    yield refused("segment/crc-swapped", link, "R-SEG-01", "two segments have changed places",
                  "tensors-200-own-segments", "6.1")
    link = copy_of("tensors-200-own-segments")
    link.segments[-1].crc = 0
    yield refused("segment/crc-of-last", link, "R-SEG-01", "the last segment is checked like the first",
                  "tensors-200-own-segments", "6.1")


@makes_vectors
def directory():
    def tail(data):
        def change(segment):
            segment.tail = data
        return change

    def cut(segment):
        segment.stored = segment.encode()[:-1]

    def shift(segment):
        """The stored length of a plane is one too small, and so is its raw length: its last byte belongs to no
        stream."""
        segment.streams["plane 0"].raw_length = segment.streams["plane 0"].stored_length = 0

    def wrap(segment):
        one, two = segment.streams["plane 0"], segment.streams["plane 1"]
        one.raw_length = one.stored_length = HUGE
        two.raw_length = two.stored_length = len(one.raw) + len(two.raw) + 1

    def beyond(segment):
        segment.streams["plane 0"].raw_length = segment.streams["plane 0"].stored_length = HUGE
    yield spoiled("directory-byte-after", "R-SEG-02", "a byte after the last stream", "one-lane", tail(b"\0"), "7")
    yield spoiled("directory-cut", "R-SEG-02", "the last byte of the last stream is missing", "one-lane", cut, "7")
    yield spoiled("directory-stream-shorter", "R-SEG-02", "a byte of a stream that the directory does not count",
                  "one-lane", shift, "7")
    yield spoiled("directory-wraps", "R-SEG-02", "stored lengths whose sum is right modulo 2^64",
                  "dense-zero-difference",
                  wrap, "7")
    yield spoiled("directory-2-64", "R-SEG-02", "a stream of 2^64 - 1 bytes", "one-lane", beyond, "7",
                  allocation_ceiling=1 << 20)


def table(**changes):
    """Returns a change of the table's fields."""
    def change(segment):
        for name, value in changes.items():
            setattr(segment.table, name, value)
    return change


def raw_table(*parts):
    return lambda segment: segment.set_raw("table", b"".join(bytes([p]) if isinstance(p, int) else p for p in parts))


@makes_vectors
def contexts():
    lots = {"positions": [0] * 17, "widths": [2] * 17, "parts": [([0] * 16, [0] * 17)]}
    yield spoiled("contexts-0", "R-SEG-03", "no context", "dense-zero-difference", raw_table(0))
    yield spoiled("contexts-0-with-counts", "R-SEG-03", "k = 0 before a table of one context", "one-lane",
                  table(contexts=0))
    yield spoiled("contexts-17", "R-SEG-03", "a whole table of 17 contexts", "worked-contexts", table(**lots))
    yield spoiled("contexts-255", "R-SEG-03", "k = 255", "dense-zero-difference", table(contexts=255))
    yield spoiled("absolute-2-dense", "R-SEG-04", "dense absolute values in two contexts", "snapshot",
                  table(parts=[([0], [0, 8])]))
    yield spoiled("absolute-2-sparse", "R-SEG-04", "sparse absolute values in two contexts", "signs-absolute",
                  table(positions=[0, 0], parts=[([256], [8, 0])]))
    yield spoiled("absolute-16", "R-SEG-04", "absolute values in 16 contexts, of which one has lanes", "set-same",
                  table(parts=[([0] * 15, [0] * 15 + [8])]))


@makes_vectors
def parameters():
    for value in (24, 31, 33, 64, 255):
        yield spoiled(f"position-{value}", "R-SEG-05", f"position parameter {value}", "one-lane",
                      table(positions=[value]))
    yield spoiled("position-second-24", "R-SEG-05", "position parameter 24 of the second context", "worked-contexts",
                  table(positions=[32, 24]))
    yield spoiled("position-second-33", "R-SEG-05", "position parameter 33 of the second context", "worked-contexts",
                  table(positions=[32, 33]))
    def as_shift(bits):
        def change(segment):
            segment.table.positions = [bits]
            segment.set_raw("gap low", pack([7], bits))
            segment.set_raw("gap high", b"\0")
        return change

    def as_bitmap(segment):
        segment.table.positions, segment.table.parts = [33], [([], [8])]
        segment.set_raw("bitmap", b"\x80")
        segment.set_raw("gap high", b"")

    def widths(width, steps):
        """Symbols of an invalid width; the rest is right."""
        def change(segment):
            segment.table.widths = [width]
            segment.set_raw("magnitude", pack([abs(step) - 1 for step in steps], width))
            segment.set_raw("magnitude escape", b"")
        return change
    for bits in (24, 31, 33):
        yield spoiled(f"position-{bits}-as-shift", "R-SEG-05", f"a gap with {bits} low bits, coded as such", "one-lane",
                      as_shift(bits))
    yield spoiled("position-33-as-bitmap", "R-SEG-05", "a bitmap under another parameter", "one-lane", as_bitmap)
    steps = [1, -1, 3, -3, 4, -4, 5, 131, 132, -600]  # those of the twin
    for width in (16, 32):
        yield spoiled(f"width-{width}-as-such", "R-SEG-06", f"symbols of {width} bits, coded as such",
                      "magnitude-width-2",
                      widths(width, steps))
    for value in (0, 3, 16, 255):
        yield spoiled(f"width-{value}", "R-SEG-06", f"symbol width {value}", "magnitude-width-2", table(widths=[value]))
    yield spoiled("width-second-5", "R-SEG-06", "symbol width 5 of the second context", "worked-contexts",
                  table(widths=[1, 5]))


@makes_vectors
def thresholds():
    yield spoiled("threshold-257", "R-SEG-07", "a threshold of 257 with eight exponent bits", "contexts-thresholds-256",
                  table(parts=[([257], [64, 22])]))
    yield spoiled("threshold-sum", "R-SEG-07", "increments that exceed 2^8 together", "contexts-equal-thresholds",
                  table(parts=[([100, 100, 57], [64, 0, 0, 0])]))
    yield spoiled("threshold-wraps", "R-SEG-07", "increments whose sum is right again modulo 2^64",
                  "contexts-equal-thresholds", table(parts=[([100, HUGE, 1], [64, 0, 0, 0])]))
    yield spoiled("threshold-no-exponent", "R-SEG-07", "threshold 2 where there are no exponent bits",
                  "contexts-no-exponent-1", table(parts=[([2], [8, 0])]))

    def of_second_part(segment):
        _increments, counts = segment.table.parts[1]
        segment.table.parts[1] = ([33], counts)
    yield spoiled("threshold-other-dtype", "R-SEG-07", "a threshold of 33 for F16 next to parts of BF16",
                  "parts-dtypes-planes", of_second_part)


@makes_vectors
def counts():
    def parts(*rows):
        return table(parts=[list(row) for row in rows])
    yield spoiled("counts-dense-less", "R-SEG-08", "a dense part of eight lanes that counts seven", "signs-planes",
                  parts(([], [7])))
    yield spoiled("counts-dense-more", "R-SEG-08", "a dense part of eight lanes that counts nine", "signs-planes",
                  parts(([], [9])))
    yield spoiled("counts-dense-contexts", "R-SEG-08", "contexts that count 63 of 64 dense lanes together",
                  "contexts-equal-thresholds", parts(([100, 0, 0], [26, 0, 0, 37])))
    yield spoiled("counts-sparse-more", "R-SEG-08", "nine coded lanes of eight", "one-lane", parts(([], [9])))
    yield spoiled("counts-sparse-2-64", "R-SEG-08", "2^64 - 1 coded lanes of eight", "one-lane", parts(([], [HUGE])),
                  allocation_ceiling=1 << 20)
    yield spoiled("counts-bitmap-less", "R-SEG-08", "a bitmap for seven of eight lanes", "lanes-8-bitmap",
                  parts(([], [7])))
    yield spoiled("counts-bitmaps-more", "R-SEG-08", "16 bitmaps for 65 of 64 lanes", "contexts-16-bitmaps", one_more)
    yield spoiled("counts-wrap", "R-SEG-08", "counts whose sum is right again modulo 2^64", "worked-contexts",
                  parts(([1], [HUGE, 7])))
    yield spoiled("counts-mixed-more", "R-SEG-08", "a bitmap and gaps for nine of eight lanes", "worked-contexts",
                  parts(([1], [4, 5])))

    def between_parts(segment):
        segment.table.parts[0], segment.table.parts[1] = ([], [6]), ([], [2])
    yield spoiled("counts-between-parts", "R-SEG-08", "one lane more in a part and one less in the next",
                  "parts-dtypes-dense-one-context", between_parts)


def one_more(segment):
    increments, numbers = segment.table.parts[0]
    segment.table.parts[0] = (increments, [numbers[0] + 1, *numbers[1:]])


@makes_vectors
def after_the_last_count():
    def tail(data):
        return table(tail=data)
    yield spoiled("table-byte-after", "R-SEG-09", "a zero byte after the last count", "one-lane", tail(b"\0"))
    yield spoiled("table-part-after", "R-SEG-09", "the counts of a part that is not there", "worked-contexts",
                  tail(varint(1) + varint(4) + varint(2)))
    yield spoiled("table-at-its-limit", "R-SEG-09", "a table of 127 bytes, as long as one with one part may be",
                  "one-lane", tail(bytes(127 - 3)))
