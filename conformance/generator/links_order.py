"""Links with two faults, of which the first in the order of section 10 must be reported. Faults that a reader of a pipe
meets in another order (R-HDR-09, R-HDR-10) are not included."""
import copy

from . import frames
from .builder import PATCH, REMOVE, Entry, Stream
from .coding import Plan, link
from .links import copy_of, refused
from .links_apply import STEPS
from .model import DTYPES, EMPTY, PIECE, State, Tensor
from .primitives import Raw, varint
from .registry import makes_vectors

HUGE = 2**64 - 1
LONG = Raw(b"\x80\0")  # 0 as a varint of two bytes


def two_faults(id, rule, reason, twin, change, **members):
    file = copy_of(twin)
    change(file)
    return refused(f"order/{id}", file, rule, reason, twin, "10", **members)


@makes_vectors
def in_the_header():
    def fields(**values):
        def change(file):
            file.header = values
        return change

    def crc_and_version(file):
        file.header, file.header_crc = {"version": 2}, 0
    yield two_faults("crc-then-version", "R-HDR-03", "without a checksum nobody knows the version", "smallest",
                     crc_and_version)
    for id, rule, reason, values in (
            ("version-then-features", "R-HDR-04", "a newer version has feature bits of its own",
             dict(version=2, incompatible=1)),
            ("version-then-reserved", "R-HDR-04", "a newer version may use what is reserved",
             dict(version=2**31, reserved=1)),
            ("version-then-lengths", "R-HDR-04", "a newer version may have other lengths",
             dict(version=2, index_raw=2)),
            ("features-then-reserved", "R-HDR-05", "a feature may use what is reserved",
             dict(incompatible=1, reserved=7)),
            ("reserved-then-stored", "R-HDR-06", "reserved field before lengths", dict(reserved=1, index_raw=2)),
            ("stored-then-sum", "R-STR-01", "the index's lengths before the file's", dict(index_raw=2, segments=HUGE)),
            ("stored-then-extension", "R-STR-01", "the index's lengths before the file's",
             dict(index_raw=2, extension=HUGE)),
            ("reserved-then-extension", "R-HDR-06", "reserved field before lengths", dict(reserved=1, extension=HUGE)),
            ("extension-then-limit", "R-HDR-08", "the sum before the limits", dict(index_raw=HUGE, extension=HUGE)),
            ("limit-then-extension", "R-LIM-01", "the limit before the file's length",
             dict(index_raw=2**30 + 1, extension=1)),
            ("sum-then-limit", "R-HDR-08", "the sum before the limits", dict(index_raw=HUGE, segments=HUGE)),
            ("limit-then-length", "R-LIM-01", "the limit before the file's length",
             dict(index_raw=2**30 + 1, segments=1)),
            ("limit-of-exabytes", "R-LIM-01", "the longest index that a file can have",
             dict(index_stored=2**63 - 129, index_raw=HUGE))):
        yield two_faults(id, rule, reason, "smallest", fields(**values))


@makes_vectors
def around_the_index():
    def crc_and_frame(file):
        file.index_stored, file.header = (lambda raw: raw[:40]), {"index_crc": 0}

    def frame_and_content(file):
        file.metadata[0] = ("text", b"\xff" * 600)
        file.index_stored = lambda raw: frames.frame(raw) + b"\0"

    def crc_and_content(file):
        file.entries[0].operation, file.header = Raw(b"\3"), {"index_crc": 1}
    yield two_faults("index-crc-then-frame", "R-IDX-01", "the checksum before the frame", "index-frame-raw-block",
                     crc_and_frame)
    yield two_faults("index-crc-then-content", "R-IDX-01", "the checksum before the content", "one-lane",
                     crc_and_content)
    yield two_faults("index-frame-then-content", "R-STR-02", "the end of the frame before the content",
                     "index-frame-raw-block", frame_and_content)


@makes_vectors
def in_frames():
    def stored(change):
        return lambda file: file.segments[0].compress("plane 0", change)

    def frame(raw, **changes):
        return frames.header(**({"content_size": len(raw)} | changes)) + frames.blocks(raw)
    for id, rule, reason, change in (
            ("window-then-block", "R-STR-03", "a window too large before a missing block",
             lambda raw: frames.header(len(raw), window=0x80)),
            ("window-then-reserved-bit", "R-STR-03", "a window too large before the reserved bit",
             lambda raw: frame(raw, window=0x80, reserved=1)),
            ("window-then-size", "R-STR-03", "a window too large before a wrong size",
             lambda raw: frame(raw, content_size=1, window=0x80)),
            ("single-segment-then-size", "R-STR-03", "a single segment's size is its window before it is its size",
             lambda raw: frame(raw, content_size=2**62, window=None, size_bytes=8)),
            ("dictionary-then-window", "R-STR-02", "a dictionary before a window too large",
             lambda raw: frame(raw, window=0xFF, dictionary=b"\1")),
            ("dictionary-then-single-segment", "R-STR-02", "a dictionary before a single segment too large",
             lambda raw: frame(raw, content_size=2**62, window=None, size_bytes=8, dictionary=b"\0")),
            ("magic-then-window", "R-STR-02", "the magic before a window too large",
             lambda raw: b"\x27" + frame(raw, window=0xFF)[1:]),
            ("header-cut-then-window", "R-STR-02", "a header that is cut off before a window too large",
             lambda raw: frames.MAGIC + b"\xc0\xff" + bytes(7)),
            ("header-cut-then-dictionary", "R-STR-02", "a header that is cut off in its dictionary id",
             lambda raw: frames.MAGIC + b"\xe3\1\2\3")):
        yield two_faults(f"frame-{id}", rule, reason, "frame-window-32-mib", stored(change))


@makes_vectors
def in_index_fields():
    """Each fault is in a field before the place where the index ends too early."""
    def index(raw):
        def change(file):
            file.index = raw
        return change

    name, pieces = b"\1t", b"\2\5\1" + varint(5 * PIECE)
    for id, rule, twin, raw, reason in (
            ("metadata-count", "R-LIM-01", "smallest", varint(65537), "a count above its limit"),
            ("metadata-key-long", "R-INT-01", "smallest", varint(200) + LONG, "the key's length"),
            ("metadata-key-utf-8", "R-INT-04", "smallest", varint(200) + b"\1\xff", "the key"),
            ("metadata-order", "R-IDX-03", "smallest", b"\5\1k\0\1k\xff", "the key, before its value is read"),
            ("coding", "R-IDX-05", "one-lane", b"\0\5\xff", "the coding byte"),
            ("segment-length", "R-INT-01", "one-lane", b"\0\5\0" + LONG, "the stored length"),
            ("name-long", "R-INT-01", "one-lane", b"\0\0\5" + LONG, "the name's length"),
            ("name-utf-8", "R-INT-04", "one-lane", b"\0\0" + varint(1000) + b"\1\xff", "the name"),
            ("name-order", "R-IDX-06", "one-lane", b"\0\0\2" + name + b"\1\5\1\0\1a", "the second name"),
            ("operation", "R-IDX-07", "one-lane", b"\0\0\1" + name + b"\3", "the operation"),
            ("dtype", "R-IDX-08", "one-lane", b"\0\0\1" + name + b"\2\0", "the dtype"),
            ("dimension-long", "R-INT-01", "one-lane", b"\0\0\1" + name + b"\2\5\x08" + LONG,
             "the first of eight dimensions"),
            ("piece-long", "R-INT-01", "one-lane", b"\0\0\1" + name + pieces + LONG, "the first of five pieces"),
            ("piece-number", "R-IDX-10", "one-lane", b"\0\0\1" + name + pieces + b"\7", "the first of five pieces")):
        yield two_faults(f"index-{id}-then-end", rule, f"{reason}, before the index ends too early", twin, index(raw))

    def shape(dtype, *dimensions):
        def change(file):
            file.entries[0].dtype, file.entries[0].shape, file.entries[0].segments = DTYPES[dtype], dimensions, []
        return change
    for dtype, size in (("F4", 2**61 + 1), ("F6_E2M3", 2**63 + 1)):
        yield two_faults(f"tensor-limit-then-whole-{dtype.lower()[:2]}", "R-LIM-01",
                         "too large and not whole: the limit comes first", "set-zeros", shape(dtype, size))

    def long_name(content):
        def change(file):
            file.entries[0].name = Raw(varint(65536) + content)
        return change

    def repeated_bad_name(file):
        file.entries.append(Entry(b"\xff", REMOVE))
        file.entries.append(Entry(b"\xff", REMOVE))

    def number_and_width(file):
        file.entries[0].dtype, file.entries[0].shape, file.entries[0].segments = DTYPES["U16"], (4,), [9]

    def width_and_relative(file):
        file.segments[0].coding, file.entries[0].operation = 0x0D, 1
    yield two_faults("name-limit-then-utf-8", "R-LIM-01", "a name's length is compared before its bytes are looked at",
                     "one-lane", long_name(b"\xff"))
    yield two_faults("name-utf-8-then-order", "R-INT-04", "UTF-8 before the order of names", "one-lane",
                     repeated_bad_name)
    yield two_faults("piece-number-then-width", "R-IDX-10", "a segment that is not there has no width", "one-lane",
                     number_and_width)
    yield two_faults("piece-width-then-relative", "R-IDX-11", "the width before relative values of a set tensor",
                     "one-lane", width_and_relative)


@makes_vectors
def after_the_index():
    def tail_and_unused(file):
        file.index_tail, file.entries[0].segments = b"\0", [0]

    def unused_and_sum(file):
        file.entries[0].segments, file.segments[0].stored_length = [0], 999

    def sum_and_snapshot(file):
        file.entries[0].operation, file.segments[0].stored_length = PATCH, 600

    def end_and_unused(file):
        file.entries[0].segments, file.entries[0].digests = [0], [bytes(31)]
    yield two_faults("tail-then-unused-segment", "R-IDX-02", "the end of the index before its segments", "one-lane",
                     tail_and_unused)
    yield two_faults("end-then-unused-segment", "R-INT-03", "a digest that is cut off before segments", "one-lane",
                     end_and_unused)
    yield two_faults("unused-segment-then-sum", "R-IDX-12", "segments before their sum", "one-lane", unused_and_sum)
    yield two_faults("sum-then-snapshot", "R-IDX-14", "the sum before operations on the empty state", "snapshot",
                     sum_and_snapshot)

    def too_long(number):
        """A segment that is longer than allowed; the sum of all is right."""
        def change(file):
            file.segments[number].tail = bytes(2000)
        return change

    def unused(number):
        """A segment that no entry names, so that it may have 512 bytes."""
        def change(file):
            file.segments.insert(number, copy.deepcopy(file.segments[0]))
            file.entries[0].segments = [2 - number]
        return change

    def both(*changes):
        def change(file):
            for one in changes:
                one(file)
        return change

    def long_and_sum(file):
        file.segments[0].stored_length = 2000

    def as_patch(file):
        file.entries[0].operation = PATCH
    for id, rule, twin, change, reason in (
            ("long-segment-then-sum", "R-LIM-06", "one-lane", long_and_sum, "a segment's bound before the sum of all"),
            ("long-segment-then-snapshot", "R-LIM-06", "snapshot", both(as_patch, too_long(0)),
             "a segment's bound before operations on the empty state"),
            ("long-segment-then-unused", "R-LIM-06", "one-lane", both(unused(1), too_long(0)),
             "segments in order: the first is too long, the second unused"),
            ("unused-then-long-segment", "R-IDX-12", "one-lane", both(unused(0), too_long(1)),
             "segments in order: the first is unused, the second too long"),
            ("unused-and-long-segment", "R-IDX-12", "one-lane", both(unused(0), too_long(0)),
             "a segment that is unused and too long"),
            ("tail-then-long-segment", "R-IDX-02", "one-lane",
             both(too_long(0), lambda file: setattr(file, "index_tail", b"\0")), "the end of the index before segments")):
        yield two_faults(id, rule, reason, twin, change)
    for id, rule, twin, change, reason in (
            ("long-segment-then-set-bytes", "R-LIM-06", "snapshot", too_long(0), "a segment's bound"),
            ("unused-then-set-bytes", "R-IDX-12", "snapshot", unused(1), "an unused segment"),
            ("sum-then-set-bytes", "R-IDX-14", "snapshot", lambda file: setattr(file.segments[0], "stored_length", 600),
             "the sum of segments"),
            ("operations-then-set-bytes", "R-IDX-17", "snapshot",
             lambda file: file.entries.insert(0, Entry("s", REMOVE)), "a removal from the empty state")):
        yield two_faults(id, rule, f"{reason}, before the caller's limit", twin, change, features=["set-limit"],
                         set_bytes=1)

    def snapshot_and_limit(file):
        file.entries.append(Entry("u", PATCH, DTYPES["U8"], (0,), [], [bytes(32)]))
    yield two_faults("snapshot-then-set-bytes", "R-IDX-17", "operations on the empty state before the caller's limit",
                     "snapshot", snapshot_and_limit, features=["set-limit"], set_bytes=1)
    data = b"\1" + bytes(2 * PIECE - 1) + b"\2"
    for id, rule, unused, reason in (
            ("large-segment-then-unused", "R-LIM-02", 1,
             "segments in order: the first is too large, the second unused"),
            ("unused-then-large-segment", "R-IDX-12", 0,
             "segments in order: the first is unused, the second too large")):
        file = link(EMPTY, State("unused", {"t": Tensor(DTYPES["U8"], (len(data),), data)}),
                    Plan(pieces=[("t", 0), ("t", 1), ("t", 2)]))
        file.segments.insert(unused, copy.deepcopy(file.segments[0]))
        file.entries[0].segments = [2 - unused] * 3
        if unused:
            longer = copy.deepcopy(file)
            longer.segments.pop()
            longer.segments[0].stored_length = 2**40
            yield refused("order/large-segment-then-long", longer, "R-LIM-02", "a segment of too many bytes of pieces, "
                          "which is too long, too", "segment-2-full-pieces", "10")
        yield refused(f"order/{id}", file, rule, reason, "segment-2-full-pieces", "10")


@makes_vectors
def between_segments():
    """Applying finds faults that need the base in a segment before it reads the next one, so only *apply* is run."""
    base, target = STEPS[3], STEPS[4]
    file = link(base, target, Plan(values=2, pieces=[("a", 0)], parameters=(0, 0), widths=(1, 1), thresholds=[1]),
                Plan(values=2, pieces=[("b", 0)]))
    file.segments[0].set_raw("gap high", b"\2")
    file.segments[1].crc = 0
    yield refused("order/members-then-next-segment", file, "R-POS-01",
                  "a rank beyond the members before the checksum of the next segment", "sequence-fourth", "10",
                  check=None)

    def both(first, second):
        def change(file):
            first(file.segments[0])
            second(file.segments[1])
        return change

    def bad_crc(segment):
        segment.crc = 0

    def bad_width(segment):
        segment.table.widths = [3]
    yield two_faults("first-segment-malformed", "R-SEG-06", "the first segment's fault, though the second's is graver",
                     "sequence-second", both(bad_width, bad_crc))
    yield two_faults("first-segment-corrupt", "R-SEG-01", "the first segment's fault", "sequence-second",
                     both(bad_crc, bad_width))


@makes_vectors
def in_segments():
    def segment(**changes):
        """Fields of the table, or raw streams with _ in place of a space."""
        def change(file):
            first = file.segments[0]
            for name, value in changes.items():
                if hasattr(first.table, name):
                    setattr(first.table, name, value)
                else:
                    first.set_raw(name.replace("_", " "), value)
        return change

    def crc_and_directory(file):
        file.segments[0].crc, file.segments[0].tail = 0, b"\0"

    def longer_and_fill(file):
        file.segments[0].streams["gap low"] = Stream(b"", b"\0")
        file.segments[0].tail = b"\0"

    def long_and_longer(file):
        file.segments[0].streams["gap low"] = Stream(b"", b"\0", raw_length=LONG)
    yield two_faults("segment-crc-then-directory", "R-SEG-01", "the checksum before the directory", "one-lane",
                     crc_and_directory)
    yield two_faults("directory-longer-then-fill", "R-STR-01", "stored lengths before their sum", "one-lane",
                     longer_and_fill)
    yield two_faults("directory-varint-then-longer", "R-INT-01", "varints before stored lengths", "one-lane",
                     long_and_longer)
    twin = "worked-contexts"  # bitmap 05, gap high 01 01, sign 02 02, magnitude 02 04, escape 01
    for id, rule, reason, changes in (
            ("contexts-then-end", "R-SEG-03", "k before the table ends", dict(table=b"\x11")),
            ("position-then-end", "R-SEG-05", "a position parameter before the table ends", dict(table=b"\2\x21")),
            ("width-then-end", "R-SEG-06", "a symbol width before the table ends", dict(table=bytes([2, 32, 0, 3]))),
            ("position-then-width", "R-SEG-05", "position parameters before widths",
             dict(positions=[33, 0], widths=[3, 2])),
            ("threshold-then-end", "R-SEG-07", "a threshold before the table ends",
             dict(table=bytes([2, 32, 0, 1, 2]) + varint(257))),
            ("threshold-varint-then-end", "R-INT-01", "a threshold's varint before the table ends",
             dict(table=bytes([2, 32, 0, 1, 2]) + LONG)),
            ("threshold-then-counts", "R-SEG-07", "thresholds before counts", dict(parts=[([257], [9, 9])])),
            ("count-varint-then-sum", "R-INT-01", "the varints of all counts before their sum",
             dict(parts=[([1], [HUGE, LONG])])),
            ("sum-then-tail", "R-SEG-08", "the sum before the end of the table",
             dict(parts=[([1], [9, 9])], tail=b"\0")),
            ("table-then-streams", "R-SEG-09", "the table before other streams", dict(tail=b"\0", bitmap=b"")),
            ("bitmap-then-gaps", "R-STR-05", "a stream's content before the next stream's length",
             dict(bitmap=b"\x15", gap_high=b"")),
            ("bitmap-length-then-gaps", "R-STR-04", "streams in the order of the directory",
             dict(bitmap=b"", gap_escape=b"\0")),
            ("escape-varint-then-number", "R-INT-01", "varints before their number",
             dict(magnitude_escape=b"\1" + LONG)),
            ("escape-varint-then-value", "R-INT-01", "all varints before magnitudes",
             dict(magnitude=b"\2\x0c", magnitude_escape=varint(2**20) + LONG)),
            ("escape-number-then-rank", "R-STR-06", "the number of escapes before ranks",
             dict(gap_high=b"\xff\xff", gap_escape=varint(2**28 - 1))),
            ("escape-varint-then-rank", "R-INT-01", "varints before ranks",
             dict(gap_high=b"\xff\xff", gap_escape=varint(2**28 - 1) + LONG)),
            ("rank-then-sign", "R-POS-01", "ranks before the streams of values", dict(gap_high=b"\1\7", sign=b"")),
            ("sign-then-magnitude", "R-STR-05", "padding of signs before the length of magnitudes",
             dict(sign=b"\x82\2", magnitude=b""))):
        yield two_faults(id, rule, reason, twin, segment(**changes))
    for id, rule, reason, changes in (
            ("planes-then-zero", "R-STR-04", "the lengths of all planes before zero differences",
             dict(plane_0=bytes(8), plane_1=b"")),
            ("rank-then-planes", "R-POS-01", "ranks before planes", dict(gap_high=b"\x08" + bytes(7), plane_0=b""))):
        yield two_faults(id, rule, reason, "signs-sparse-planes", segment(**changes))
    # *Check* finds this fault although it does not know the members, so *apply* finds it first, too.
    yield two_faults("padding-then-members", "R-STR-05", "all streams before ranks are compared with members", twin,
                     segment(gap_high=b"\1\5", sign=b"\x82\2"))
    yield two_faults("counts-then-ranks", "R-POS-02", "the bitmap of context 0 before the ranks of context 1", twin,
                     segment(parts=[([1], [5, 2])], gap_high=b"\1\2"), check=False)
    yield two_faults("ranks-then-counts", "R-POS-01", "the ranks of context 0 before the bitmap of context 1",
                     "two-contexts-gaps-bitmap",
                     segment(parts=[([1], [1, 5])], gap_high=b"\4"), check=False)
