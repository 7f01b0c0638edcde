"""Limits (SPEC section 13): links at the limits that every reader supports, and links beyond what any file may have."""
from .builder import DENSE, PATCH, SMALL, SPARSE, Entry, Link, Stream
from .coding import Plan, link
from .frames import compressed, frame
from .links import copy_of, refused, valid
from .links_valid_structure import ONE, ONE_CHANGED
from .model import DTYPES, EMPTY, PIECE, State, Tensor, tensor
from .primitives import Raw, varint
from .registry import makes_vectors

HUGE = 2**64 - 1
U8 = DTYPES["U8"]


def small(data):
    return compressed(data, level=12)


def of_many(label, count, lengths=1):
    return State(label, {f"{i:05x}": tensor("U8", b"\5" * lengths) for i in range(count)})


@makes_vectors
def at_the_limits():
    file = link(EMPTY, of_many("unused", 65536), Plan(DENSE))
    file.segments[0].compress("table", frame)
    file.segments[0].compress("plane 0", frame)
    file.index_stored = small
    yield valid("segment-65536-pieces", file, "13", "as many pieces as a segment may have", ["R-LIM-02"])

    file = link(EMPTY, of_many("unused", 1), Plan(DENSE))
    file.target = of_many("unused", 65536)
    file.segments *= 65536
    file.entries = [Entry(name, 1, U8, (1,), [i], item.digests(), coded=[0])
                    for i, (name, item) in enumerate(file.target.tensors.items(), 1)]
    file.index_stored = small
    yield valid("segments-65536", file, "13", "65,536 segments; as many as every reader supports would be too large a file",
                ["R-LIM-01"])

    file = link(ONE, ONE, removed=[f"{i:05x}" for i in range(2**19)])
    file.index_stored = small
    yield valid("tensors-524288", file, "13", "as many tensor entries as every reader supports", ["R-LIM-01"])

    # Half of it is metadata, the other half piece digests of tensors. The digests are zeros, because they cannot be
    # computed.
    entries = [Entry(f"{i:02}", PATCH, U8, (PIECE * 2**16,), [0] * 2**16, [bytes(32)] * 2**16) for i in range(15)]
    file = Link(ONE, ONE_CHANGED, [("k", "v" * (2**25 - 1))], entries=entries, index_stored=frame)
    room = (1 << 26) - len(file.index_raw())
    pieces = (room - 48) // 33
    rest = room - 33 * pieces - 10  # for the other fields
    entries.append(Entry("9" * rest, PATCH, U8, (PIECE * pieces,), [0] * pieces, [bytes(32)] * pieces))
    assert len(file.index_raw()) == 1 << 26, (len(file.index_raw()) - (1 << 26), rest)
    yield valid("index-64-mib", file, "13", "as long an index as every reader supports", ["R-LIM-01"], apply=False,
                patches=False)


@makes_vectors
def set_bytes():
    for id, limit in (("exact", 8), ("more", 9)):
        yield valid(f"set-bytes-{id}", copy_of("snapshot"), "13", "set tensors of as many bytes as the caller allows",
                    ["R-LIM-04"], features=["set-limit"], set_bytes=limit)
    yield valid("set-bytes-patch", copy_of("one-lane"), "13", "patched tensors do not count", ["R-LIM-04"],
                features=["set-limit"], set_bytes=0)

    def bad(id, reason, twin, limit, change=None):
        file = copy_of(twin)
        if change:
            change(file)
        return refused(f"limits/{id}", file, "R-LIM-04", reason, twin, "13", features=["set-limit"], set_bytes=limit)
    yield bad("set-bytes-one-less", "one byte more than the caller allows", "snapshot", 7)
    yield bad("set-bytes-zeros", "zeros count although nothing codes them", "set-zeros", 0)
    yield bad("set-bytes-sum", "tensors that are small each and too large together", "dtype-u8-set", 34)
    yield bad("set-bytes-over-base", "a set tensor counts although the base has one", "set-zeros-over-base", 7)


def spoiled(id, rule, reason, twin, change, section="13", **members):
    file = copy_of(twin)
    change(file)
    return refused(f"limits/{id}", file, rule, reason, twin, section, **members)


@makes_vectors
def counts():
    """Counts that no file may have, with nothing after them."""
    def count(name, number):
        return lambda file: file.counts.update({name: number})
    for id, name, limit, twin in (("metadata-entries", "metadata", 65536, "metadata-one"),
                                  ("segments", "segments", 2**24, "one-lane"),
                                  ("tensors", "entries", 2**24, "one-lane")):
        for value, word in ((limit + 1, "one more than there may be"), (2**32 + 1, "2^32 + 1"), (HUGE, "2^64 - 1")):
            yield spoiled(f"{id}-{value}", "R-LIM-01", f"{word}: {id.replace('-', ' ')}", twin, count(name, value),
                          allocation_ceiling=1 << 20)


@makes_vectors
def lengths_of_the_index():
    for value in (2**30 + 1, 2**40, 2**63, HUGE):
        def change(file):
            file.header = {"index_raw": value}
        yield spoiled(f"index-raw-{value}", "R-LIM-01", f"an index of {value} raw bytes, of which three are stored",
                      "smallest", change, allocation_ceiling=1 << 20)


@makes_vectors
def strings():
    def name_of(length, content):
        def change(file):
            file.entries[0].name = Raw(varint(length) + content)
        return change

    def whole_name(file):
        name_of(65536, b"n" * 65536)(file)
        file.index_stored = frame

    def metadata(key, value):
        def change(file):
            file.metadata[0] = (Raw(key), Raw(value))
        return change
    yield spoiled("name-65536", "R-LIM-01", "a name of 65536 bytes that is there", "one-lane", whole_name)
    yield spoiled("name-2-64", "R-LIM-01", "a name of 2^64 - 1 bytes", "one-lane", name_of(HUGE, b"t"),
                  allocation_ceiling=1 << 20)
    yield spoiled("metadata-key", "R-LIM-01", "a key of one byte more than all metadata may have", "metadata-one",
                  metadata(varint(2**26 + 1) + b"k", b"\0"), allocation_ceiling=1 << 20)
    yield spoiled("metadata-value", "R-LIM-01", "a value that is too long together with its key", "metadata-one",
                  metadata(b"\4step", varint(2**26 - 3) + b"v"), allocation_ceiling=1 << 20)
    half = "v" * (2**25 - 1)
    for id, pair, reason in (("halves", ("b", Raw(varint(2**25))), "a value of the other half and a byte"),
                             ("key", (Raw(varint(2**25 + 1) + b"b"), ""), "a key of the other half and a byte")):
        def second_half(file):
            file.metadata = [("a", half), pair]
            file.index_stored = frame
        yield spoiled(f"metadata-sum-of-{id}", "R-LIM-01", f"half of the limit that is there, then {reason} that is not",
                      "metadata-one", second_half)
    yield spoiled("metadata-sum-wraps", "R-LIM-01", "lengths whose sum is small again modulo 2^64", "metadata-one",
                  metadata(b"\4step", varint(HUGE - 3) + b"v"), allocation_ceiling=1 << 20)


@makes_vectors
def shapes():
    def shape(dtype, *dimensions):
        def change(file):
            file.entries[0].dtype, file.entries[0].shape, file.entries[0].segments = DTYPES[dtype], dimensions, []
        return change

    def dimensions_256(file):
        file.entries[0].shape = (1,) * 255 + (8,)

    def dimensions_many(file):
        file.entries[0].dimensions = HUGE
    yield spoiled("dimensions-256", "R-LIM-01", "256 dimensions that are there", "one-lane", dimensions_256)
    yield spoiled("dimensions-2-64", "R-LIM-01", "2^64 - 1 dimensions", "one-lane", dimensions_many,
                  allocation_ceiling=1 << 20)
    for id, dtype, dimensions, reason in (
            ("u8", "U8", (2**60 + 1,), "2^60 + 1 bytes"), ("u64", "U64", (2**57, 2), "2^61 bytes"),
            ("f4", "F4", (2**61 + 2,), "2^60 + 1 bytes of packed elements"),
            ("f6", "F6_E2M3", (2**62,), "3 * 2^60 bytes of packed elements"),
            ("wraps-to-0", "U8", (2**32, 2**32), "a product that is 0 modulo 2^64"),
            ("wraps-to-8", "U8", (2**61 + 1, 8), "a product that is 8 modulo 2^64"),
            ("wraps-bits", "U64", (2**58 + 1,), "bits that are 64 modulo 2^64"),
            ("all-max", "C64", (HUGE,) * 8, "eight dimensions of 2^64 - 1")):
        yield spoiled(f"tensor-{id}", "R-LIM-01", reason, "set-zeros", shape(dtype, *dimensions),
                      allocation_ceiling=1 << 20)


@makes_vectors
def segments():
    file = link(EMPTY, of_many("unused", 65537), Plan(DENSE))
    file.segments[0].compress("table", frame)
    file.segments[0].compress("plane 0", frame)
    file.index_stored = small
    yield refused("limits/segment-65537-pieces", file, "R-LIM-02", "one piece more than a segment may have",
                  "segment-65536-pieces", "13")
    ends = b"\1" * 8 + bytes(2 * PIECE - 8)
    three = State("unused", {"t": Tensor(DTYPES["F64"], (2**22 + 1,), ends + b"\2" * 8)})
    file = link(EMPTY, three, Plan(pieces=[("t", 0), ("t", 1), ("t", 2)]))
    yield refused("limits/segment-3-pieces", file, "R-LIM-02", "two full pieces and one of eight bytes",
                  "segment-2-full-pieces", "13")
    other = State("unused", {"s": tensor("U8", b"x"), "t": Tensor(U8, (2**25,), ends)})
    file = link(EMPTY, other, Plan(pieces=[("s", 0), ("t", 0), ("t", 1)]))
    yield refused("limits/segment-other-tensor", file, "R-LIM-02", "a full tensor of two pieces and a byte of another",
                  "segment-2-full-pieces", "13")


@makes_vectors
def stored_lengths():
    """Segments of nearly the maximum length, or longer. Legal content is shorter, so a segment that is too long is padded."""
    steps = [2**62 + i for i in range(1000)]
    base, target = (State(f"longest-{name}", {"t": tensor("F64", lanes)}) for name, lanes in (
        ("base", [0] * 1000), ("target", steps)))
    file = link(base, target, Plan(SPARSE, SMALL, parameters=(23,), widths=(8,)))
    bound = 512 + 94 + (8 + 8) * 1000
    length = len(file.segments[0].encode())
    assert bound * 3 // 4 < length <= bound, (length, bound)
    yield valid("segment-long", file, "13", f"a segment of {length} bytes, of which {bound} are allowed", ["R-LIM-06"])

    def filled(twin, bound):
        """Returns a link that is one byte longer than allowed."""
        def change(file):
            first = file.segments[0]
            first.tail = bytes(bound + 1 - len(first.encode()))
            assert len(first.encode()) == bound + 1
        return change

    for id, twin, bound, reason in (
            ("u8", "one-lane", 512 + 94 + 9 * 8, "one part of eight lanes of a byte"),
            ("bf16", "worked-contexts", 512 + 94 + 10 * 8, "one part of eight lanes of two bytes"),
            ("u64", "magnitudes-u64", 512 + 94 + 16 * 4, "one part of four lanes of eight bytes"),
            ("parts", "gap-restarts", 512 + 94 * 3 + 9 * 900, "three parts of 300 lanes"),
            ("dense", "snapshot", 512 + 94 + 9 * 8, "a dense part")):
        yield spoiled(f"segment-stored-{id}", "R-LIM-06", f"a segment with one byte more than it may have: {reason}",
                      twin, filled(twin, bound))
        exact = copy_of(twin)
        filled(twin, bound - 1)(exact)
        yield refused(f"segment/as-long-as-may-be-{id}", exact, "R-SEG-02",
                      f"a segment with as many bytes as it may have, most of them too many: {reason}", twin, "7")

    def wraps(file):
        lengths = [len(segment.encode()) for segment in file.segments[:2]]
        file.segments[0].stored_length = HUGE
        file.segments[1].stored_length = sum(lengths) + 1
    yield spoiled("segment-stored-wraps", "R-LIM-06", "stored lengths whose sum is right modulo 2^64",
                  "tensors-200-own-segments", wraps)
    huge = copy_of("one-lane")
    huge.segments[0].stored_length = 3 * 2**30
    huge.header = {"segments": 3 * 2**30}
    yield refused("header/segment-of-3-gib-is-not-there", huge, "R-HDR-09", "a segment of 3 GiB that is not there",
                  "one-lane", "4.1", allocation_ceiling=1 << 20)


@makes_vectors
def streams():
    def tail(file):
        file.segments[0].table.tail = bytes(33 + 94 + 1 - 3)

    def compressed_tail(file):
        tail(file)
        file.segments[0].compress("table", frame)

    def raw(name, content):
        return lambda file: file.segments[0].set_raw(name, content)

    def declared(name, length):
        """Returns a stream with a large raw length and ten stored bytes."""
        return lambda file: file.segments[0].streams.update({name: Stream(b"", bytes(10), raw_length=length)})
    yield spoiled("table-128", "R-LIM-03", "a table of 128 bytes, with one part", "one-lane", tail)
    yield spoiled("table-128-compressed", "R-LIM-03", "a table of 128 bytes as a frame", "one-lane", compressed_tail)
    for id, twin, name, content, reason in (
            ("gap-escape-none", "one-lane", "gap escape", b"\0", "a byte of gap escapes where no gap escapes"),
            ("gap-escape-5", "gap-256", "gap escape", b"\1" + bytes(4), "five bytes for one gap"),
            ("gap-escape-varint", "gap-256", "gap escape", varint(2**28), "an escape of five bytes"),
            ("gap-escape-13", "gap-restarts", "gap escape", varint(44) * 3 + bytes(10), "13 bytes for three gaps"),
            ("magnitude-escape-none", "magnitude-u8", "magnitude escape", b"\0", "a byte where no magnitude escapes"),
            ("magnitude-escape-4", "worked-contexts", "magnitude escape", b"\1" + bytes(3),
             "four bytes for one magnitude of 16 bits"),
            ("magnitude-escape-varint", "worked-contexts", "magnitude escape", varint(2**21), "an escape of four bytes"),
            ("magnitude-escape-8-bits", "magnitude-escape-u8", "magnitude escape", varint(128),
             "two bytes for one magnitude of 8 bits"),
            ("magnitude-escape-32-bits", "magnitude-escape-i32", "magnitude escape", varint(2**35),
             "six bytes for one magnitude of 32 bits"),
            ("magnitude-escape-64-bits", "magnitude-u64", "magnitude escape", varint(2**63),
             "ten bytes for one magnitude of 64 bits")):
        yield spoiled(id, "R-LIM-03", reason, twin, raw(name, content))
    for twin, name in (("one-lane", "table"), ("gap-256", "gap escape"), ("worked-contexts", "magnitude escape")):
        for power in (40, 63):
            yield spoiled(f"{name.replace(' ', '-')}-2-{power}", "R-LIM-03", f"{name} of 2^{power} raw bytes", twin,
                          declared(name, 2**power), allocation_ceiling=1 << 20)
