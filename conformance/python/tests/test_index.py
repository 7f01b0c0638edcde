"""The rules of the index (section 6): described dtypes, order of segments, pieces, bounds, the extension area."""
import unittest

from blake3 import blake3

from deltachain_py import safetensors, writer
from deltachain_py.errors import DcfError
from deltachain_py.index import PATCH, SET, SMALL, SPARSE, Coding, Index, SegmentEntry, TensorEntry
from deltachain_py.model import BY_NAME, DESCRIBED, Dtype, Tensor, state_digest
from deltachain_py.primitives import string, varint
from tests.helper import dcf, make, one_tensor, remake, rule_of, seeded

U8, I8, BF16 = (BY_NAME[name] for name in ("U8", "I8", "BF16"))
BASE = one_tensor()


class DescribedDtypes(unittest.TestCase):
    def test_descriptions(self):
        for name, numbers, good in (
                ("X", (8, 1, 0, 0), True), ("A" * 32, (8, 1, 0, 0), True), ("F8_", (8, 1, 1, 0), True),
                ("X", (144, 8, 0, 0), True), ("X", (65536, 8, 0, 0), True), ("X", (8, 1, 1, 7), True),
                ("X", (64, 8, 1, 11), True),
                ("", (8, 1, 0, 0), False), ("A" * 33, (8, 1, 0, 0), False), ("x", (8, 1, 0, 0), False),
                ("1X", (8, 1, 0, 0), False),
                ("_X", (8, 1, 0, 0), False), ("X-", (8, 1, 0, 0), False), ("É", (8, 1, 0, 0), False),
                ("X\n", (8, 1, 0, 0), False), ("BF16", (16, 2, 1, 8), False), ("X", (0, 1, 0, 0), False),
                ("X", (8, 0, 0, 0), False), ("X", (8, 3, 0, 0), False), ("X", (8, 16, 0, 0), False),
                ("X", (8, 1, 2, 0), False), ("X", (8, 1, 0, 1), False), ("X", (8, 1, 1, 8), False),
                ("X", (64, 8, 1, 12), False), ("X", (65537, 8, 0, 0), False)):
            index = b"\0\0\1" + string("t") + bytes([SET, DESCRIBED]) + string(name)
            index += varint(numbers[0]) + bytes(numbers[1:])
            self.assertEqual(rule_of(dcf.check_link, make(index)), "R-INT-03" if good else "R-IDX-20", (name, numbers))
        self.assertEqual(rule_of(dcf.check_link, make(b"\0\0\1" + string("t") + bytes([SET, 254]))), "R-IDX-08")

    def test_states(self):
        one = Dtype(DESCRIBED, "F16_X", 16, 2, True, 6)
        other = Dtype(DESCRIBED, "F16_X", 16, 2, True, 5)
        rng, states = seeded(14), []
        for dtype in (one, one, other, BF16):
            states.append({"t": Tensor(dtype, (50,), rng.randbytes(100))})
        self.assertEqual(len({state_digest({"t": Tensor(d, (1,), b"ab")}) for d in (one, other, BF16)}), 3)
        number, two = (1).to_bytes(8, "little"), (2).to_bytes(8, "little")
        preimage = number + number + b"t\xff\5F16_X\x10\2\1\6" + number + number + two + blake3(b"ab").digest()
        digest = blake3(preimage, derive_key_context="deltachain 2026-11-21 state digest v1").digest()
        self.assertEqual(state_digest({"t": Tensor(one, (1,), b"ab")}), digest)
        links = [writer.diff(a, b) for a, b in zip([{}, *states], states)]
        self.assertEqual([dcf.parse(link).index.tensors[0].operation for link in links], [SET, PATCH, SET, SET])
        self.assertEqual(dcf.apply_chain(links, {}), states[3])
        with self.assertRaises(DcfError) as caught:
            safetensors.encode(dcf.apply_chain(links[:2], {}))
        self.assertEqual(caught.exception.error_class, "USAGE")

        def retype(index):
            index.tensors[0].dtype = other

        self.assertEqual(rule_of(dcf.apply, remake(links[1], retype), states[0]), "R-APP-02")

    def test_whole_lanes(self):
        odd = Dtype(DESCRIBED, "X", 12, 2, False, 0)
        for elements, rule in ((4, None), (2, "R-IDX-09"), (1, "R-IDX-09"), (8, None)):
            state = {"t": Tensor(odd, (elements,), bytes(elements * 12 // 8))}
            self.assertEqual(rule_of(dcf.apply, make(Index([], [], [TensorEntry(
                "t", SET, odd, (elements,), [0], state["t"].digests())]), target=state), {}), rule)


class Segments(unittest.TestCase):
    def says(self, expected, codings, *tensors):
        entries = [TensorEntry(str(i), PATCH, dtype, (size,), numbers, [bytes(32)] * len(numbers))
                   for i, (dtype, size, numbers) in enumerate(tensors)]
        data = make(Index([], [SegmentEntry(coding, 0, 0) for coding in codings], entries), base=BASE)
        self.assertEqual(rule_of(dcf.check_link, data), expected)

    def test_order(self):
        planes, small = Coding(1, SPARSE, 1), Coding(1, SPARSE, SMALL)
        x, y = (Dtype(DESCRIBED, name, 8, 1, False, 0) for name in "XY")
        self.says("R-INT-03", [planes] * 2, (U8, 5, [1]), (U8, 5, [1]), (U8, 5, [2]), (U8, 5, [0]), (U8, 5, [2]))
        self.says("R-IDX-19", [planes] * 2, (U8, 5, [2]), (U8, 5, [1]))
        self.says("R-IDX-19", [planes] * 2, (U8, 5, [1]), (I8, 5, [1]), (U8, 5, [2]), (I8, 5, [2]), (U8, 5, [1]))
        self.says("R-IDX-19", [planes] * 2, (U8, 2**24 + 1, [2, 1]))
        self.says("R-INT-03", [planes] * 2, (U8, 5, [2]), (I8, 5, [1]))
        self.says("R-INT-03", [planes] * 2, (x, 5, [2]), (y, 5, [1]))
        self.says("R-IDX-19", [planes] * 2, (x, 5, [2]), (x, 5, [1]))
        self.says("R-INT-03", [planes, small], (U8, 5, [2]), (U8, 5, [1]))

    def test_stored_length(self):
        for length, rule in ((512 + 94 * 2 + 10 * 5, "R-SEG-01"), (512 + 94 * 2 + 10 * 5 + 1, "R-LIM-06")):
            entries = [TensorEntry(name, PATCH, BF16, (size,), [1], [bytes(32)]) for name, size in (("a", 2), ("b", 3))]
            data = make(Index([], [SegmentEntry(Coding(2, SPARSE, 1), length, 0)], entries), bytes(length), BASE)
            self.assertEqual(rule_of(dcf.check_link, data), rule)


class Pieces(unittest.TestCase):
    def test_digests(self):
        size = 2**25 + 3
        target = {"t": Tensor(U8, (size,), bytes(2**24) + b"x" + bytes(2**24 + 2))}
        link = dcf.parse(writer.snapshot(target))
        entry = link.index.tensors[0]
        self.assertEqual(entry.segments, [0, 1, 0])
        pieces = [blake3(part).digest() for part in (bytes(2**24), b"x" + bytes(2**24 - 1), bytes(3))]
        self.assertEqual(entry.digests, pieces)
        self.assertEqual(entry.row().digest, blake3(b"".join(pieces)).digest())
        self.assertEqual(dcf.apply(link.data, {}), target)
        self.assertEqual(Tensor(U8, (0,), b"").row().digest, blake3(b"").digest())

    def test_each_piece_is_compared(self):
        state = {"t": Tensor(U8, (2**24 + 1,), bytes(2**24 + 1))}
        for wrong in (0, 1):
            digests = state["t"].digests()
            digests[wrong] = bytes(32)
            entry = TensorEntry("t", SET, U8, (2**24 + 1,), [0, 0], digests)
            promised = make(Index([], [], [entry]), target=dcf.table_digest({"t": entry.row()}))
            self.assertEqual(rule_of(dcf.apply, promised, {}), "R-APP-04")
            self.assertEqual(rule_of(dcf.apply, make(Index([], [], [entry]), target=state), {}), "R-APP-05")


class ExtensionArea(unittest.TestCase):
    def test_length(self):
        base, target = one_tensor(), one_tensor(values=b"12345678")
        link = dcf.parse(writer.diff(base, target))
        body = b"".join(stored for _, _, stored in link.stored_segments())
        file = make(link.index, body, base, target, extension=3)
        for tail, rule in ((b"", "R-HDR-09"), (b"xy", "R-HDR-09"), (b"xyz", None), (b"xyzz", "R-HDR-10")):
            self.assertEqual(rule_of(dcf.apply, file + tail, base), rule)
        for extension, rule in ((2**63 - 1 - 131, "R-HDR-09"), (2**63 - 131, "R-HDR-08"), (2**64 - 1, "R-HDR-08")):
            self.assertEqual(rule_of(dcf.check_link, make(b"\0\0\0", extension=extension)), rule)


if __name__ == "__main__":
    unittest.main()
