"""Links that break a rule of section 1: varints, ends of structures and UTF-8."""
from .links import copy_of, refused
from .primitives import Raw, text_bytes, varint
from .registry import makes_vectors


def spoiled(id, rule, reason, twin, change):
    link = copy_of(twin)
    change(link)
    return refused(f"primitives/{id}", link, rule, reason, twin, "1")


def places(value):
    """All places of varints: (name, twin, function that replaces one by `value(its number)`)."""
    def count(name, number):
        return lambda link: link.counts.update({name: value(number)})

    def name_length(link):
        name = text_bytes(link.entries[0].name)
        link.entries[0].name = Raw(value(len(name)) + name)

    def key_length(link):
        key, text = link.metadata[0]
        link.metadata[0] = (Raw(value(len(key)) + text_bytes(key)), text)

    def dimension(link):
        link.entries[0].shape = (value(8),)

    def dimensions(link):
        link.entries[0].dimensions = value(1)

    def piece(link):
        link.entries[0].segments = [value(1)]

    def segment_length(link):
        link.segments[0].stored_length = value(len(link.segments[0].encode()))

    def threshold(link):
        link.segments[0].table.parts[0] = ([value(1)], [4, 2])

    def lane_count(link):
        link.segments[0].table.parts[0] = ([1], [4, value(2)])

    def raw_length(link):
        stream = link.segments[0].streams["gap high"]
        stream.raw_length = value(len(stream.raw))

    def stored_length(link):
        stream = link.segments[0].streams["gap high"]
        stream.stored_length = value(len(stream.raw))

    def gap_escape(link):
        link.segments[0].set_raw("gap escape", value(1) + b"\1\1")

    def magnitude_escape(link):
        link.segments[0].set_raw("magnitude escape", value(8) + b"\x08" * 3)

    return [("metadata-count", "one-lane", count("metadata", 0)), ("segment-count", "one-lane", count("segments", 1)),
            ("tensor-count", "one-lane", count("entries", 1)), ("name-length", "one-lane", name_length),
            ("key-length", "metadata-one", key_length), ("dimensions", "one-lane", dimensions),
            ("dimension", "one-lane", dimension), ("piece", "one-lane", piece),
            ("segment-length", "one-lane", segment_length), ("directory-raw", "one-lane", raw_length),
            ("directory-stored", "one-lane", stored_length), ("threshold", "worked-contexts", threshold),
            ("count", "worked-contexts", lane_count), ("gap-escape", "gap-escapes-shifted", gap_escape),
            ("magnitude-escape", "magnitudes-u64", magnitude_escape)]


@makes_vectors
def too_long_varints():
    for place, twin, change in places(lambda number: Raw([number | 0x80, 0])):
        yield spoiled(f"long-{place}", "R-INT-01", f"a second byte 00 ({place})", twin, change)
    for place, twin, change in places(lambda number: Raw([number | 0x80] + [0x80] * 8 + [0])):
        if place in ("metadata-count", "dimension", "count", "magnitude-escape"):
            yield spoiled(f"ten-bytes-{place}", "R-INT-01", f"ten bytes, the last one 00 ({place})", twin, change)


@makes_vectors
def too_large_varints():
    for name, value, reason in (("above", Raw(b"\xff" * 9 + b"\x02"), "a tenth byte 02: 2^64 and more"),
                                ("eleven", Raw(b"\x80" * 10 + b"\0"), "a tenth byte 80: eleven bytes")):
        for place, twin, change in places(lambda number: value):
            if place in ("metadata-count", "dimension", "piece", "segment-length", "gap-escape", "count",
                         "magnitude-escape", "directory-raw")[name == "eleven"::2]:
                yield spoiled(f"{name}-{place}", "R-INT-02", f"{reason} ({place})", twin, change)


@makes_vectors
def index_ends():
    """Index fields after which the index ends too early."""
    def cut(length):
        def change(link):
            link.index = link.index_raw()[:length]
        return change

    full = len(copy_of("one-lane").index_raw())
    for id, length, reason in (
            ("nothing", 0, "an index of no bytes"), ("metadata-count", 1, "the segment count is missing"),
            ("in-segment-crc", 6, "the CRC of a segment has three bytes"),
            ("before-tensors", 8, "the tensor count is missing"), ("in-name", 9 + 1, "the name is missing"),
            ("before-operation", 9 + 2, "the operation is missing"), ("before-dtype", 9 + 3, "the dtype is missing"),
            ("before-dimension", 9 + 5, "the dimension is missing"), ("before-piece", 9 + 6, "the piece is missing"),
            ("before-digest", full - 32, "the digest is missing"), ("in-digest", full - 1, "a digest of 31 bytes")):
        yield spoiled(f"index-ends-{id}", "R-INT-03", reason, "one-lane", cut(length))

    def string_beyond(link):
        link.metadata[0] = ("step", Raw(varint(1000) + b"100"))

    def many_entries(link):
        link.counts["entries"] = 2

    def open_varint(link):
        link.index = b"\x80"
    yield spoiled("index-string-beyond", "R-INT-03", "a string reaches beyond the index", "metadata-one", string_beyond)
    yield spoiled("index-one-entry-more", "R-INT-03", "two tensor entries are announced, what follows is read as one",
                  "remove-all", many_entries)
    yield spoiled("index-open-varint", "R-INT-03", "a varint whose last byte says that more follow", "smallest",
                  open_varint)


@makes_vectors
def segment_ends():
    def stored(bytes_of):
        def change(link):
            link.segments[0].stored = bytes_of(link.segments[0].encode())
        return change

    def raw(name, new):
        return lambda link: link.segments[0].set_raw(name, new)

    for id, twin, change, reason in (
            ("segment-empty", "one-lane", stored(lambda old: b""), "a segment of no bytes has no directory"),
            ("directory-cut", "one-lane", stored(lambda old: old[:11]), "the directory lacks its last length"),
            ("directory-open-varint", "one-lane", stored(lambda old: old[:11] + b"\x80"),
             "the directory ends in a varint"),
            ("table-empty", "one-lane", raw("table", b""), "a table of no bytes"),
            ("table-without-parameter", "one-lane", raw("table", b"\1"),
             "the table ends before the position parameter"),
            ("table-without-counts", "one-lane", raw("table", b"\1\0"), "the table ends before the counts"),
            ("table-without-width", "worked-contexts", raw("table", bytes([2, 32, 0, 1])), "one symbol width of two"),
            ("table-without-last-count", "worked-contexts", raw("table", bytes([2, 32, 0, 1, 2, 1, 4])),
             "one count of two"),
            ("table-open-varint", "worked-contexts", raw("table", bytes([2, 32, 0, 1, 2, 1, 4, 0x82])),
             "the table ends inside a count"),
            ("gap-escape-open", "gap-256", raw("gap escape", b"\x81"), "the gap escape ends inside a varint"),
            ("magnitude-escape-open", "worked-contexts", raw("magnitude escape", b"\x81"),
             "the magnitude escape ends inside a varint")):
        yield spoiled(id, "R-INT-03", reason, twin, change)


@makes_vectors
def utf_8():
    for id, name, reason in (
            ("ff", b"\xff", "a byte that UTF-8 never has"), ("continuation", b"a\x80", "a continuation byte alone"),
            ("cut", b"\xe2\x82", "a sequence that is cut off"), ("surrogate", b"\xed\xa0\x80", "a surrogate"),
            ("surrogate-pair", b"\xed\xa0\xbd\xed\xb8\x80", "a pair of surrogates, as in CESU-8"),
            ("overlong-nul", b"\xc0\x80", "U+0000 in two bytes, as in Java"),
            ("overlong-3", b"\xe0\x9f\xbf", "U+07FF in three bytes"),
            ("overlong-4", b"\xf0\x8f\xbf\xbf", "U+FFFF in four bytes"),
            ("above", b"\xf4\x90\x80\x80", "U+110000"),
            ("five-bytes", b"\xf8\x88\x80\x80\x80", "a sequence of five bytes")):
        def bad_name(link):
            link.entries[0].name = name
        yield spoiled(f"name-{id}", "R-INT-04", f"a tensor's name: {reason}", "one-lane", bad_name)

    def bad_key(link):
        link.metadata[0] = (b"step\xfe", "100")

    def bad_value(link):
        link.metadata[0] = ("step", "Gr\u00fc\u00dfe".encode("latin-1"))
    yield spoiled("key-fe", "R-INT-04", "a metadata key", "metadata-one", bad_key)
    yield spoiled("value-latin-1", "R-INT-04", "a metadata value in Latin-1", "metadata-one", bad_value)
