"""Streams (section 5): a byte string, stored as it is or as one zstd frame.

The checks of a frame come in an order that never allocates before it has compared: first magic and dictionary id
(R-STR-02), then the window (R-STR-03), then the rest (R-STR-02).
"""
import zstandard

from .errors import check, fail

FRAME_MAGIC = b"\x28\xb5\x2f\xfd"  # FD2FB528 as u32
MAX_WINDOW = 1 << 25


def parse_frame_header(stored, where):
    """(window size, content size or None, reserved bit) of a frame, by RFC 8878 section 3.1.1.1."""
    def part(start, size):
        check(start + size <= len(stored), "R-STR-02", "frame header is cut off", where)
        return int.from_bytes(stored[start:start + size], "little")

    check(bytes(stored[:4]) == FRAME_MAGIC, "R-STR-02", "not a zstd frame", where)
    descriptor = part(4, 1)
    single_segment = descriptor >> 5 & 1
    check(descriptor & 0x03 == 0, "R-STR-02", "frame has a dictionary id", where)
    size_bytes, content = (single_segment, 2, 4, 8)[descriptor >> 6], None
    if size_bytes:
        content = part(6 - single_segment, size_bytes) + (256 if size_bytes == 2 else 0)
    byte = part(5, 1)
    window = content if single_segment else 8 + (byte & 7) << 7 + (byte >> 3)
    return window, content, descriptor & 0x08 != 0


def read_stream(stored, raw_length, where):
    """The raw bytes of a stream; the caller has bounded `raw_length` and checked stored <= raw (R-STR-01)."""
    if len(stored) == raw_length:
        return bytes(stored)
    window, content, reserved = parse_frame_header(stored, where)
    check(window <= MAX_WINDOW, "R-STR-03", f"zstd window of {window} bytes", where)
    check(not reserved, "R-STR-02", "reserved bit of the frame header is set", where)
    check(content is None or content == raw_length, "R-STR-02", f"content size {content}, not {raw_length}", where)
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj(write_size=1 << 16)
    raw, pos = bytearray(), 0
    try:
        while pos < len(stored) and not decompressor.eof:
            # Small steps: a frame that holds more than it should is noticed before it fills the memory.
            raw += decompressor.decompress(bytes(stored[pos:pos + 1024]))
            pos += 1024
            check(len(raw) <= raw_length, "R-STR-02", "frame is longer than its raw length", where)
    except zstandard.ZstdError as error:
        fail("R-STR-02", f"zstd: {error}", where)
    check(decompressor.eof, "R-STR-02", "frame is cut off", where)
    check(pos >= len(stored) and not decompressor.unused_data, "R-STR-02", "bytes after the frame", where)
    check(len(raw) == raw_length, "R-STR-02", f"{len(raw)} bytes instead of {raw_length}", where)
    return bytes(raw)


def write_stream(raw, level=3):
    """The stored form: a frame if that is smaller."""
    frame = zstandard.ZstdCompressor(level=level).compress(raw)
    smaller = len(frame) < len(raw) and parse_frame_header(frame, "writer")[0] <= MAX_WINDOW
    return frame if smaller else bytes(raw)
