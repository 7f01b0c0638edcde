"""Links with an extension area (SPEC section 4): whatever it holds, it changes nothing; but its length counts."""
from .builder import MAGIC
from .frames import frame
from .links import copy_of, refused, valid
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
