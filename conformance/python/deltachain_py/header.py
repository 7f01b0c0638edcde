"""The header (section 4.1)."""
import struct
from dataclasses import dataclass

from .errors import check
from .primitives import crc32

MAGIC = b"\x89DCF\r\n\x1a\n"
SIZE = 128
VERSION = 1
_LAYOUT = struct.Struct("<8sIIII32s32sQQQQI")  # everything before the header CRC: 124 bytes


@dataclass
class Header:
    base: bytes
    target: bytes
    index_stored: int
    index_raw: int
    segments_length: int
    index_crc: int
    extension_length: int = 0  # of the area after the last segment, which readers skip
    compatible: int = 0        # unknown bits are ignored and kept

    def file_length(self):
        return SIZE + self.index_stored + self.segments_length + self.extension_length

    def encode(self):
        raw = _LAYOUT.pack(MAGIC, VERSION, 0, self.compatible, 0, self.base, self.target, self.index_stored,
                           self.index_raw, self.segments_length, self.extension_length, self.index_crc)
        return raw + crc32(raw).to_bytes(4, "little")


def parse_header(data, limits):
    """Steps 1 to 4 of the validation order; `data` is the whole file."""
    # Step 1.
    check(data[:8] == MAGIC[:len(data)], "R-HDR-01", "no link file: wrong magic", "header")
    check(len(data) >= SIZE, "R-HDR-02", f"only {len(data)} bytes", "header")
    check(crc32(data[:124]) == int.from_bytes(data[124:128], "little"), "R-HDR-03", "header CRC", "header")
    # Step 2.
    (_, version, incompatible, compatible, reserved, base, target, index_stored, index_raw, segments_length,
     extension_length, index_crc) = _LAYOUT.unpack(data[:124])
    check(version == VERSION, "R-HDR-04", f"version {version}", "header")
    check(incompatible == 0, "R-HDR-05", f"feature bits {incompatible:#x}", "header")
    check(reserved == 0, "R-HDR-06", "reserved field is not 0", "header")
    header = Header(base, target, index_stored, index_raw, segments_length, index_crc, extension_length,
                    compatible)
    check(index_stored <= index_raw, "R-STR-01", "index stored length above raw length", "header")
    check(header.file_length() <= 2**63 - 1, "R-HDR-08", "lengths overflow", "header")
    # Step 3.
    check(index_raw <= limits.index_bytes, "R-LIM-01", f"index of {index_raw} bytes", "header")
    # Step 4.
    check(len(data) >= header.file_length(), "R-HDR-09", f"{len(data)} bytes of {header.file_length()}", "file")
    check(len(data) <= header.file_length(), "R-HDR-10", "bytes after the end", "file")
    return header
