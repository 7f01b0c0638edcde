"""Small links that ask for much, within the limits of section 13: a careful reader allocates less than
`allocation_ceiling`."""
from . import frames
from .builder import PATCH, SET, Entry, Link, Stream
from .links import copy_of, refused, valid
from .links_valid_structure import ONE
from .model import DTYPES, EMPTY, PIECE, State, tensor
from .primitives import Raw, varint
from .registry import makes_vectors

MIB = 1 << 20
TERABYTE = 1 << 40


def spoiled(id, rule, reason, twin, change, ceiling=MIB, section="13", **members):
    file = copy_of(twin)
    change(file)
    return refused(f"resources/{id}", file, rule, reason, twin, section, allocation_ceiling=ceiling, **members)


def terabyte(operation, base, segments):
    """One tensor of 2^40 bytes. The digests of its pieces are zeros, because they cannot be computed."""
    entry = Entry("t", operation, DTYPES["U8"], (TERABYTE,), segments, [bytes(32)] * (TERABYTE // PIECE))
    other = State("unused", {"t": tensor("U8", b"no terabyte")})
    file = Link(base, other, entries=[entry], index_stored=frames.frame)
    file.header = {"target": bytes(32)}
    return file


@makes_vectors
def terabytes():
    nothing = [0] * (TERABYTE // PIECE)
    patch = terabyte(PATCH, ONE, nothing)
    whole = valid("terabyte-patch", patch, "13", "a patch of a tensor of 2^40 bytes, whose pieces are all unchanged",
                  ["R-LIM-01"], apply=False, patches=False, allocation_ceiling=8 * MIB)
    yield whole
    yield refused("resources/terabyte-patch-of-8-bytes", patch, "R-APP-02", "the base's tensor has eight bytes",
                  "terabyte-patch", "9", check=False, allocation_ceiling=8 * MIB)
    yield refused("resources/terabyte-set", terabyte(SET, EMPTY, nothing), "R-LIM-04",
                  "a set tensor of 2^40 bytes where the caller allows 2^30", "set-bytes-exact", "13", set_bytes=2**30,
                  allocation_ceiling=8 * MIB)

    def without_pieces(file):
        file.entries = [Entry("t", PATCH, DTYPES["U8"], (TERABYTE,), [], [bytes(32)])]
        file.segments = []
    yield spoiled("terabyte-without-pieces", "R-INT-03", "2^16 pieces are announced, 32 bytes are there", "one-lane",
                  without_pieces)


@makes_vectors
def counts():
    def count(name, number):
        return lambda file: file.counts.update({name: number})

    def value_of_a_mebibyte(file):
        file.metadata[0] = ("step", Raw(varint(MIB - 4)))

    def dimensions(file):
        file.index = file.index_raw()[:9 + 2 + 2] + b"\x08"
    yield spoiled("tensors-100000", "R-INT-03", "100,000 tensors are announced, two are there", "one-lane",
                  count("entries", 100000))
    yield spoiled("segments-65536", "R-INT-03", "65,536 segments are announced", "smallest", count("segments", 65536))
    yield spoiled("metadata-256", "R-INT-03", "256 pairs are announced", "smallest", count("metadata", 256))
    yield spoiled("metadata-value", "R-INT-03", "a value of a mebibyte, of which nothing is there", "metadata-one",
                  value_of_a_mebibyte)
    yield spoiled("dimensions-8", "R-INT-03", "eight dimensions are announced", "one-lane", dimensions)


@makes_vectors
def raw_lengths():
    """Streams that declare far more bytes than the coding can need."""
    def declared(name, length):
        return lambda file: file.segments[0].streams.update({name: Stream(b"", bytes(10), raw_length=length)})
    for twin, names in (("worked-contexts", ("bitmap", "gap low", "gap high", "sign", "magnitude")),
                        ("one-lane", ("plane 0",))):
        for name in names:
            for power in (32, 60):
                yield spoiled(f"{name.replace(' ', '-')}-2-{power}", "R-STR-04", f"{name} of 2^{power} raw bytes", twin,
                              declared(name, 2**power), section="8")

    def escapes(file):
        segment = file.segments[0]
        segment.streams["gap high"] = Stream(bytes([255]) * 2**16, None)
        segment.compress("gap high", frames.frame)
    yield spoiled("gap-high-bomb", "R-STR-04", "65,536 gaps for one coded lane, as a frame of a few bytes", "one-lane",
                  escapes, section="8")


def bomb(raw, blocks, window=0x38):
    """A frame of RLE blocks that holds 2^17 bytes for every four of its own."""
    body = frames.block(frames.RLE, 1 << 17, b"a") * blocks
    return frames.header(window=window) + body + frames.block(frames.RAW, len(raw), raw, last=True)


@makes_vectors
def frames_that_expand():
    def plane(window):
        return lambda file: file.segments[0].compress("plane 0", lambda raw: bomb(b"", 100, window))

    def in_index(blocks, window=0x38):
        def change(file):
            file.metadata = [("text", "a" * (4 * blocks + 600))]
            file.index_stored = lambda raw: bomb(b"", blocks, window)
        return change

    def announced(file):
        file.segments[0].compress("plane 0", lambda raw: frames.header(2**62, size_bytes=8) + frames.blocks(raw))
    yield spoiled("frame-of-13-megabytes", "R-STR-02", "a plane of 503 bytes whose frame holds 13 million",
                  "frame-window-1-kib", plane(0x38), 2 * MIB, "5")
    yield spoiled("frame-of-13-megabytes-wide", "R-STR-02",
                  "the same with the largest window that a reader has to keep",
                  "frame-window-32-mib", plane(0x78), 48 * MIB, "5")
    yield spoiled("index-of-a-gigabyte", "R-STR-02", "an index of 33 kB whose frame of 32 kB holds a gigabyte",
                  "index-frame-raw-block", in_index(8192), 2 * MIB, "5")
    yield spoiled("frame-announces-exabytes", "R-STR-02", "a content size of 2^62 for 503 bytes", "frame-size-8",
                  announced, section="5")

    def empty_index(file):
        file.header = {"index_raw": 1 << 24}
        file.index_stored = lambda raw: frames.frame(raw, sized=False)
    yield spoiled("index-16-mib-of-600-bytes", "R-STR-02", "an index of 16 MiB of which a frame holds 600 bytes",
                  "index-frame-raw-block", empty_index, 20 * MIB, "5")
    for id, descriptor in (("64-mib", 0x80), ("4-tib", 0xFF)):
        yield spoiled(f"window-{id}", "R-STR-03", "a window that is refused before it is allocated",
                      "frame-window-1-kib",
                      lambda file: file.segments[0].compress(
                          "plane 0", lambda raw: frames.header(len(raw), window=descriptor) + frames.blocks(raw)),
                      section="5")


@makes_vectors
def counts_of_lanes():
    def counted(number):
        def change(file):
            file.segments[0].table.parts = [([], [number])]
        return change

    def full_piece(file):
        file.segments[0].streams["plane 7"].raw_length = 2**21 - 1
    yield spoiled("lanes-2-24", "R-SEG-08", "2^24 coded lanes of eight", "one-lane", counted(2**24), section="7.1")
    yield spoiled("lanes-2-63", "R-SEG-08", "2^63 coded lanes of eight", "one-lane", counted(2**63), section="7.1")
    yield spoiled("full-piece-last-plane", "R-STR-04", "seven planes of 2 MiB are good, the eighth is too short",
                  "dense-full-piece", full_piece, 64 * MIB, "8")
