"""Links that break a rule of the index (SPEC section 6)."""
import copy

from .builder import PATCH, REMOVE, SET, Entry
from .links import copy_of, refused
from .model import DTYPES, EMPTY, State, tensor
from .primitives import Raw, crc32
from .registry import makes_vectors


def spoiled(id, rule, reason, twin, change, section="6", **members):
    link = copy_of(twin)
    change(link)
    return refused(f"index/{id}", link, rule, reason, twin, section, **members)


@makes_vectors
def checksum():
    for id, twin, crc, reason in (
            ("crc-zero", "one-lane", lambda link: 0, "no checksum was written"),
            ("crc-of-raw", "index-compressed", lambda link: crc32(link.index_raw()),
             "the checksum of the raw index instead of the stored one"),
            ("crc-not-inverted", "one-lane", lambda link: crc32(link.index_raw()) ^ 0xFFFFFFFF,
             "a CRC without the final exclusive or"),
            ("crc-castagnoli", "one-lane", lambda link: castagnoli(link.index_raw()), "CRC-32C")):
        def change(link):
            link.header = {"index_crc": crc(link)}
        yield spoiled(id, "R-IDX-01", reason, twin, change)

    def damage(link):
        link.header = {"index_crc": crc32(link.index_raw())}
        link.entries[0].name = "s"
    yield spoiled("crc-name-damaged", "R-IDX-01", "one bit of a name was damaged", "one-lane", damage)


def castagnoli(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@makes_vectors
def after_the_last_digest():
    def tail(data):
        def change(link):
            link.index_tail = data
        return change
    yield spoiled("tail-zero", "R-IDX-02", "a zero byte after the last digest", "one-lane", tail(b"\0"))
    yield spoiled("tail-empty-link", "R-IDX-02", "a byte after the counts of an index without entries", "smallest",
                  tail(b"\0"))
    yield spoiled("tail-digest-of-removal", "R-IDX-02", "a removal has no digest", "remove-all", tail(bytes(32)))


@makes_vectors
def order_of_metadata():
    def swap(one, two):
        def change(link):
            link.metadata[one], link.metadata[two] = link.metadata[two], link.metadata[one]
        return change

    def repeat(link):
        link.metadata[1] = link.metadata[0]

    def same_key(link):
        link.metadata[2] = (link.metadata[1][0], "another value")
    yield spoiled("metadata-order", "R-IDX-03", "two keys in the wrong order", "metadata-nul", swap(0, 1))
    yield spoiled("metadata-prefix", "R-IDX-03", "a key before its proper prefix", "metadata-sorted", swap(1, 2))
    yield spoiled("metadata-empty-last", "R-IDX-03", "the empty key after another", "metadata-sorted", swap(0, 4))
    yield spoiled("metadata-repeated", "R-IDX-03", "the same pair twice", "metadata-nul", repeat)
    yield spoiled("metadata-same-key", "R-IDX-03", "the same key with two values", "metadata-sorted", same_key)
    yield spoiled("metadata-utf-16-order", "R-IDX-03", "U+1F600 before U+FFFF, as UTF-16 orders them",
                  "metadata-unicode", swap(1, 2))


@makes_vectors
def coding_bytes():
    for id, twin, coding, reason in (
            ("bit-5", "one-lane", 0x24, "bit 5"), ("bit-6", "one-lane", 0x44, "bit 6"),
            ("bit-7", "one-lane", 0x84, "bit 7"),
            ("values-3-sparse", "one-lane", 0x1C, "values 3, sparse"),
            ("values-3-dense", "snapshot", 0x18, "values 3, dense"),
            ("dense-small", "dense-zero-difference", 0x11, "relative small with dense positions"),
            ("ff", "one-lane", 0xFF, "all bits")):
        def change(link):
            link.segments[0].coding = coding
        yield spoiled(f"coding-{id}", "R-IDX-05", reason, twin, change, "6.1")


@makes_vectors
def order_of_names():
    def swap(one, two):
        def change(link):
            entries = link.entries
            i, j = ([entry.name for entry in entries].index(name) for name in (one, two))
            entries[i], entries[j] = entries[j], entries[i]
        return change

    def repeat(link):
        link.entries.insert(1, copy.deepcopy(link.entries[0]))

    def remove_and_set(link):
        link.entries.insert(0, Entry("t", REMOVE))
    yield spoiled("names-order", "R-IDX-06", "two names in the wrong order", "names-in-order", swap("A", "B"))
    yield spoiled("names-prefix", "R-IDX-06", "a name before its proper prefix", "names-in-order", swap("a", "aa"))
    yield spoiled("names-empty-last", "R-IDX-06", "the empty name is not the first", "names-in-order", swap("", "\0"))
    yield spoiled("names-utf-16-order", "R-IDX-06", "U+10000 before U+FFFF, as UTF-16 orders them", "names-in-order",
                  swap("\uffff", "\U00010000"))
    yield spoiled("names-case-order", "R-IDX-06", "names ordered without regard to case", "names-in-order",
                  swap("B", "a"))
    yield spoiled("names-repeated", "R-IDX-06", "the same removal twice", "remove-all", repeat)
    yield spoiled("names-remove-and-set", "R-IDX-06", "a tensor that is removed and set again", "retype",
                  remove_and_set,
                  "6.2")


@makes_vectors
def operations_and_dtypes():
    for operation in (3, 0x80, 0xFF):
        def change(link):
            link.entries[0].operation = Raw([operation])
        yield spoiled(f"operation-{operation}", "R-IDX-07", f"operation {operation}", "one-lane", change, "6.2")
    for code in (0, 23, 0x85, 254):
        def change(link):
            link.entries[0].dtype = code
        yield spoiled(f"dtype-{code}", "R-IDX-08", f"dtype code {code}", "one-lane", change, "6.2")


@makes_vectors
def byte_lengths():
    for id, dtype, shape, reason in (
            ("f4-odd", "F4", (3,), "three elements of four bits"), ("f4-scalar", "F4", (), "half a byte"),
            ("f6-3", "F6_E2M3", (3,), "18 bits"), ("f6-2", "F6_E3M2", (1, 2), "12 bits"),
            ("f6-e3m2-5", "F6_E3M2", (5, 1, 1), "30 bits"),
            ("f4-odd-product", "F4", (3, 5, 7), "105 elements of four bits")):
        def change(link):
            link.entries[0].dtype, link.entries[0].shape = DTYPES[dtype], shape
            link.entries[0].segments = []
        twin = "shape-packed-f4" if dtype == "F4" else "shape-packed-f6"
        yield spoiled(f"length-{id}", "R-IDX-09", reason, twin, change, "2.2")


@makes_vectors
def segment_numbers():
    def number(value):
        def change(link):
            link.entries[0].segments = [value]
        return change
    yield spoiled("piece-beyond-segments", "R-IDX-10", "segment 2 of one", "one-lane", number(2), "6.2")
    yield spoiled("piece-of-no-segments", "R-IDX-10", "segment 1, and there is none", "set-zeros", number(1), "6.2")
    yield spoiled("piece-2-64", "R-IDX-10", "segment 2^64 - 1", "one-lane", number(2**64 - 1), "6.2")
    yield spoiled("piece-2-32", "R-IDX-10", "segment 2^32 + 1, which is 1 in 32 bits", "one-lane", number(2**32 + 1),
                  "6.2")


@makes_vectors
def lane_bytes():
    def coding(value):
        def change(link):
            link.segments[0].coding = value
        return change

    def dtype(link):
        link.entries[0].dtype = DTYPES["F16"]
        link.entries[0].shape = (4,)

    def packed(link):
        link.entries[0].dtype, link.entries[0].shape = DTYPES["U16"], (1, 2)

    def second_part(link):
        link.entries[1].dtype, link.entries[1].shape = DTYPES["F32"], (1,)
    yield spoiled("lanes-segment-of-2", "R-IDX-11", "a U8 tensor in a segment with lanes of two bytes", "one-lane",
                  coding(0x05), "6.2")
    yield spoiled("lanes-segment-of-8", "R-IDX-11", "a U8 tensor in a segment with lanes of eight bytes", "one-lane",
                  coding(0x07), "6.2")
    yield spoiled("lanes-f16-in-bytes", "R-IDX-11", "an F16 tensor in a segment with lanes of one byte", "one-lane",
                  dtype,
                  "6.2")
    yield spoiled("lanes-set", "R-IDX-11", "a set U16 tensor in a segment with lanes of one byte", "name-empty", packed,
                  "6.2")
    yield spoiled("lanes-second-part", "R-IDX-11", "the second part of a segment is of a wider dtype",
                  "tensors-200-one-segment", second_part, "6.2")


@makes_vectors
def unused_segments():
    def append(link):
        link.segments.append(copy.deepcopy(link.segments[0]))

    def insert(link):
        link.segments.insert(0, copy.deepcopy(link.segments[0]))
        link.entries[0].segments = [2]

    def unname(link):
        link.entries[0].segments = [0]

    def empty(link):
        link.segments.append(copy.deepcopy(link.segments[0]))
        link.segments[1].stored = b""
    yield spoiled("segment-unused-last", "R-IDX-12", "no piece names the last segment", "one-lane", append)
    yield spoiled("segment-unused-first", "R-IDX-12", "no piece names the first segment", "one-lane", insert)
    yield spoiled("segment-unused-only", "R-IDX-12", "no piece names the only segment", "one-lane", unname)
    def no_parts(link):
        link.segments.append(copy.deepcopy(link.segments[0]))
        link.segments[1].set_raw("table", b"\1\0")
        link.segments[1].set_raw("gap high", b"")
        link.segments[1].set_raw("plane 0", b"")
    yield spoiled("segment-unused-without-parts", "R-IDX-12", "a segment that would be good if it could have no part",
                  "one-lane", no_parts)
    yield spoiled("segment-unused-empty", "R-IDX-12", "no piece names a segment of no bytes", "one-lane", empty)


@makes_vectors
def sum_of_lengths():
    def body_longer(link):
        link.header = {"segments": len(link.body()) + 1}
        link.tail = b"\0"

    def entry_longer(link):
        link.segments[0].stored_length = len(link.segments[0].encode()) + 1

    def no_segment(link):
        link.header, link.tail = {"segments": 3}, b"abc"
    yield spoiled("lengths-byte-between", "R-IDX-14", "the header counts a byte that belongs to no segment", "one-lane",
                  body_longer)
    yield spoiled("lengths-entry-longer", "R-IDX-14", "a segment entry counts a byte too many", "one-lane",
                  entry_longer)
    yield spoiled("lengths-without-segments", "R-IDX-14", "three bytes of segments, and no segment", "smallest",
                  no_segment)


@makes_vectors
def set_with_relative_values():
    def set_it(link):
        link.entries[0].operation = SET
    yield spoiled("set-sparse-planes", "R-IDX-16", "a set tensor in a segment with sparse relative planes",
                  "contexts-thresholds-255", set_it, "6.2")
    yield spoiled("set-small", "R-IDX-16", "a set tensor in a segment with relative small values", "worked-contexts",
                  set_it, "6.2")
    yield spoiled("set-dense-planes", "R-IDX-16", "a set tensor in a segment with dense relative planes",
                  "dense-zero-difference", set_it, "6.2")


@makes_vectors
def order_of_segments():
    """The segments of one dtype and one coding must be named in ascending order."""
    def swap(link):
        """Swaps the first two segments, and updates the entries."""
        link.segments[0], link.segments[1] = link.segments[1], link.segments[0]
        for entry in link.entries:
            entry.segments = [{1: 2, 2: 1}.get(number, number) for number in entry.segments]

    def reverse(link):
        link.segments.reverse()
        for entry in link.entries:
            entry.segments = [len(link.segments) + 1 - number for number in entry.segments]

    def last_first(link):
        link.segments.insert(0, link.segments.pop())
        for entry in link.entries:
            entry.segments = [number % len(link.segments) + 1 for number in entry.segments]

    for id, twin, change, reason in (
            ("two-tensors", "tensors-200-own-segments", swap, "the first two tensors"),
            ("reversed", "tensors-200-own-segments", reverse, "all of 200 tensors"),
            ("last-first", "tensors-200-own-segments", last_first, "the last tensor is in the first segment"),
            ("pieces", "pieces-two-segments", swap, "two pieces of a tensor"),
            ("interleaved", "order-u8-i8-together", swap, "tensors of one dtype, with another dtype between"),
            ("set", "order-set", swap, "tensors that are set"),
            ("set-pieces", "segment-2-full-pieces-apart", swap, "two pieces of a tensor that is set"),
            ("described", "order-described", swap, "tensors of one described dtype")):
        yield spoiled(f"order-{id}", "R-IDX-19", f"segments in another order than the pieces: {reason}", twin, change,
                      "6.2", apply=None if id == "described" else True)
    for id, twin in (("shared", "order-shared"), ("apart", "order-apart")):
        def back(link):
            link.entries[-1].segments = [1]
            counts = link.segments
            counts[0].table.parts.append(counts[1].table.parts.pop())
            for name in ("gap high", "plane 0"):
                one, two = (segment.streams[name].raw for segment in counts[:2])
                counts[0].set_raw(name, one + two[-1:])
                counts[1].set_raw(name, two[:-1])
        yield spoiled(f"order-back-{id}", "R-IDX-19", "a tensor goes back to the segment of the first one", twin, back,
                      "6.2")


@makes_vectors
def empty_base():
    def operation(value):
        def change(link):
            link.entries[0].operation = value
        return change

    def remove(link):
        link.entries.insert(0, Entry("s", REMOVE))
    yield spoiled("snapshot-patch", "R-IDX-17", "a patch of the empty state", "set-zeros", operation(PATCH))
    yield spoiled("snapshot-patch-with-part", "R-IDX-17", "a patch of the empty state, with values", "snapshot",
                  operation(PATCH))
    yield spoiled("snapshot-removal", "R-IDX-17", "a removal from the empty state", "snapshot", remove)


@makes_vectors
def nothing_listed():
    def other(**states):
        def change(link):
            for name, state in states.items():
                setattr(link, name, state)
        return change
    one = copy_of("empty-link").base
    reordered = State("one-u8-other", {"t": tensor("U8", bytes(range(1, 9)))})
    yield spoiled("nothing-but-target", "R-IDX-18", "no entry, yet another target", "empty-link",
                  other(target=reordered))
    yield spoiled("nothing-from-empty", "R-IDX-18", "no entry, yet the empty state becomes another", "smallest",
                  other(target=one))
    yield spoiled("nothing-to-empty", "R-IDX-18", "no entry, yet all is gone", "empty-link", other(target=EMPTY))
