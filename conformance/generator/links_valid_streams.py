"""Valid links: streams, stored or as frames of all kinds (SPEC section 5)."""
from . import frames
from .builder import DENSE, PLANES, SMALL, SPARSE
from .coding import Plan, link
from .links import valid
from .model import EMPTY, RuleState, State, tensor
from .registry import makes_vectors

RUNS = State("runs", {"t": tensor("U8", b"a" * 100 + b"bcd" + b"e" * 400)})
WORDS = State("words", {"t": tensor("U8", b"".join(
    b"%d deltas of %d tensors; " % (i * i % 89, i * 7 % 31) for i in range(200)))})


def framed(state, stored):
    """A snapshot whose plane is stored as a frame."""
    result = link(EMPTY, state, Plan(DENSE))
    result.segments[0].compress("plane 0", stored)
    return result


@makes_vectors
def frames_by_hand():
    f = frames.frame
    for id, stored, reason in (
            ("frame-without-size", lambda raw: f(raw, sized=False), "no content size, no checksum"),
            ("frame-size-2", lambda raw: f(raw, size_bytes=2), "a content size of 2 bytes, which is 256 too low"),
            ("frame-size-4", lambda raw: f(raw, size_bytes=4), "a content size of 4 bytes"),
            ("frame-size-8", lambda raw: f(raw, size_bytes=8), "a content size of 8 bytes"),
            ("frame-checksum", lambda raw: f(raw, checksum=True), "content size and checksum"),
            ("frame-checksum-without-size", lambda raw: f(raw, sized=False, checksum=True), "only a checksum"),
            ("frame-single-segment-2", lambda raw: f(raw, window=None, size_bytes=2),
             "a single segment: the content size is the window"),
            ("frame-single-segment-8", lambda raw: f(raw, window=None, size_bytes=8),
             "a single segment, 8 bytes of size"),
            ("frame-window-1-kib", lambda raw: f(raw, window=frames.WINDOW_1K), "the smallest window"),
            ("frame-window-mantissa", lambda raw: f(raw, window=0x07), "a window that is no power of two"),
            ("frame-window-32-mib", lambda raw: f(raw, window=frames.WINDOW_32M), "the largest window there may be"),
            ("frame-window-below-32-mib", lambda raw: f(raw, window=0x77), "the largest window below the limit"),
            ("frame-unused-bit", lambda raw: frames.header(unused=1) + frames.blocks(raw),
             "the unused bit of a frame header is to be ignored (RFC 8878, 3.1.1.1.1.3)"),
            ("frame-unused-bit-and-checksum", lambda raw: set_bit(f(raw, checksum=True), 4, 0x10),
             "the unused bit, with content size and checksum"),
            ("frame-200-blocks", lambda raw: frames.header(len(raw)) + frames.joined(
                [(frames.RLE, 100, b"a"), *((frames.RAW, 0, b"") for _ in range(60)), (frames.RAW, 3, b"bcd"),
                 *((frames.RLE, 4, b"e") for _ in range(50)), (frames.RLE, 200, b"e")]), "more than 100 blocks"),
            ("frame-compressed-blocks", lambda raw: frames.header() + frames.joined(
                [frames.run(b"a", 100), frames.literals(b"bcd"), frames.run(b"e", 400)]),
             "compressed blocks of literals, without sequences and without content size"),
            ("frame-mixed-blocks", lambda raw: frames.header(len(raw)) + frames.joined(
                [(frames.RLE, 100, b"a"), (frames.RAW, 1, b"b"), frames.literals(b"cd"), (frames.RAW, 0, b""),
                 frames.run(b"e", 400)]), "blocks of all types"),
            ("frame-mixed-blocks-checksum", lambda raw: frames.header(None, checksum=True) + frames.joined(
                [frames.run(b"a", 100), (frames.RAW, 3, b"bcd"), (frames.RLE, 400, b"e")]) + f(raw, checksum=True)[-4:],
             "blocks of all types, and a checksum"),
            ("frame-empty-last-block", lambda raw: frames.header() + frames.joined(
                [*frames.divided(raw), (frames.RAW, 0, b"")]), "a last block of no bytes"),
            ("frame-empty-last-block-rle", lambda raw: frames.header() + frames.joined(
                [*frames.divided(raw), (frames.RLE, 0, b"?")]), "a last RLE block of no bytes"),
            ("frame-single-segment-blocks", lambda raw: frames.header(len(raw), 8, None) + frames.joined(
                [(frames.RLE, 100, b"a"), frames.literals(b"bcd"), (frames.RLE, 400, b"e")]),
             "a single segment of several blocks"),
            ("frame-empty-blocks", empty_blocks, "blocks of no bytes, raw and RLE, before, between and at the end")):
        yield valid(id, framed(RUNS, stored), "5", reason, ["R-STR-03"] if "32" in id else ["R-STR-02"])
    short = State("runs-short", {"t": tensor("U8", b"z" * 40)})
    yield valid("frame-single-segment-1", framed(short, lambda raw: f(raw, window=None)), "5",
                "a single segment with a content size of one byte", ["R-STR-02"])
    fourteen = State("runs-14", {"t": tensor("U8", b"q" * 14)})
    yield valid("frame-of-10-bytes", framed(fourteen, lambda raw: frames.header(14, window=None) + frames.block(
        frames.RLE, 14, b"q", last=True)), "5", "a short frame, of ten bytes for fourteen", ["R-STR-01"])


def set_bit(stored, position, bits):
    return stored[:position] + bytes([stored[position] | bits]) + stored[position + 1:]


@makes_vectors
def largest_blocks():
    """Blocks as large as the window allows (Block_Maximum_Size)."""
    for id, window, largest in (("1-kib", 0x00, 1024), ("1920-bytes", 0x07, 1920), ("2-kib", 0x08, 2048)):
        state = State(f"largest-block-{id}", {"t": tensor("U8", bytes(i * i % 251 for i in range(largest)) + b"r" * largest)})
        for kind, first in (("raw", lambda raw: [(frames.RAW, largest, raw[:largest])]),
                            ("compressed", lambda raw: [frames.literals(raw[:largest - 4]),
                                                         (frames.RAW, 4, raw[largest - 4:largest])])):
            yield valid(f"frame-block-{kind}-{id}", framed(state, lambda raw: frames.header(window=window) + frames.joined(
                [*first(raw), (frames.RLE, largest, b"r")])), "5", f"a {kind} block and an RLE block as large as a window of {largest} bytes allows", ["R-STR-02"])
    runs = RuleState("largest-runs", [{"name": "t", "dtype": "U8", "shape": [1 << 18], "multiply": 0, "add": 114,
                                       "modulus": 251}])
    for id, block in (("rle", (frames.RLE, 1 << 17, b"r")), ("compressed", frames.run(b"r", 1 << 17))):
        yield valid(f"frame-block-{id}-128-kib", framed(runs, lambda raw: frames.header(window=0x38) + frames.joined(
            [block] * 2)), "5", "blocks of 2^17 bytes, the largest there may be", ["R-STR-02"])
    yield valid("frame-block-below-window", framed(runs, lambda raw: frames.header(window=0x37) + frames.joined(
        [(frames.RLE, 15 << 13, b"r")] * 2 + [(frames.RLE, 1 << 14, b"r")])), "5",
        "blocks of 15/16 of 2^17 bytes, the largest that the window allows", ["R-STR-02"])
    yield valid("frame-window-above-blocks", framed(runs, lambda raw: frames.header(window=0x78) + frames.joined(
        [(frames.RLE, 1 << 17, b"r")] * 2)), "5", "a window of 32 MiB does not make blocks larger", ["R-STR-02"])


def empty_blocks(raw):
    empty_raw, empty_rle = frames.block(frames.RAW, 0, b""), frames.block(frames.RLE, 0, b"x")
    whole = frames.block(frames.RLE, 100, b"a") + empty_rle + frames.block(frames.RAW, 3, b"bcd") + empty_raw
    return (frames.header(len(raw)) + empty_raw + whole + frames.block(frames.RLE, 400, b"e")
            + frames.block(frames.RAW, 0, b"", last=True))


@makes_vectors
def frames_of_libzstd():
    for level in (1, 3, 19):
        yield valid(f"zstd-level-{level}", framed(WORDS, lambda raw: frames.compressed(raw, level)), "5",
                    f"what libzstd writes at level {level}: Huffman codes, sequences, repeated offsets", ["R-STR-02"])
    yield valid("zstd-checksum", framed(WORDS, lambda raw: frames.compressed(raw, 3, checksum=True)), "5",
                "what libzstd writes with a checksum", ["R-STR-02"])


@makes_vectors
def stored_streams():
    looks = State("looks-like-a-frame", {"t": tensor("U8", frames.frame(b"x" * 30))})
    yield valid("stored-looks-compressed", link(EMPTY, looks, Plan(DENSE)), "5",
                "stored bytes that look like a frame are what they are", ["R-STR-02"])
    skippable = State("looks-skippable", {"t": tensor("U8", b"\x50\x2a\x4d\x18\0\0\0\0")})
    yield valid("stored-looks-skippable", link(EMPTY, skippable, Plan(DENSE)), "5",
                "stored bytes that look like a skippable frame", ["R-STR-02"])


@makes_vectors
def every_stream_compressed():
    """Every fourth lane changes by 300, then by 20,000: every stream has a run."""
    lanes = [1000] * 1200 + [0] * 600
    base = State("all-streams-base", {"t": tensor("U16", lanes)})
    new = list(lanes)
    for i in range(0, 1200, 4):
        new[i] += 300
    for i in range(1200, 1800):
        new[i] += 20000
    target = State("all-streams-target", {"t": tensor("U16", new)})
    for id, plan in (
            ("small", Plan(SPARSE, SMALL, parameters=(1,), widths=(8,))),
            ("small-bitmap", Plan(SPARSE, SMALL, parameters=(32,), widths=(1,))),
            ("planes", Plan(SPARSE, PLANES, parameters=(2,))), ("dense", Plan(DENSE, PLANES))):
        file = link(base, target, plan)
        compress_runs(file)
        yield valid(f"all-compressed-{id}", file, "5", "every stream that a frame makes shorter is one")
    many = {f"{i:03}": 1 for i in range(300)}
    base = State("many-small-base", {name: tensor("U8", b"\0\0") for name in many})
    target = State("many-small-target", {name: tensor("U8", b"\0\1") for name in many})
    file = link(base, target, Plan(SPARSE, SMALL, parameters=(32,)))
    compress_runs(file)
    file.index_stored = frames.compressed
    yield valid("table-compressed", file, "7.1", "300 parts, whose counts are one frame, as is the index", ["R-LIM-03"])
    far = State("far-base", {"t": tensor("U8", bytes(40 * 300))})
    near = State("far-target", {"t": tensor("U8", (bytes(299) + b"\1") * 40)})
    file = link(far, near, Plan())
    compress_runs(file)
    yield valid("escapes-compressed", file, "8.1", "an escape stream that is a frame", ["R-LIM-03"])


def compress_runs(file):
    for segment in file.segments:
        for name in segment.names():
            raw = segment.stream(name).raw
            if len(frames.frame(raw)) < len(raw):
                segment.compress(name, frames.frame)
