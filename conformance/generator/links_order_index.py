"""Links with two faults: of R-IDX-19, which is checked at each piece, of k of absolute values, and of segments whose
tensors are in another order."""
from .builder import DENSE, SET
from .coding import Plan, link
from .links import copy_of, refused, valid
from .model import DTYPES, State, tensor
from .primitives import Raw
from .registry import makes_vectors


@makes_vectors
def falling_segments():
    """Three tensors in two segments of one coding; the second tensor returns to the first segment."""
    names = "abc"
    base = State("falling-base", {name: tensor("U8", [1, 2, 3]) for name in names})
    target = State("falling-target", {name: tensor("U8", [1, 2, 4]) for name in names})
    twin = "order-three-tensors"
    yield valid(twin, link(base, target, Plan(pieces=[("a", 0)]), Plan(pieces=[("b", 0), ("c", 0)])), "6.2",
                "three tensors in two segments of one coding", ["R-IDX-19"])

    def fallen(id, rule, reason, change):
        file = copy_of(twin)
        file.entries[0].segments, file.entries[1].segments = [2], [1]
        change(file)
        return refused(f"order/falling-segment-{id}", file, rule, reason, twin, "10", patches=True)

    def name(file):
        file.entries[2].name = "b"

    def operation(file):
        file.entries[2].operation = Raw(b"\3")

    def utf_8(file):
        file.entries[2].name = b"\xff"

    def long_varint(file):
        file.entries[2].name = Raw(b"\x81\0c")

    def number(file):
        file.entries[2].segments = [3]

    def tail(file):
        file.index_tail = b"\0"

    def end(file):
        file.index = file.index_raw()[:-1]

    def unused(file):
        file.segments.append(file.segments[0])
    for id, change, reason in (
            ("then-order", name, "a name out of order"), ("then-operation", operation, "an undefined operation"),
            ("then-utf-8", utf_8, "a name that is no UTF-8"), ("then-varint", long_varint, "a varint that is too long"),
            ("then-number", number, "a segment that is not there"), ("then-tail", tail, "a byte after the index"),
            ("then-end", end, "the end of the index in a digest"), ("then-unused", unused, "an unused segment")):
        yield fallen(id, "R-IDX-19", f"a piece in a segment before that of an earlier one, then {reason}", change)

    def earlier(file):
        file.entries[0].name = "c"
    yield fallen("after-order", "R-IDX-06", "a name out of order, then a piece in an earlier segment", earlier)

    def same_piece(id, rule, reason, change):
        file = copy_of(twin)
        file.entries[0].segments, file.entries[1].segments = [2], [1]
        change(file)
        return refused(f"order/{id}", file, rule, reason, twin, "10", patches=True)

    def relative_set(file):
        """Both segments have relative values; the second tensor is set."""
        for one in file.segments:
            one.coding = 0x0C
        file.entries[1].operation = SET

    def relative_set_and_other_lanes(file):
        relative_set(file)
        file.entries[1].dtype, file.entries[1].shape = DTYPES["U16"], (4,)
    yield same_piece("relative-set-then-falling-segment", "R-IDX-16",
                     "a set tensor with relative values, in a segment before that of an earlier piece", relative_set)
    yield same_piece("lanes-then-relative-set-and-falling", "R-IDX-11",
                     "lanes of another width before relative values of a set tensor", relative_set_and_other_lanes)


@makes_vectors
def segments_against_tensors():
    """Segment 0 has a part of the second tensor, and segment 1 one of the first."""
    base = State("crossed-base", {"a": tensor("U8", [1, 2, 3]), "b": tensor("U8", [4, 5, 6])})
    target = State("crossed-target", {"a": tensor("U8", [1, 2, 9]), "b": tensor("U8", [7, 8, 9])})
    twin = "crossed-segments"
    yield valid(twin, link(base, target, Plan(DENSE, pieces=[("b", 0)]), Plan(pieces=[("a", 0)])), "10",
                "the first segment has a part of the second tensor, the second one of the first", ["R-IDX-19"])

    def crossed(id, rule, reason, change):
        file = copy_of(twin)
        change(*file.segments)
        return refused(f"order/crossed-{id}", file, rule, reason, twin, "10", patches=True)

    def length_and_limit(first, second):
        first.set_raw("plane 0", b"\7\x08")
        second.set_raw("gap escape", b"\0")

    def limit_and_length(first, second):
        first.table.tail = bytes(200)
        second.set_raw("plane 0", b"")

    def table_and_crc(first, second):
        first.table.tail = b"\0"
        second.crc = 0

    def padding_and_length(first, second):
        first.set_raw("plane 0", b"")
        second.table.positions = [33]
    yield crossed("length-then-limit", "R-STR-04", "a wrong length in segment 0, a limit in segment 1",
                  length_and_limit)
    yield crossed("limit-then-length", "R-LIM-03", "a limit in segment 0, a wrong length in segment 1",
                  limit_and_length)
    yield crossed("table-then-crc", "R-SEG-09", "a table in segment 0, a checksum in segment 1", table_and_crc)
    yield crossed("length-then-parameter", "R-STR-04", "a wrong length in segment 0, a parameter in segment 1",
                  padding_and_length)


@makes_vectors
def contexts_of_absolute_values():
    """R-SEG-04 is checked when k has been read."""
    for id, table, reason in (("position", bytes([2, 33, 0, 0, 1, 0]), "a position parameter that is none"),
                              ("end", b"\2", "the end of the table"),
                              ("end-in-positions", b"\2\0", "the end of the table in its position parameters"),
                              ("varint", bytes([2, 0, 0, 0x80, 0]), "a threshold that is too long"),
                              ("threshold", bytes([2, 0, 0, 9, 1, 0]), "a threshold that is too large"),
                              ("sum", bytes([2, 0, 0, 0, 9, 9]), "too many coded lanes"),
                              ("tail", bytes([2, 0, 0, 0, 1, 0, 0]), "a byte after the table")):
        file = copy_of("one-lane")
        file.segments[0].set_raw("table", table)
        yield refused(f"order/absolute-contexts-then-{id}", file, "R-SEG-04",
                      f"two contexts of absolute values, then {reason}",
                      "one-lane", "10", patches=True)


@makes_vectors
def digests_after_segments():
    file = copy_of("crossed-segments")
    file.segments[0].set_raw("plane 0", b"\7\x08\x0a")
    file.segments[1].crc = 0
    yield refused("order/crossed-digest-then-crc", file, "R-SEG-01",
                  "a wrong value in segment 0, which shows only after segment 1", "crossed-segments", "10",
                  patches=True)
