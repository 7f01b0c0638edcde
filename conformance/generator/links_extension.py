"""Links with an extension area (SPEC section 4): its content changes nothing, but its length counts."""
from .builder import MAGIC
from .frames import frame
from .links import copy_of, refused, valid
from .primitives import crc32, u32, u64
from .registry import makes_vectors

LONGEST = 2**63 - 1  # bytes of a file


def extended(twin, area):
    link = copy_of(twin)
    link.extension = area
    return link


@makes_vectors
def areas():
    for id, twin, area, reason in (
            ("one-byte", "one-lane", b"\0", "one byte"), ("bytes", "one-lane", bytes(range(256)) * 4, "bytes of all values"),
            ("without-segments", "smallest", b"\xff\x80\0", "no segment before it"),
            ("magic", "one-lane", MAGIC * 2, "bytes that look like the beginning of a link"),
            ("frame", "worked-contexts", frame(b"x" * 99), "a zstd frame, after relative values"),
            ("link", "snapshot", copy_of("snapshot").encode(), "another link")):
        yield valid(f"extension-{id}", extended(twin, area), "4", f"an extension area: {reason}",
                    ["R-HDR-06", "R-HDR-09", "R-HDR-10"])
    link = extended("one-lane", b"announced")
    link.header = {"compatible": 1 << 7}
    yield valid("extension-announced", link, "4", "an extension area that an unknown compatible feature announces",
                ["R-HDR-05"])


@makes_vectors
def lengths():
    def bad(id, rule, reason, twin, area=b"", tail=b"", **header):
        link = extended(twin, area)
        link.header, link.tail = header, tail
        return refused(f"header/extension-{id}", link, rule, reason, twin, "4.1")
    yield bad("cut", "R-HDR-09", "the last byte of the extension area is missing", "extension-bytes", b"1234", extension=5)
    yield bad("missing", "R-HDR-09", "an extension area is announced and missing", "extension-one-byte", extension=1)
    yield bad("missing-after-index", "R-HDR-09", "an extension area is announced and missing", "extension-without-segments",
              extension=3)
    yield bad("exabytes", "R-HDR-09", "the longest file there can be", "extension-without-segments",
              extension=LONGEST - 128 - 3)
    yield bad("longer", "R-HDR-10", "a byte after the extension area", "extension-bytes", b"1234", b"5")
    yield bad("not-announced", "R-HDR-10", "bytes after the last segment, and no extension area", "extension-one-byte",
              tail=b"1")
    yield bad("length-short", "R-HDR-10", "the extension area is one byte longer than its length", "extension-bytes",
              b"1234", extension=3)
    yield bad("sum-above-2-63", "R-HDR-08", "one byte more than a file can have", "extension-without-segments",
              extension=LONGEST - 128 - 3 + 1)
    yield bad("sum-with-segments", "R-HDR-08", "segments and extension area, each of which a file could have",
              "extension-without-segments", segments=2**62, extension=2**62)
    yield bad("sum-wraps", "R-HDR-08", "a sum that is right again modulo 2^64", "extension-without-segments",
              segments=2**63, extension=2**63)
    yield bad("max", "R-HDR-08", "the greatest length", "extension-one-byte", extension=2**64 - 1)
    yield bad("segments-counted", "R-IDX-14", "the extension area counts as a segment in the header, but none is it",
              "extension-without-segments", b"abc", segments=3, extension=0)

AREA = b"\x89DCX\r\n\x1a\n"


def record(kind, data, crc=None, length=None):
    return (u32(kind) + u32(crc32(data) if crc is None else crc) + u64(len(data) if length is None else length) + data)


@makes_vectors
def records():
    """Areas that keep the form of section 4.2, and areas that do not. The content of an area is never a reason to
    refuse a file."""
    one, two = record(1, b"first"), record(2, b"second")
    for id, area, reason in (
            ("no-record", b"", "no record"), ("one", one, "one record"), ("two", one + two, "two records"),
            ("empty", record(0, b""), "kind 0, of no bytes"), ("last-kind", record(2**32 - 1, b"x"), "the highest kind"),
            ("nested", record(7, AREA + one), "a record with an area inside"),
            ("crc", record(1, b"first", crc=0) + two, "a record whose CRC does not match"),
            ("crc-of-all", one + record(2, b"second", crc=1), "a last record whose CRC does not match"),
            ("descending", two + one, "kinds that descend"), ("twice", one + one, "one kind twice"),
            ("length-2-63", record(1, b"x", length=2**63), "a length of 2^63"),
            ("length-2-64", record(1, b"x", length=2**64 - 1), "a length of 2^64 - 1"),
            ("length-wraps", one + record(2, b"x", length=2**64 - 16), "a length with which the sum wraps"),
            ("too-long", record(1, b"first", length=6), "a record that is one byte longer than the area"),
            ("too-short", record(1, b"first", length=4), "a byte after the last record"),
            ("cut", one + two[:15], "a second record without the end of its length"),
            ("cut-kind", one + two[:3], "a second record without the end of its kind"),
            ("foreign-byte", one + b"\0", "a byte that is no record"),
            ("other-kind", record(0x80000001, b"\xff" * 300), "300 bytes of a kind that nobody knows")):
        for bits in (0, 1 << 7 | 1):
            link = extended("one-lane", AREA + area)
            link.header = {"compatible": bits} if bits else {}
            yield valid(f"extension-records-{id}" + "-announced" * (bits > 0), link, "4.2",
                        f"an extension area: {reason}" + ("; with compatible bits" if bits else ""), ["R-HDR-05"])
    for id, area, reason in (("magic-cut", AREA[:7], "seven bytes of the magic"),
                             ("magic-other", AREA[:-1] + b"\r" + one, "another magic"),
                             ("magic-of-links", MAGIC + one, "the magic of links before a record"),
                             ("magic-late", b"\0" + AREA + one, "the magic at the second byte")):
        link = extended("worked-contexts", area)
        link.header = {"compatible": 2**32 - 1}
        yield valid(f"extension-records-{id}", link, "4.2", f"an extension area: {reason}; with all compatible bits",
                    ["R-HDR-05"])
    link = extended("smallest", AREA + one)
    yield valid("extension-records-without-segments", link, "4.2", "a record after an index without segments")
    for id, incompatible, rule in (("incompatible", 1, "R-HDR-05"), ("incompatible-reserved", 2, "R-HDR-05")):
        link = extended("one-lane", AREA + one)
        link.header = {"incompatible": incompatible, "compatible": 1}
        yield refused(f"header/extension-records-{id}", link, rule, "a record does not make an incompatible bit known",
                      "extension-records-one-announced", "4.1")
