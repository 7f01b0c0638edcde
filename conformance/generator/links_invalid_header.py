"""Links that break a rule of the header (SPEC section 4.1)."""
from .builder import MAGIC
from .frames import frame
from .links import copy_of, refused
from .registry import makes_vectors

TWIN = "smallest"


def bad_header(id, rule, reason, header_crc=None, tail=b"", **fields):
    link = copy_of(TWIN)
    link.header, link.header_crc, link.tail = fields, header_crc, tail
    return refused(f"header/{id}", link, rule, reason, TWIN, "4.1", base=link.base)


def bad_bytes(id, rule, reason, change, twin=TWIN):
    link = copy_of(twin)
    return refused(f"header/{id}", change(link.encode()), rule, reason, twin, "4.1", base=link.base)


@makes_vectors
def magic():
    for id, change, reason in (
            ("magic-one-bit", lambda file: b"\x88" + file[1:], "the first byte differs in one bit"),
            ("magic-line-ends", lambda file: file.replace(b"\r\n", b"\n", 1),
             "a transfer as text changed the line end"),
            ("magic-last-byte", lambda file: file[:7] + b"\r" + file[8:], "the last byte of the magic"),
            ("magic-seven-bit", lambda file: b"\x09" + file[1:], "a transfer of seven bits lost the high bit"),
            ("magic-short-other", lambda file: b"\x89DCG", "four bytes that do not begin the magic"),
            ("magic-one-other-byte", lambda file: b"x", "one byte that is no link"),
            ("magic-short-end", lambda file: MAGIC[:6] + b"\0", "seven bytes, the last of which is not the magic's"),
            ("magic-zeros", lambda file: bytes(200), "a file of zeros"),
            ("magic-byte-order-mark", lambda file: b"\xef\xbb\xbf" + file, "a byte order mark before the magic")):
        yield bad_bytes(id, "R-HDR-01", reason, change)


@makes_vectors
def header_length():
    for length, reason in ((0, "the empty file"), (1, "one byte of the magic"), (7, "all of the magic but one byte"),
                           (8, "only the magic"), (127, "one byte less than the header")):
        yield bad_bytes(f"short-{length}", "R-HDR-02", reason, lambda file: file[:length])
    yield bad_bytes("short-magic-and-more", "R-HDR-02", "the magic and three bytes", lambda file: file[:11])


@makes_vectors
def header_crc():
    yield bad_header("crc-zero", "R-HDR-03", "no checksum was written", header_crc=0)
    yield bad_bytes("crc-target-damaged", "R-HDR-03", "one bit of the target digest was damaged",
                    lambda file: file[:60] + bytes([file[60] ^ 1]) + file[61:])
    yield bad_bytes("crc-version-damaged", "R-HDR-03", "a damaged version is damage, not a newer version",
                    lambda file: file[:8] + b"\2" + file[9:])
    yield bad_bytes("crc-all-zeros", "R-HDR-03", "a magic and 120 zeros", lambda file: file[:8] + bytes(120))
    yield bad_bytes("crc-itself-damaged", "R-HDR-03", "one bit of the checksum",
                    lambda file: file[:127] + bytes([file[127] ^ 0x80]) + file[128:])


@makes_vectors
def versions():
    yield bad_header("version-max", "R-HDR-04", "the greatest version", version=2**32 - 1)
    yield bad_header("version-high-byte", "R-HDR-04", "all four bytes of the version count", version=1 << 24)
    yield bad_header("version-0", "R-HDR-04", "the version of the drafts", version=0)
    yield bad_header("version-2", "R-HDR-04", "the version after this one", version=2)


@makes_vectors
def features():
    for bit in (0, 15, 31):
        yield bad_header(f"incompatible-bit-{bit}", "R-HDR-05", f"incompatible feature bit {bit}",
                         incompatible=1 << bit)


@makes_vectors
def reserved_fields():
    for bit in (0, 8, 31):
        yield bad_header(f"reserved-bit-{bit}", "R-HDR-06", f"bit {bit} of the reserved field", reserved=1 << bit)


@makes_vectors
def lengths():
    yield bad_header("index-stored-above-raw", "R-STR-01", "three bytes are stored for two", index_raw=2)
    yield bad_header("index-raw-zero", "R-STR-01", "an index of no bytes that has three", index_raw=0)
    link = copy_of("metadata-one")
    raw = link.index_raw()
    link.index_stored = raw + b"\0"
    yield refused("header/index-stored-one-more", link, "R-STR-01",
                  "a stored index that is one byte longer than its raw form",
                  "metadata-one", "4.1")
    link = copy_of(TWIN)
    link.index_stored = frame
    yield refused("header/index-frame-longer-than-raw", link, "R-STR-01",
                  "a good frame that is longer than the index it holds",
                  TWIN, "4.1")
    longest = 2**63 - 1
    yield bad_header("index-stored-2-63", "R-HDR-08", "an index that alone is longer than a file can be",
                     index_stored=longest - 128 + 1, index_raw=2**64 - 1)
    yield bad_header("index-stored-max", "R-HDR-08", "the greatest stored and raw length", index_stored=2**64 - 1,
                     index_raw=2**64 - 1, segments=1)
    yield bad_header("sum-above-2-63", "R-HDR-08", "one byte more than a file can have", segments=longest - 128 - 3 + 1)
    yield bad_header("sum-wraps", "R-HDR-08", "a sum that is right again modulo 2^64", segments=2**64 - 128 - 3)
    yield bad_header("sum-max", "R-HDR-08", "the greatest segments length", segments=2**64 - 1)


@makes_vectors
def file_length():
    yield bad_header("segments-of-exabytes", "R-HDR-09", "the longest file there can be, of which 131 bytes are there",
                     segments=2**63 - 1 - 128 - 3)
    yield bad_bytes("cut-after-header", "R-HDR-09", "the header is all there is", lambda file: file[:128])
    yield bad_bytes("cut-in-index", "R-HDR-09", "the last byte of the index is missing", lambda file: file[:-1])
    yield bad_bytes("cut-in-segment", "R-HDR-09", "the last byte of the last segment is missing",
                    lambda file: file[:-1],
                    "one-lane")
    yield bad_bytes("cut-before-segments", "R-HDR-09", "the segments are missing",
                    lambda file: file[:-copy_length(file)], "one-lane")
    yield bad_bytes("trailing-zero", "R-HDR-10", "a zero byte after the last segment", lambda file: file + b"\0",
                    "one-lane")
    yield bad_bytes("trailing-after-index", "R-HDR-10", "a line end after a link without segments",
                    lambda file: file + b"\n")
    yield bad_bytes("two-links", "R-HDR-10", "two links, one after the other", lambda file: file * 2)
    yield bad_header("segments-length-short", "R-HDR-10", "the header says that there is no segment, but bytes follow",
                     tail=b"abc")


def copy_length(file):
    """The segments length that the header gives."""
    return int.from_bytes(file[104:112], "little")
