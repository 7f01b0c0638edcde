"""The structure of zstd frames (section 5)."""
import unittest

from deltachain_py.streams import read_stream, write_stream
from tests.helper import rule_of, seeded

MAGIC = b"\x28\xb5\x2f\xfd"
RAW = bytes(range(200)) * 20  # 4000 bytes; with the window byte 0, the largest block has 1024


def block(kind, size, content, last=0):
    return (last | kind << 1 | size << 3).to_bytes(3, "little") + content


def raw_blocks(data, last=1, most=1000):
    cuts = [data[at:at + most] for at in range(0, len(data), most)]
    return b"".join(block(0, len(cut), cut, last and at == len(cuts) - 1) for at, cut in enumerate(cuts))


class Frames(unittest.TestCase):
    def says(self, expected, frame, raw=RAW):
        raw = raw + bytes(max(0, len(frame) - len(raw) + 9)) if expected else raw  # longer than the frame
        self.assertEqual(rule_of(read_stream, frame, len(raw), "test"), expected, frame[:20].hex())

    def test_good_frames(self):
        tail = block(1, 900, b"x") + block(1, 1024, b"y", 1)
        for header, blocks in ((b"\0\0", raw_blocks(RAW, 0) + tail), (b"\x10\0", raw_blocks(RAW, 0) + tail),
                               (b"\x40\0" + (5924 - 256).to_bytes(2, "little"), raw_blocks(RAW, 0) + tail),
                               (b"\x60" + (5924 - 256).to_bytes(2, "little"), raw_blocks(RAW, 0, 4000) + tail),
                               (b"\0\0", block(0, 0, b"") + raw_blocks(RAW, 0) + tail)):
            frame = MAGIC + header + blocks
            self.assertEqual(read_stream(frame, 5924, "test"), RAW + b"x" * 900 + b"y" * 1024)

    def test_order_of_checks(self):
        for frame, expected in ((b"", "R-STR-02"), (MAGIC[:3], "R-STR-02"),
                                (b"\x50\x2a\x4d\x18" + bytes(9), "R-STR-02"), (MAGIC, "R-STR-02"),
                                (MAGIC + b"\1\xff\0", "R-STR-02"), (MAGIC + b"\0", "R-STR-02"),
                                (MAGIC + b"\xc0\xff" + bytes(7), "R-STR-02"),
                                (MAGIC + b"\xc0\xff" + bytes(8), "R-STR-03"), (MAGIC + b"\x08\xff", "R-STR-03"),
                                (MAGIC + b"\x08\0" + bytes(9), "R-STR-02"),
                                (MAGIC + b"\0\x79", "R-STR-03"), (MAGIC + b"\0\x78", "R-STR-02"),
                                (MAGIC + b"\xa0" + (2**25 + 1).to_bytes(4, "little"), "R-STR-03")):
            self.says(expected, frame)

    def test_blocks(self):
        zeros = bytes(5000)
        good = block(1, 1000, b"\0") * 4
        last = block(1, 1000, b"\0", 1)
        self.assertEqual(read_stream(MAGIC + b"\0\0" + good + last, 5000, "test"), zeros)
        for blocks in (good, good + last[:-1], good + last + b"\0", good + last + MAGIC, block(3, 0, b"") + good + last,
                       block(1, 1025, b"\0") + block(1, 975, b"\0") + good[:8] + last,
                       block(0, 1025, bytes(1025)) + block(1, 975, b"\0") + good[:8] + last,
                       block(2, 1025, bytes(1025)) + good + last, good + block(1, 999, b"\0", 1),
                       good + block(1, 1001, b"\0", 1), good + block(2, 3, bytes(3)) + block(1, 1001, b"\0", 1)):
            self.assertEqual(rule_of(read_stream, MAGIC + b"\0\0" + blocks, 5000, "test"), "R-STR-02", blocks[:9].hex())
        for header, size in ((b"\x60", 4999), (b"\x40\0", 5001)):
            frame = MAGIC + header + (size - 256).to_bytes(2, "little") + good + last
            self.assertEqual(rule_of(read_stream, frame, 5000, "test"), "R-STR-02")
        for checksum in (b"", b"abc", b"abcd", b"abcde"):
            frame = MAGIC + b"\4\0" + good + last + checksum
            self.assertEqual(rule_of(read_stream, frame, 5000, "test"), "R-STR-02")

    def test_written_frames(self):
        rng = seeded(13)
        for level in (1, 3, 19):
            for size in (0, 1, 50, 2000, 200000, 2**20 + 7):
                raw = bytes(rng.choice(b"abc") for _ in range(min(size, 1000))) * (size // 1000 + 1)
                stored = write_stream(raw[:size], level)
                self.assertEqual(read_stream(stored, size, "test"), raw[:size])


if __name__ == "__main__":
    unittest.main()
