"""Streams (section 5): a byte string, stored as it is or as one zstd frame."""
import zstandard

from .errors import check, fail

FRAME_MAGIC = b"\x28\xb5\x2f\xfd"  # FD2FB528 as u32
MAX_WINDOW = 1 << 25
RLE, COMPRESSED, RESERVED = 1, 2, 3  # types of blocks; 0 is raw


def check_structure(stored, raw_length, where):
    """Checks the structure of a frame (R-STR-02), up to its compressed blocks. Allocates nothing.

    The field names are those of RFC 8878, section 3.1.1.
    """
    pos = 0

    def take(size):
        nonlocal pos
        check(pos + size <= len(stored), "R-STR-02", "frame is cut off", where)
        pos += size
        return int.from_bytes(stored[pos - size:pos], "little")

    check(stored[:4] == FRAME_MAGIC, "R-STR-02", "not a zstd frame", where)
    take(4)
    descriptor = take(1)
    check(descriptor & 0x03 == 0, "R-STR-02", "frame has a dictionary id", where)
    single_segment = descriptor >> 5 & 1
    window_byte = 0 if single_segment else take(1)
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    content = take(size_bytes) + (256 if size_bytes == 2 else 0)
    window = content if single_segment else 8 + (window_byte & 7) << 7 + (window_byte >> 3)
    check(window <= MAX_WINDOW, "R-STR-03", f"zstd window of {window} bytes", where)
    check(descriptor & 0x08 == 0, "R-STR-02", "reserved bit of the frame header is set", where)
    check(not size_bytes or content == raw_length, "R-STR-02", f"content size {content}, not {raw_length}", where)

    maximum = min(window, 1 << 17)
    plain, compressed, last = 0, 0, False  # bytes of raw and RLE blocks, number of other blocks
    while not last:
        header = take(3)
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        check(kind != RESERVED, "R-STR-02", "reserved block type", where)
        check(size <= maximum, "R-STR-02", f"block of {size} bytes above {maximum}", where)
        take(1 if kind == RLE else size)
        if kind == COMPRESSED:
            compressed += 1
        else:
            plain += size
    good = plain <= raw_length <= plain + compressed * maximum
    check(good, "R-STR-02", f"blocks cannot give {raw_length} bytes", where)
    take(4 if descriptor & 0x04 else 0)  # content checksum
    check(pos == len(stored), "R-STR-02", "bytes after the frame", where)


def read_stream(stored, raw_length, where):
    """Returns the raw bytes of a stream; the caller has bounded `raw_length` and checked stored <= raw (R-STR-01)."""
    if len(stored) == raw_length:
        return bytes(stored)
    check_structure(stored, raw_length, where)
    try:
        raw = zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_length)
    except zstandard.ZstdError as error:
        fail("R-STR-02", f"zstd: {error}", where)
    check(len(raw) == raw_length, "R-STR-02", f"{len(raw)} bytes instead of {raw_length}", where)
    return raw


def write_stream(raw, level=3, checksum=False):
    """Returns the stored form: a frame if that is smaller. (Up to level 19, windows are far below R-STR-03.)"""
    frame = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(raw)
    return frame if len(frame) < len(raw) else bytes(raw)
