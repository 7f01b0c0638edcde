"""The worked examples of SPEC.md, sections 1 to 8."""
import json
import os
import re
import struct
import unittest
from types import SimpleNamespace

from deltachain_py import codings, in_place, layout, signatures, writer
from deltachain_py.errors import Limits
from deltachain_py.index import ABSOLUTE, PLANES, SMALL, SPARSE, Coding
from deltachain_py.model import BY_NAME, DTYPES, EMPTY_DIGEST, Dtype, Tensor, piece_count, piece_range, state_digest
from deltachain_py.primitives import Reader, crc32, pack, unpack, varint
from tests.edge_cases import edge_cases
from tests.helper import rule_of, segment_link, one_tensor, dcf

BF16, F16 = BY_NAME["BF16"], BY_NAME["F16"]


def worked_text(section):
    """Returns a section of the worked files."""
    path = os.path.join(os.path.dirname(__file__), "..", "..", "..", "spec", "worked-files.md")
    with open(path, encoding="utf-8") as file:
        return file.read().split(f"### {section} ")[1].split("\n##")[0]


class Examples(unittest.TestCase):
    def test_primitives(self):  # section 1
        self.assertEqual(varint(300), bytes.fromhex("AC02"))
        self.assertEqual(Reader(bytes.fromhex("AC02"), "").varint(), 300)
        self.assertEqual(varint(2**64 - 1), bytes.fromhex("FFFFFFFFFFFFFFFFFF01"))
        self.assertEqual(crc32(b"123456789"), 0xCBF43926)
        for raw, rule in (("8000", "R-INT-01"), ("80", "R-INT-03"), ("", "R-INT-03"), ("FF" * 9 + "02", "R-INT-02"),
                          ("80" * 9 + "00", "R-INT-01"), ("80" * 10 + "00", "R-INT-02"), ("FF" * 9 + "01", None)):
            self.assertEqual(rule_of(Reader(bytes.fromhex(raw), "").varint), rule, raw)
        for raw, rule in (("01FF", "R-INT-04"), ("03EDA080", "R-INT-04"), ("02C080", "R-INT-04"), ("0161", None),
                          ("0261", "R-INT-03"), ("0100", None)):
            self.assertEqual(rule_of(Reader(bytes.fromhex(raw), "").string, 9, ""), rule, raw)

    def test_dtypes(self):  # section 2.1
        self.assertEqual(sorted(DTYPES), list(range(1, 23)))
        rows = {"BOOL": (1, 8, 1, False, 0), "F4": (2, 4, 1, False, 0), "F6_E3M2": (4, 6, 1, False, 0),
                "F8_E4M3": (8, 8, 1, True, 4), "F8_E8M0": (9, 8, 1, False, 0), "BF16": (15, 16, 2, True, 8),
                "F32": (18, 32, 4, True, 8), "C64": (19, 64, 8, False, 0), "F64": (20, 64, 8, True, 11)}
        for name, row in rows.items():
            d = BY_NAME[name]
            self.assertEqual((d.code, d.bits, d.lane_bytes, d.sign_magnitude, d.exponent_bits), row)

    def test_pieces(self):  # section 2.3
        self.assertEqual([piece_count(n) for n in (0, 1, 2**24, 2**24 + 1)], [0, 1, 1, 2])
        self.assertEqual(piece_range(2**24 + 1, 1), (2**24, 2**24 + 1))

    def test_empty_digest(self):  # section 3
        self.assertEqual(state_digest({}), EMPTY_DIGEST)

    def test_contexts(self):  # section 7.1
        lists = codings.members(BF16, [100, 110], 3, [0x3F80, 0x3580, 0])
        self.assertEqual(lists, [[2], [1], [0]])

    def test_gaps(self):  # section 8.1
        streams = codings.encode_positions([[[5, 6, 1100]]], [[2000]], [2])
        self.assertEqual({k: bytes(v).hex() for k, v in streams.items()},
                         {"bitmap": "", "gap low": "11", "gap high": "0100ff", "gap escape": "12"})
        table = SimpleNamespace(contexts=1, positions=[2], counts=[[3]])

        def take(name, needed=None, limit=None):
            return bytes(streams[name])

        self.assertEqual(codings.decode_positions(take, table, [SimpleNamespace(lanes=1101)], ""), [[[5, 6, 1100]]])

    def test_absolute(self):  # section 8.2
        streams = codings.encode_values(Coding(2, SPARSE, ABSOLUTE), [BF16], [[[0xBF80]]], [])
        self.assertEqual(streams, {"plane 0": b"\x01", "plane 1": b"\x7f"})
        self.assertEqual(codings.rotate_right(BF16, 0x7F01), 0xBF80)

    def test_key(self):  # section 8.3
        self.assertEqual(codings.key(BF16, 0), 0)
        self.assertEqual(codings.key(BF16, 0x8000), 0xFFFF)
        for name in ("F8_E4M3", "F8_E5M2FNUZ", "U8", "I8", "F8_E8M0"):
            d = BY_NAME[name]
            self.assertEqual(len({codings.key(d, u) for u in range(256)}), 256)
            for old in range(256):
                self.assertEqual(codings.key(d, codings.key(d, old)), old)
                for new in range(0, 256, 5):
                    delta = codings.difference(d, old, new)
                    self.assertTrue(-128 <= delta < 128)
                    self.assertEqual(codings.add_difference(d, old, delta), new)
                    self.assertEqual(codings.unzigzag(codings.zigzag(delta)), delta)

    def test_planes(self):  # section 8.4
        d = codings.difference(F16, 0x3C00, 0x3BFE)
        self.assertEqual(d, -2)
        streams = codings.encode_values(Coding(2, SPARSE, PLANES), [F16], [[[d]]], [])
        self.assertEqual(streams, {"plane 0": b"\x03", "plane 1": b"\x00"})

    def test_small(self):  # section 8.5
        streams = codings.encode_values(Coding(2, SPARSE, SMALL), [F16], [[[1, -1, 6, -3]]], [2])
        self.assertEqual({k: bytes(v).hex() for k, v in streams.items()},
                         {"sign": "0a", "magnitude": "b0", "magnitude escape": "02"})
        base, target = one_tensor("U16", [10, 10, 10, 10]), one_tensor("U16", [11, 9, 16, 7])
        file = segment_link(base, target, SPARSE, SMALL, streams | {
            "table": bytes([1, 32, 2, 4]), "bitmap": b"\x0f", "gap low": b"", "gap high": b"", "gap escape": b""})
        self.assertEqual(dcf.apply(file, base), target)

    def test_worked_files(self):  # section 16
        folder = os.path.join(os.path.dirname(__file__), "..", "..", "..", "spec")
        with open(os.path.join(folder, "worked-files.md"), encoding="utf-8") as file:
            text = file.read()
        files = {}
        for name, body in re.findall(r"```hexdump (\w+)\n(.*?)```", text, re.DOTALL):
            files[name] = bytes.fromhex("".join(line[10:].split("|")[0] for line in body.splitlines()))
        self.assertEqual(dcf.apply(files["smallest"], {}), {})
        self.assertEqual(writer.diff({}, {}), files["smallest"])
        base = one_tensor("BF16", [0, 0x0100, 1, 0x0101, 2, 0x0102, 3, 0x0103])
        target = one_tensor("BF16", [1, 0x0100, 1, 0x0102, 0x8000, 0x0102, 3, 0x0101])
        self.assertEqual(dcf.apply(files["contexts"], base), target)
        self.assertEqual(dcf.apply(files["pieces"], {})["t"].data, bytes(1 << 24) + b"\7")
        dtype = Dtype(255, "FP16_X", 16, 2, True, 6)
        base, target = ({"t": Tensor(dtype, (4,), struct.pack("<4H", *lanes))} for lanes in (
            [0x3E00] * 4, [0x3E00, 0xBE01, 0x3E00, 0x3E00]))
        self.assertEqual(dcf.apply(files["described"], base), target)
        found = in_place.link_sums(dcf.parse(files["described"]))
        self.assertEqual([*found], [("t", 0)])
        for numbers in found["t", 0]:
            self.assertIn("{} and {}".format(*numbers), text)
        self.assertEqual(in_place.in_place([files["described"]], base), target)

    def test_worked_note(self):  # section 16.6
        text = worked_text("16.6")
        public, name = re.findall(r"```\n(.*)\n```", text)
        key = signatures.key(public)
        version, commit, _ = name.removeprefix("signatures/").split("-")
        self.assertEqual(signatures.own_note(int(version), commit, key), name.removeprefix("signatures/"))
        note = re.search(r"```note\n(.*?)```", text, re.DOTALL)[1]
        chain, number, named = note.split("\n")[1:4]
        self.assertEqual((number, named), ("0", commit))
        text = signatures.note_text(chain, 0, commit)
        self.assertEqual(signatures.counts_for(note.encode(), text, [key]), {key})

    def test_worked_layout(self):  # section 16.7
        text = worked_text("16.7")
        before, after = re.findall(r"```\n(.*)\n```", text)
        names = ["vae/y", "vae/z", "x"], ["b", "vae/w", "vae/z", "x"]
        files = layout.carried(layout.parse(before, names[0]), *map(dict.fromkeys, names))
        self.assertEqual(files, layout.parse(after, names[1]))
        self.assertIn(f"`{layout.digest(files)}`", text)

    def test_list_of_rules(self):  # in the contents
        root = os.path.join(os.path.dirname(__file__), "..", "..", "..")
        with open(os.path.join(root, "SPEC.md"), encoding="utf-8") as file:
            contents = " ".join(file.read().split("## Contents\n")[1].split("\n# ")[0].split())
        listed = {}
        for entry in contents.split("[")[1:]:  # a link to a section, and its rules
            groups = re.split(r"(R-[A-Z]{3}): ", entry)[1:]
            for group, words in zip(groups[::2], groups[1::2]):
                for number in re.findall(r"(?:^|[,;] )(\d\d) ", words):
                    self.assertNotIn(f"{group}-{number}", listed)
                    listed[f"{group}-{number}"] = entry.split()[0]
        with open(os.path.join(root, "conformance", "rules.json"), encoding="utf-8") as file:
            self.assertEqual(listed, {rule["id"]: rule["section"] for rule in json.load(file)})

    def test_edge_cases(self):  # every verdict is a rule or acceptance, never another exception
        for label, base, data in edge_cases():
            with self.subTest(label):
                rule_of(dcf.check_link, data)
                if len(data) < 10**5 and rule_of(dcf.parse, data, Limits(set_bytes=1 << 20)) != "R-LIM-04":
                    rule_of(dcf.apply, data, base)

    def test_pack(self):
        for width in range(32):
            items = [i * 7919 & (1 << width) - 1 for i in range(13)]
            self.assertEqual(unpack(pack(items, width), width, 13, ""), items)


if __name__ == "__main__":
    unittest.main()
