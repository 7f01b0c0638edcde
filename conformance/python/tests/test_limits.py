"""Files between the two columns of section 13, which each reader may accept or refuse, so they cannot be vectors."""
import unittest

from deltachain_py import link as dcf
from deltachain_py import writer
from deltachain_py.errors import MINIMUM_LIMITS, Limits
from deltachain_py.index import PATCH, SET
from deltachain_py.model import BY_NAME, Tensor
from deltachain_py.primitives import string, varint
from tests.helper import make, rule_of

U8 = BY_NAME["U8"]


class OfTheCaller(unittest.TestCase):
    def test_order(self):
        """R-LIM-04 is checked before R-LIM-08; zeros that no segment codes count only for R-LIM-04."""
        file = writer.snapshot({"t": Tensor(U8, (3,), b"abc"), "z": Tensor(U8, (9,), bytes(9))})
        for set_bytes, coded_bytes, expected in ((12, 3, None), (None, 2, "R-LIM-08"), (12, 2, "R-LIM-08"),
                                                 (11, 3, "R-LIM-04"), (11, 2, "R-LIM-04")):
            limits = Limits(set_bytes=set_bytes, coded_bytes=coded_bytes)
            self.assertEqual(rule_of(dcf.check_link, file, limits), expected)


class BetweenTheColumns(unittest.TestCase):
    def test_whole_files(self):
        for state, metadata in (({"n" * 65535: Tensor(U8, (1,), b"x")}, {}), ({"t": Tensor(U8, (1,) * 255, b"x")}, {}),
                                ({}, {str(i): "" for i in range(257)}), ({}, {"k": "v" * 2**25})):
            file = writer.snapshot(state, metadata=metadata)
            self.assertEqual(dcf.apply(file, {}), state)
            self.assertEqual(rule_of(dcf.check_link, file, MINIMUM_LIMITS), "R-LIM-01")

    def test_announced_only(self):
        """The index announces data that are missing, but only the higher limits let a reader notice that."""
        huge = string("t") + bytes([PATCH, U8.code, 1]) + varint(2**40 + 1)
        for index in (varint(257), b"\1" + varint(2**25 + 1), b"\1" + string("k" * (2**25 - 6)) + varint(7),
                      b"\0" + varint(2**20 + 1), b"\0\0" + varint(2**19 + 1), b"\0\0\1" + varint(1025),
                      b"\0\0\1\0" + bytes([SET, U8.code, 9]), b"\0\0\1" + huge):
            self.assertEqual(rule_of(dcf.check_link, make(index), MINIMUM_LIMITS), "R-LIM-01")
            self.assertEqual(rule_of(dcf.check_link, make(index)), "R-INT-03")
        index = make(b"\0\0\0", index_raw=2**26 + 1, segments=1)
        self.assertEqual(rule_of(dcf.check_link, index, MINIMUM_LIMITS), "R-LIM-01")
        self.assertEqual(rule_of(dcf.check_link, index), "R-HDR-09")


if __name__ == "__main__":
    unittest.main()
