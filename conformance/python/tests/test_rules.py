"""For every rule, files that break it - and, by the order of section 10, report it and no other."""
import unittest

import zstandard

from deltachain_py import link as dcf
from deltachain_py import writer
from deltachain_py.codings import BITMAP
from dataclasses import replace

from deltachain_py.errors import MINIMUM_LIMITS, RULES, DcfError
from deltachain_py.index import (ABSOLUTE, DENSE, PATCH, PLANES, REMOVE, SET, SMALL, SPARSE, Coding, Index,
                                 SegmentEntry, TensorEntry)
from deltachain_py.model import BY_NAME, EMPTY_DIGEST, Tensor
from deltachain_py.primitives import crc32, string, varint
from deltachain_py.segment import encode_segment
from deltachain_py.streams import MAX_WINDOW, read_stream
from tests.helper import header, make, one_tensor, rule_of, segment_link, verify

SEEN = set()
U8, BF16 = BY_NAME["U8"], BY_NAME["BF16"]
EMPTY = b"\0\0\0"  # the raw index of the smallest file
ZERO = bytes(32)


class Case(unittest.TestCase):
    def broken(self, rule, data, base=None, **limits):
        with self.assertRaises(DcfError) as caught:
            verify(data, base, replace(MINIMUM_LIMITS, **limits))
        self.assertEqual(caught.exception.rule, rule, str(caught.exception))
        self.assertEqual(caught.exception.error_class, RULES[rule])
        SEEN.add(rule)


class HeaderRules(Case):
    def test_header(self):
        good = make(EMPTY)
        verify(good)
        verify(make(EMPTY, compatible=5))
        self.broken("R-HDR-01", b"\x89DCX")
        self.broken("R-HDR-01", bytes(200))
        for length in (0, 7, 8, 127):
            self.broken("R-HDR-02", good[:length])
        self.broken("R-HDR-03", good[:60] + b"\1" + good[61:])
        self.broken("R-HDR-04", make(EMPTY, version=1, incompatible=1))
        self.broken("R-HDR-05", make(EMPTY, incompatible=1 << 31, reserved1=1))
        self.broken("R-HDR-06", make(EMPTY, reserved1=1))
        self.broken("R-HDR-06", make(EMPTY, reserved2=1, index_raw=2))
        self.broken("R-HDR-07", make(EMPTY, index_raw=2, segments=2**63))
        self.broken("R-HDR-08", make(EMPTY, segments=2**63 - 1 - 128 - 2))
        self.broken("R-HDR-09", make(EMPTY, segments=2**63 - 1 - 128 - 3))
        self.broken("R-LIM-01", make(EMPTY, index_raw=2**24 + 1, segments=1))
        self.broken("R-HDR-10", make(EMPTY, index_crc=1) + b"\0")


class StreamRules(Case):
    def rule(self, stored, length):
        try:
            return read_stream(stored, length, "")
        except DcfError as error:
            SEEN.add(error.rule)
            return error.rule

    def test_frames(self):
        raw = b"abc" * 1000
        good = zstandard.ZstdCompressor().compress(raw)
        unsized = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(raw)
        self.assertEqual(self.rule(good, 3000), raw)
        self.assertEqual(self.rule(unsized, 3000), raw)
        bad_checksum = unsized[:-1] + bytes([unsized[-1] ^ 1])
        dictionary = bytearray(unsized)
        dictionary[4] |= 1
        reserved = bytearray(good)
        reserved[4] |= 8
        skippable = b"\x50\x2a\x4d\x18\0\0\0\0"
        for stored in (b"", b"x", good[:3], good[:4], good[:5], good[:-1], good + b"\0", good + good, bad_checksum,
                       dictionary, reserved, skippable, good + skippable, b"\x28\xb5\x2f\xfe" + good[4:]):
            self.assertEqual(self.rule(bytes(stored), 3000), "R-STR-02")
        for stored in (good, unsized):
            for length in (2999, 3001):
                self.assertEqual(self.rule(stored, length), "R-STR-02")
        # Window descriptors: exponent 15 is 2^25; one more, or any mantissa, is too large. Then an empty last block.
        self.assertEqual(self.rule(b"\x28\xb5\x2f\xfd\0" + bytes([15 << 3]) + b"\1\0\0", 10), "R-STR-02")
        for byte in (15 << 3 | 1, 16 << 3, 0xFF):
            self.assertEqual(self.rule(b"\x28\xb5\x2f\xfd\0" + bytes([byte]) + b"\1\0\0", 10), "R-STR-03")
        single = b"\x28\xb5\x2f\xfd\xa0" + (MAX_WINDOW + 1).to_bytes(4, "little")
        self.assertEqual(self.rule(single, 10), "R-STR-03")
        self.broken("R-STR-02", make(EMPTY * 20, stored_index=b"xxxx"))
        self.broken("R-STR-03", make(bytes(20), stored_index=single))


def entry(name="t", operation=SET, dtype=U8, shape=(8,), segments=(0,), digest=ZERO):
    return TensorEntry(name, operation, dtype, shape, list(segments), digest)


class IndexRules(Case):
    def test_fields(self):
        file = make(EMPTY)
        self.broken("R-IDX-01", file[:-1] + b"\1")
        self.broken("R-IDX-02", make(EMPTY + b"\0"))
        self.broken("R-INT-03", make(b"\0\0"))
        self.broken("R-INT-03", make(b""))
        self.broken("R-INT-01", make(b"\x80\0\0\0"))
        self.broken("R-INT-02", make(b"\xff" * 10))
        self.broken("R-INT-04", make(b"\1\1\xff"))
        pair = string("a") + string("")
        self.broken("R-IDX-03", make(b"\2" + pair + pair))
        self.broken("R-IDX-03", make(b"\2" + pair + string("") + b"\xff"))
        for coding in (0x20, 0x80, 0x18, 0x1C, 0x10):
            self.broken("R-IDX-05", make(b"\0\1" + bytes([coding])))
        two = bytes([0, 0, 2])
        tensor = string("b") + bytes([SET, U8.code, 1, 0])
        self.broken("R-IDX-06", make(two + tensor + string("b") + b"\7"))
        self.broken("R-IDX-06", make(two + tensor + string("a") + b"\7"))
        self.broken("R-IDX-07", make(two + string("b") + b"\3"))
        self.broken("R-IDX-08", make(two + string("b") + b"\1\0"))
        self.broken("R-IDX-08", make(two + string("b") + b"\1\x17"))
        self.broken("R-IDX-09", make(two + string("b") + bytes([SET, BY_NAME["F4"].code, 1, 3])))
        self.broken("R-IDX-09", make(two + string("b") + bytes([SET, BY_NAME["F6_E2M3"].code, 0])))

    def test_segment_numbers(self):
        base = one_tensor()
        segment = SegmentEntry(Coding(1, SPARSE, PLANES), 0, 0)
        self.broken("R-IDX-10", make(Index([], [], [entry(operation=PATCH, segments=[1])]), base=base))
        self.broken("R-IDX-10", make(Index([], [segment], [entry(segments=[2])]), base=base))
        self.broken("R-IDX-11", make(Index([], [segment], [entry(dtype=BF16, segments=[1])]), base=base))
        self.broken("R-IDX-16", make(Index([], [segment], [entry(segments=[1])]), base=base))
        self.broken("R-IDX-12", make(Index([], [segment], [entry(segments=[0])]), base=base))
        big = entry(operation=PATCH, shape=(2**24 * 2 + 1,), segments=[1, 1, 1])
        self.broken("R-LIM-02", make(Index([], [segment], [big]), base=base))
        pieces = [entry(f"{i:05}", PATCH, shape=(1,), segments=[1]) for i in range(65537)]
        self.broken("R-LIM-02", make(Index([], [segment], pieces), base=base))
        self.broken("R-SEG-01", make(Index([], [SegmentEntry(segment.coding, 0, 1)], pieces[1:]), base=base))
        two = Index([], [SegmentEntry(segment.coding, 2**64 - 1, 0), segment],
                    [entry(operation=PATCH, segments=[1]), entry("u", PATCH, segments=[2])])
        self.broken("R-IDX-14", make(two, b"", base))
        self.broken("R-IDX-17", make(Index([], [], [TensorEntry("t", REMOVE)])))
        self.broken("R-IDX-17", make(Index([], [], [entry(operation=PATCH)])))
        self.broken("R-IDX-18", make(EMPTY, base=base))

    def test_limits(self):
        self.broken("R-LIM-01", make(varint(257)))
        self.broken("R-LIM-01", make(b"\1" + varint(1048577)))
        self.broken("R-LIM-01", make(b"\1" + string("k" * 1048570) + varint(7)))
        self.broken("R-LIM-01", make(b"\0" + varint(65537)))
        self.broken("R-LIM-01", make(b"\0\0" + varint(100001)))
        self.broken("R-LIM-01", make(b"\0\0\1" + varint(1025)))
        self.broken("R-INT-03", make(b"\0\0\1" + varint(1024)))
        self.broken("R-LIM-01", make(b"\0\0\1\0" + bytes([SET, U8.code, 9])))
        size = bytes([SET, U8.code, 2]) + varint(2**40 + 1) + varint(1)
        self.broken("R-LIM-01", make(b"\0\0\1\0" + size))
        self.broken("R-INT-03", make(b"\0\0\1\0" + bytes([SET, U8.code, 2]) + varint(2**64 - 1)))
        zero = Tensor(U8, (2**64 - 1, 2**64 - 1, 0), b"")
        verify(writer.snapshot({"t": zero}))
        self.broken("R-LIM-04", writer.snapshot(one_tensor()), set_bytes=7)
        verify(writer.snapshot(one_tensor()), limits=replace(MINIMUM_LIMITS, set_bytes=8))

    def test_default_limits(self):
        good = {"n" * 65535: Tensor(U8, (1,) * 255, b"x")}
        file = writer.snapshot(good, metadata={str(i): "v" for i in range(70)})
        self.assertEqual(dcf.apply(file, {}), good)
        self.broken("R-LIM-01", file)
        for index in (varint(65537), b"\0" + varint(2**24 + 1), b"\0\0" + varint(2**24 + 1),
                      b"\0\0\1" + varint(65536), b"\1" + varint(2**26 + 1)):
            self.assertEqual(rule_of(dcf.check_link, make(index)), "R-LIM-01")
        self.assertEqual(rule_of(dcf.check_link, make(b"\0", index_raw=2**30 + 1)), "R-LIM-01")


class ApplyRules(Case):
    def test_apply(self):
        base, target = one_tensor(values=[1] * 8), one_tensor(values=[1] * 7 + [2])
        file = writer.diff(base, target)
        self.broken("R-APP-01", file, target)
        for change in (dict(name="u"), dict(dtype=BY_NAME["I8"]), dict(shape=(7,))):
            index = Index([], [], [entry(**(dict(operation=PATCH) | change))])
            self.broken("R-APP-02", make(index, base=base), base)
        absent = make(Index([], [], [TensorEntry("u", REMOVE)]), base=base, target=base)
        self.assertEqual(verify(absent, base), base)  # removing what is not there is allowed
        digest = target["t"].digest()
        unchanged = Index([], [], [entry(operation=PATCH, digest=digest)])
        self.broken("R-APP-04", make(unchanged, base=base, target=target), base)
        same = Index([], [], [entry(operation=PATCH, digest=base["t"].digest())])
        self.broken("R-APP-05", make(same, base=base, target=target), base)
        verify(make(same, base=base, target=base), base)
        self.broken("R-APP-04", make(Index([], [], [entry()])), {})
        verify(make(Index([], [], [entry()])))  # check does not build the state

    def test_chain(self):
        states = [{}, one_tensor(), one_tensor(values=[1] * 8), one_tensor(values=[2] * 8)]
        links = [writer.diff(a, b) for a, b in zip(states, states[1:])]
        self.assertEqual(dcf.apply_chain(links, {}), states[3])
        for chain in ((links[0], links[2]), (links[1], links[0])):
            with self.assertRaises(DcfError) as caught:
                dcf.apply_chain(chain, states[2])  # R-APP-06 comes before R-APP-01
            self.assertEqual(caught.exception.rule, "R-APP-06")
        SEEN.add("R-APP-06")


class SegmentRules(Case):
    """Files with one segment, made by hand. Base: eight BF16 lanes, four with exponent field 2, four with 0."""
    BASE = one_tensor("BF16", [0x0100, 0, 0x0101, 1, 0x0102, 2, 0x0103, 3])
    TARGET = one_tensor("BF16", [0x0101, 0, 0x0101, 1, 0x0102, 2, 0x0106, 3])  # lanes 0 and 6: +1 and +3
    # Good streams for three kinds of segment; context 1 has lanes 0, 2, 4, 6 and its ranks 0 and 3 are coded.
    ONE = {"table": bytes([1, 2, 2]), "bitmap": b"", "gap low": bytes([0 | 1 << 2]), "gap high": b"\0\1",
           "gap escape": b"", "plane 0": b"\2\6", "plane 1": b"\0\0"}
    TWO = {"table": bytes([2, BITMAP, 0, 1, 2, 1, 4, 2]), "bitmap": b"\0", "gap low": b"", "gap high": b"\0\2",
           "gap escape": b"", "sign": b"\0", "magnitude": bytes([0 | 2 << 2]), "magnitude escape": b""}
    FULL = {"table": bytes([1, 8]), "plane 0": bytes([2, 0, 0, 0, 0, 0, 6, 0]), "plane 1": bytes(8)}
    KINDS = {"ONE": (SPARSE, PLANES), "TWO": (SPARSE, SMALL), "FULL": (DENSE, PLANES)}

    def file(self, kind, stored=None, **changes):
        streams = getattr(self, kind) | {name.replace("_", " "): value for name, value in changes.items()}
        return segment_link(self.BASE, self.TARGET, *self.KINDS[kind], streams, stored)

    def bad(self, rule, kind, stored=None, base=None, **changes):
        self.broken(rule, self.file(kind, stored, **changes), base or self.BASE)

    def test_good(self):
        for kind in self.KINDS:
            self.assertEqual(dcf.apply(self.file(kind), self.BASE), self.TARGET)

    def test_directory(self):
        data = bytearray(self.file("ONE"))
        data[-1] ^= 1
        self.broken("R-SEG-01", bytes(data), self.BASE)
        good = encode_segment(Coding(2, DENSE, PLANES), self.FULL, 3)
        self.bad("R-SEG-02", "FULL", good + b"\0")
        self.bad("R-SEG-02", "FULL", good[:-1])
        self.bad("R-SEG-02", "FULL", varint(2**64 - 1) * 6)
        self.bad("R-STR-01", "FULL", b"\1\2" + good[2:])
        self.bad("R-INT-03", "FULL", good[:5])
        self.bad("R-INT-03", "FULL", b"")
        self.bad("R-LIM-03", "FULL", varint(354) + b"\0" + bytes(4))
        self.bad("R-STR-02", "FULL", varint(353) + b"\0" + bytes(4))

    def test_table(self):
        for table in (b"\0\0", bytes([17] * 60)):
            self.bad("R-SEG-03", "FULL", table=table)
        absolute = segment_link(self.BASE, self.TARGET, DENSE, ABSOLUTE, self.FULL | {"table": bytes([2, 0, 4, 4])})
        self.broken("R-SEG-04", absolute, self.BASE)
        self.bad("R-SEG-05", "ONE", table=bytes([1, 33, 2]))
        for width in (0, 3, 16):
            self.bad("R-SEG-06", "TWO", table=bytes([2, BITMAP, 0, 1, width, 1, 4, 2]))
        self.bad("R-SEG-07", "TWO", table=bytes([2, BITMAP, 0, 1, 2]) + varint(257) + bytes([4, 2]))
        self.bad("R-SEG-07", "FULL", table=bytes([3]) + varint(200) + varint(57) + bytes([8, 0, 0]))
        self.bad("R-SEG-08", "FULL", table=bytes([1, 7]))
        self.bad("R-SEG-08", "FULL", table=bytes([1]) + varint(2**64 - 1))
        self.bad("R-SEG-08", "ONE", table=bytes([1, 2, 9]))
        self.bad("R-SEG-08", "ONE", table=bytes([1, BITMAP, 2]))
        self.bad("R-SEG-09", "ONE", table=bytes([1, 2, 2, 0]))
        self.bad("R-INT-03", "ONE", table=bytes([1, 2]))
        self.bad("R-INT-03", "ONE", table=b"")

    def test_streams(self):
        for changes in (dict(bitmap=b"\0"), dict(gap_low=b""), dict(gap_high=b"\0"), dict(plane_0=b"\2"),
                        dict(plane_1=bytes(3))):
            self.bad("R-STR-04", "ONE", **changes)
        for changes in (dict(bitmap=b""), dict(sign=b""), dict(magnitude=b"\0\0")):
            self.bad("R-STR-04", "TWO", **changes)
        self.bad("R-STR-05", "ONE", gap_low=b"\x14")
        for changes in (dict(bitmap=b"\x10"), dict(sign=b"\4"), dict(magnitude=b"\x18")):
            self.bad("R-STR-05", "TWO", **changes)
        self.bad("R-STR-06", "ONE", gap_high=b"\0\xff")
        self.bad("R-STR-06", "TWO", magnitude=b"\3")
        self.bad("R-INT-01", "TWO", magnitude=b"\3", magnitude_escape=b"\0\x80\0")
        self.bad("R-INT-03", "TWO", magnitude=b"\3", magnitude_escape=b"\x80")
        self.bad("R-LIM-03", "ONE", gap_escape=bytes(1))
        self.bad("R-LIM-03", "ONE", gap_high=b"\0\xff", gap_escape=bytes(11))
        self.bad("R-STR-06", "ONE", gap_high=b"\0\xff", gap_escape=bytes(10))
        self.bad("R-LIM-03", "TWO", magnitude=b"\3", magnitude_escape=bytes(11))

    def test_positions_and_values(self):
        self.bad("R-VAL-01", "ONE", plane_0=b"\2\0")
        self.bad("R-VAL-02", "TWO", magnitude=b"\3", magnitude_escape=varint(2**15 - 1 - 3))
        self.bad("R-VAL-02", "TWO", sign=b"\1", magnitude=b"\3", magnitude_escape=varint(2**15 - 3))
        self.bad("R-VAL-02", "TWO", magnitude=b"\3", magnitude_escape=varint(2**64 - 1))
        self.bad("R-POS-01", "ONE", gap_high=b"\0\2", plane_0=b"")
        self.bad("R-POS-01", "ONE", gap_high=b"\0\xff", gap_escape=varint(2**64 - 1))
        self.bad("R-POS-01", "TWO", gap_high=b"\0\3")
        self.bad("R-POS-02", "TWO", table=bytes([2, BITMAP, 0, 1, 2, 1, 3, 2]))
        far = self.file("TWO", gap_high=b"\0\7", sign=b"")
        self.assertEqual(rule_of(dcf.check_link, far), "R-POS-01")  # beyond the lanes: seen without the base
        near = self.file("TWO", gap_high=b"\0\6")
        dcf.check_link(near)
        self.assertEqual(rule_of(dcf.apply, near, self.BASE), "R-POS-01")
        self.bad("R-POS-02", "FULL", table=bytes([2, 1, 3, 5]))
        verify(self.file("FULL", table=bytes([2, 1, 3, 5])))  # without the base nobody can know


class ZAll(Case):
    def test_every_rule_was_seen(self):
        self.assertEqual(set(RULES) - SEEN, set())


if __name__ == "__main__":
    unittest.main()
