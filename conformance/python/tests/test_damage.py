"""Damaged files cause the library's error and no other."""
import unittest

from deltachain_py import link as dcf
from deltachain_py import writer
from deltachain_py.errors import DcfError
from deltachain_py.index import DENSE, PLANES, SMALL, SPARSE
from deltachain_py.model import BY_NAME
from deltachain_py.writer import Options
from tests.helper import make, mutate, random_state, random_tensor, remake, seeded, verify


def small_link(**options):
    rng = seeded(6)
    base = random_state(rng, [BY_NAME[n] for n in ("BF16", "F16", "U8", "F32")], 40)
    target = mutate(rng, base, 0.2)
    del target["t.U8"]
    target["x"] = random_tensor(rng, BY_NAME["F4"])
    return base, target, writer.diff(base, target, Options(**options), {"k": "v"})


class Damage(unittest.TestCase):
    def test_every_byte(self):
        for options in ({"profile": "direct"}, {"values": SMALL}):
            base, _, data = small_link(**options)
            for position in range(len(data)):
                bad = bytearray(data)
                bad[position] ^= 1 << position % 8
                for state in (None, base):
                    with self.assertRaises(DcfError, msg=f"byte {position}"):
                        verify(bytes(bad), state)

    def test_every_truncation_and_extension(self):
        base, _, data = small_link()
        for length in range(len(data)):
            with self.assertRaises(DcfError) as caught:
                verify(data[:length], base)
            self.assertEqual(caught.exception.error_class, "TRUNCATED")
        with self.assertRaises(DcfError) as caught:
            verify(data + b"\0", base)
        self.assertEqual(caught.exception.rule, "R-HDR-10")

    def outcome(self, data, base, target):
        """Asserts that the result is a DcfError, or the right state: digests allow no third outcome."""
        try:
            self.assertEqual(dcf.apply(data, base), target)
            return None
        except DcfError as error:
            return error.rule

    def test_index_bits_with_right_crc(self):
        base, target, data = small_link()
        link, rules = dcf.parse(data), set()
        raw, body = link.index.encode(), data[128 + link.header.index_stored:]
        for bit in range(8 * len(raw)):
            bad = bytearray(raw)
            bad[bit // 8] ^= 1 << bit % 8
            rules.add(self.outcome(make(bad, body, base, target), base, target))
        for length in range(len(raw)):
            self.assertIsNotNone(self.outcome(make(raw[:length], body, base, target), base, target))
        self.assertGreater(len(rules), 8)

    def test_segment_bits_with_right_crc(self):
        rules = set()
        for options in ({"profile": "direct"}, {"values": SMALL, "contexts": 3}, {"positions": DENSE, "contexts": 3},
                        {"values": PLANES, "positions": SPARSE, "position_parameters": [32, 2]}):
            base, target, data = small_link(**options)
            for number in range(len(dcf.parse(data).index.segments)):
                for bit in range(0, 8 * dcf.parse(data).index.segments[number].stored_length, 11):
                    def damage(bodies):
                        bad = bytearray(bodies[number])
                        bad[bit // 8] ^= 1 << bit % 8
                        bodies[number] = bytes(bad)
                    bad = remake(data, change_segments=damage)
                    rules.add(self.outcome(bad, base, target))
                    try:
                        verify(bad)
                    except DcfError:
                        pass
        self.assertGreater(len(rules), 8)


if __name__ == "__main__":
    unittest.main()
