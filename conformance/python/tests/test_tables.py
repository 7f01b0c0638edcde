"""The tables for implementers (../../constants.json and others), against this reader."""
import json
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

from deltachain_py import codings, documents, errors, header, in_place, link as dcf, model, names, signatures, streams
from deltachain_py.errors import Limits
from deltachain_py.model import BY_NAME, DESCRIBED, DTYPES, PIECE_BYTES, Dtype, Row, Tensor
from deltachain_py.primitives import Reader, crc32, varint
from deltachain_py.segment import decode_segment, stream_names
from deltachain_py.index import Coding
from tests.helper import rule_of

FOLDER = Path(__file__).resolve().parents[2]


def table(name):
    return json.loads((FOLDER / name).read_text())


class Constants(unittest.TestCase):
    known = table("constants.json")

    def test_numbers(self):
        self.assertEqual(self.known["magic"]["link"], header.MAGIC.hex())
        self.assertEqual((self.known["link_version"], self.known["document_version"]),
                         (header.VERSION, documents.VERSION))
        self.assertEqual((self.known["header_bytes"], self.known["piece_bytes"], self.known["window_bytes"]),
                         (header.SIZE, PIECE_BYTES, streams.MAX_WINDOW))
        self.assertEqual(self.known["empty_state"], model.EMPTY_DIGEST.hex())
        self.assertEqual([Dtype(**dtype) for dtype in self.known["dtypes"]], [*DTYPES.values()])
        self.assertEqual(self.known["described"]["code"], DESCRIBED)

    def test_additions(self):
        sums, notes, contexts = (self.known[name] for name in ("sums", "notes", "context_strings"))
        self.assertEqual((sums["prime"], sums["compatible_bit"], sums["record_kind"]),
                         (in_place.P, in_place.BIT - 1, in_place.KIND))
        drawn = struct.pack("<12288I", *in_place.NUMBERS)
        self.assertEqual(in_place.blake3(drawn).hexdigest(), sums["tables_digest"])
        source = Path(in_place.__file__).read_text()
        self.assertTrue(all(f'"{contexts[name]}"' in source for name in ("sums", "sums_of_a_link")))
        self.assertEqual([*notes.values()], [signatures.note_text("", 0, "").split("\n")[0], signatures.NOTE_BYTES,
                                             signatures.LINES, signatures.NOTES])
        self.assertEqual({bytes.fromhex(key) for key in self.known["low_order_keys"]}, signatures.LOW_ORDER)

    def test_limits(self):
        def values(limits):
            return [value for name, value in vars(limits).items() if name not in ("set_bytes", "coded_bytes")]
        first = [limit["quantity"] for limit in self.known["limits"]].index("segment, bytes of its pieces")
        for column, limits in (("least", errors.MINIMUM_LIMITS), ("most", Limits())):
            self.assertEqual([limit[column] for limit in self.known["limits"][:first]], values(limits))
        self.assertEqual([limit["most"] for limit in self.known["limits"][first:]],
                         [errors.SEGMENT_BYTES, errors.SEGMENT_PIECES, errors.DOCUMENT_BYTES, errors.ASSETS,
                          errors.ASSET_BYTES])

    def test_codings_and_rules(self):
        for item in self.known["streams"]:
            coding = Coding.decode(item["coding"], Reader(b"", ""))
            self.assertEqual((coding.lane_bytes, stream_names(coding)), (item["lane_bytes"], item["streams"]))
        legal = [byte for byte in range(256) if rule_of(Coding.decode, byte, Reader(b"", "")) is None]
        self.assertEqual([item["coding"] for item in self.known["streams"]], legal)
        rules = {rule["id"]: rule["class"] for rule in self.known["rules"] if rule["class"].isupper()}
        self.assertEqual(rules, errors.RULES | errors.IN_PLACE_RULES | errors.CHAIN_RULES)

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_header_for_c(self):
        uses = "deltachain_dtypes[0].code + deltachain_codings[0].coding + (int)deltachain_rules[0].error"
        uses += " + (int)DELTACHAIN_SEGMENT_STORED_BYTES(1, 2, 3)"
        source = f'#include "deltachain.h"\nint main(void) {{ return {uses}; }}\n'
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "use.c").write_text(source)
            command = ["cc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", f"-I{FOLDER}",
                       "use.c"]
            self.assertEqual(subprocess.run(command, cwd=folder, stderr=subprocess.STDOUT).returncode, 0)


def dtype_of(known):
    return BY_NAME[known] if isinstance(known, str) else Dtype(DESCRIBED, **known)


class Functions(unittest.TestCase):
    tables = table("functions.json")["tables"]

    def rows(self, name):
        for row in self.tables[name]["rows"]:
            with self.subTest(name, row=str(row)[:200]):
                yield row

    def test_primitives(self):
        for row in self.rows("varint"):
            data = bytes.fromhex(row["bytes"])
            self.assertEqual(rule_of(Reader(data, "").varint), row.get("rule"))
            if "value" in row:
                self.assertEqual((Reader(data, "").varint(), varint(int(row["value"]))), (int(row["value"]), data))
        for row in self.rows("crc32"):
            self.assertEqual(f"{crc32(bytes.fromhex(row['bytes'])):08x}", row["crc"])

    def test_lanes(self):
        for row in self.rows("lanes"):
            dtype, lane, key = BY_NAME[row["dtype"]], int(row["lane"], 16), int(row["key"], 16)
            self.assertEqual((codings.key(dtype, lane), codings.key(dtype, key)), (key, lane))
            self.assertEqual(codings.rotate_left(dtype, lane), int(row["rotl"], 16))
            self.assertEqual(codings.rotate_right(dtype, int(row["rotl"], 16)), lane)
        for row in self.rows("differences"):
            dtype, old, new, d = BY_NAME[row["dtype"]], int(row["old"], 16), int(row["new"], 16), int(row["d"])
            self.assertEqual((codings.difference(dtype, old, new), codings.add_difference(dtype, old, d)), (d, new))
            self.assertEqual((codings.zigzag(d), codings.unzigzag(int(row["z"]))), (int(row["z"]), d))
        for row in self.rows("members"):
            lanes = [int(lane, 16) for lane in row["lanes"]]
            contexts = [None] * len(lanes)
            for context, inside in enumerate(codings.members(BY_NAME[row["dtype"]], row["thresholds"], len(lanes),
                                                             lanes)):
                for lane in inside:
                    contexts[lane] = context
            self.assertEqual(contexts, row["contexts"])

    def test_positions(self):
        for row in self.rows("bitmaps"):
            made = codings.encode_positions([row["ranks"]], [row["members"]], [codings.BITMAP])
            self.assertEqual(made["bitmap"].hex(), row["bytes"])
        for row in self.rows("gaps"):
            made = codings.encode_positions([row["ranks"]], [[0] * len(row["ranks"])], [row["shift"]])
            self.assertEqual([made[name.replace("_", " ")].hex() for name in ("gap_low", "gap_high", "gap_escape")],
                             [row[name] for name in ("gap_low", "gap_high", "gap_escape")])
        for row in self.rows("magnitudes"):
            values = [[[int(d) for d in row["differences"]]]]
            made = codings.encode_values(Coding(8, 1, 2), [BY_NAME["U64"]], values, [row["bits"]])
            self.assertEqual([made[name].hex() for name in ("sign", "magnitude", "magnitude escape")],
                             [row[name] for name in ("sign", "magnitude", "magnitude_escape")])

    def test_digests(self):
        for row in self.rows("tensor_digests"):
            period = bytes((i * row["multiply"] + row["add"]) % row["modulus"] for i in range(row["modulus"]))
            data = (period * (row["bytes"] // len(period) + 1))[:row["bytes"]]
            self.assertEqual(Tensor(BY_NAME["U8"], (len(data),), data).row().digest.hex(), row["digest"])
        for row in self.rows("state_digests"):
            state = {item["name"]: Row(dtype_of(item["dtype"]), tuple(map(int, item["shape"])),
                                       bytes.fromhex(item["digest"]))
                     for item in row["tensors"]}
            self.assertEqual([one.byte_length for one in state.values()], [item["bytes"] for item in row["tensors"]])
            self.assertEqual(model.table_digest(state).hex(), row["digest"])

    def test_names_and_texts(self):
        for row in self.rows("names"):
            name = row["name"]
            self.assertEqual((names.is_plain(name), names.is_path(name), documents.is_asset_name(name),
                              names.is_path(name) and name.endswith(".safetensors")),
                             (row["plain"], row["path"], row["asset"], row["layout"]))
            if row["path"]:
                self.assertEqual(names.folder(name), row.get("folder", ""))
        for row in self.rows("json_strings"):
            text = documents.one_form(row["written"].encode("utf-8", "surrogatepass"), ".*")
            self.assertEqual(text, row["string"] if row["legal"] else None)

    def test_documents(self):
        for row in self.rows("routes"):
            routes = [{"from": route["from"],
                       "files": [{"digest": file["digest"], "size": file["size"]} for file in route["files"]
                                                        for _ in range(file["times"])]} for route in row["routes"]]
            data = documents.encode({"deltachain": 1, "version": 9, "generation": 1, "commit": "0" * 64,
                                     "routes": routes,
                                     "metadata": {}})
            self.assertEqual(rule_of(documents.parse, data, "routes"), None if row["legal"] else "R-DOC-04")
        for row in self.rows("direct"):
            document = {"routes": [{"from": 0}] * row["routes"], "metadata": {documents.DIRECT: row["value"]}}
            self.assertEqual(sorted(documents.direct(document)), row["numbers"] or [])

    def test_keys(self):
        for row in self.rows("verifier_keys"):
            key = signatures.key(row["key"])
            self.assertEqual(key and (key.name, key.id.hex(), key.public.hex()),
                             (row["name"], row["id"], row["public"]) if row.get("legal", True) else None)
        for row in self.rows("trust"):
            try:
                signatures.Trust(row["keys"], row["quorum"])
                legal = True
            except errors.DcfError as error:
                self.assertEqual((error.error_class, error.rule), ("USAGE", None))
                legal = False
            self.assertEqual(legal, row["legal"])

    def test_notes(self):
        for row in self.rows("note_texts"):
            self.assertEqual(signatures.note_text(row["chain"], row["version"], row["commit"]), row["text"])
        for row in self.rows("signature_lines"):
            key = signatures.key(row["key"])
            note = f"{row['text']}\n{row['line']}\n".encode()
            self.assertEqual(signatures.counts_for(note, row["text"], [key]), {key} if row["valid"] else set())
        for row in self.rows("notes"):
            text = signatures.note_text(row["chain"], row["version"], row["commit"])
            keys = signatures.Trust(row["keys"], 1).keys
            counted = signatures.counts_for(bytes.fromhex(row["note"]), text, keys)
            self.assertEqual([number for number, key in enumerate(keys) if key in counted], row["counts"])

    def test_sums(self):
        for row in self.rows("sums"):
            self.assertEqual(list(in_place.sums_of(bytes.fromhex(row["bytes"]), row["place"])), row["sums"])
        for row in self.rows("piece_sums"):
            data = bytes((i * row["multiply"] + row["add"]) % row["modulus"] for i in range(row["bytes"]))
            self.assertEqual(list(in_place.sums_of(data)), row["sums"])
        for row in self.rows("sums_added"):
            self.assertEqual(list(in_place.plus(row["one"], row["other"])), row["more"])
            self.assertEqual(list(in_place.minus(row["more"], row["other"])), row["one"])


class Decoded(unittest.TestCase):
    def test_segments(self):
        for known in table("decoded.json")["links"]:
            link = dcf.parse((FOLDER / "vectors" / f"{known['id']}.dcf").read_bytes())
            self.assertEqual(len(known["segments"]), len(link.index.segments))
            for (_, entry, stored), segment in zip(link.stored_segments(), known["segments"]):
                decoded = decode_segment(stored, entry, known["id"])
                self.assertEqual(entry.coding.encode(), segment["coding"])
                for number, (part, item) in enumerate(zip(entry.parts, segment["parts"], strict=True)):
                    self.assertEqual((part.entry.name, part.piece), (item["tensor"], item["piece"]))
                    self.assertEqual(decoded.table.thresholds[number], item["thresholds"])
                    values = [[int(d) for d in context["differences"]] if "differences" in context
                              else [int(lane, 16) for lane in context["new"]] for context in item["contexts"]]
                    self.assertEqual([list(runs[number]) for runs in decoded.ranks],
                                     [c["ranks"] for c in item["contexts"]])
                    self.assertEqual([runs[number] for runs in decoded.values], values)


if __name__ == "__main__":
    unittest.main()
