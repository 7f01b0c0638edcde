"""Documents (section 18)."""
import unittest

from deltachain_py import documents
from deltachain_py.errors import ASSET_BYTES, ASSETS, CHAIN_RULES, DOCUMENT_BYTES
from tests.helper import rule_of

SEEN = set()
HEX = "0123456789abcdef" * 4


class Documents(unittest.TestCase):
    FILE = {"digest": HEX, "size": 7}
    COMMIT = {"deltachain": 1, "version": 3, "parent": HEX, "state": HEX, "shards": [HEX],
              "routes": [{"from": None, "files": [FILE]}, {"from": 2, "files": [FILE]}], "assets": [],
              "metadata": {"a": "é"}}
    ROUTES = {"deltachain": 1, "version": 3, "generation": 1, "commit": HEX, "routes": [], "metadata": {}}

    def refused(self, expected, data, kind="commit"):
        SEEN.add(result := rule_of(documents.parse, data, kind))
        self.assertEqual(result, expected, data[:200])

    def changed(self, expected, kind="commit", **members):
        self.refused(expected, documents.encode((self.COMMIT if kind == "commit" else self.ROUTES) | members), kind)

    def test_legal(self):
        example = '{"deltachain":1,"version":0,"parent":"9f","state":"40","shards":["40"],"routes":[{"from":null,' \
                  '"files":[{"digest":"5c","size":1234}]}],"assets":[],"metadata":{"step":"100"}}'
        for short in ("9f", "40", "5c"):
            example = example.replace(f'"{short}"', f'"{short * 32}"')
        self.assertEqual(documents.encode(documents.parse(example.encode(), "commit")), example.encode())
        text = "".join(map(chr, (*range(0xD800), *range(0xE000, 0xE100), 0xFFFF, 0x10FFFF)))
        data = documents.encode(self.COMMIT | {"metadata": {"": "", text: text}})
        self.assertIn(rb'"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e', data)
        self.assertIn(rb'\u001e\u001f !\"#$%&' + b"'()*+,-./0", data)
        self.assertIn(b'[\\\\]^_', data)
        self.assertIn("~\x7f\x80".encode(), data)
        documents.parse(data, "commit")
        self.changed(None, version=2**53 - 1)
        self.changed(None, "routes")
        self.refused(None, documents.encode({"deltachain": 1, "chain": HEX[:32], "metadata": {}}), "chain")
        room = DOCUMENT_BYTES - len(documents.encode(self.COMMIT | {"metadata": {"a": ""}}))
        self.changed(None, metadata={"a": "x" * room})
        self.changed("R-LIM-05", metadata={"a": "x" * (room + 1)})

    def test_begin(self):
        for text in ("", "{", "{}", ' {"deltachain":0,', '{"deltachain":0', '{"deltachain":0}', '{"deltachain": 1,',
                     '{"deltachain":-1,', '{"deltachain":00,', '{"deltachain":1.0,', '{"deltachain":1e0,',
                     '{"deltachain":9007199254740992,', '{"deltachain":"0",', '{"chain":"","deltachain":0,', "\ufeff{"):
            self.refused("R-DOC-01", text.encode())
        for text in ('{"deltachain":0,', '{"deltachain":2,', '{"deltachain":9007199254740991,\xff'):
            self.refused("R-DOC-02", text.encode("latin-1"))
        self.refused("R-LIM-05", b" " * (DOCUMENT_BYTES + 1))

    def test_the_one_form(self):
        good = documents.encode(self.COMMIT)
        for old, new in ((b'"version":3', b'"version": 3'), (b'"version":3', b'"version":3.0'),
                         (b'"version":3', b'"version":03'), (b'"version":3', b'"version":3e0'),
                         (b'"version":3', b'"version":9007199254740992'), (b'"version":3', b'"version":"3"'),
                         (b'"version":3', b'"version":' + b"9" * 5000), (b'"version":3', b'"version":NaN'),
                         (b'"version":3', b'"version":true'), (b'"version":3', b'"version":null'),
                         (b'"version":3', b'"version":3,"version":3'), (b'"version":3,', b''),
                         (b'"size":7', b'"size":0'), (b'"size":7', b'"size":7,"more":0'), (b'"size":7', b'"size":-0'),
                         (b'"from":2', b'"from":-1'), (HEX.encode(), HEX.upper().encode()), (HEX.encode(), b"0" * 63),
                         (b'"metadata":{"a"', b'"metadata":{"b":"","a"'),
                         (b'"metadata":{"a"', b'"metadata":{"a":"","a"'),
                         (b'{"a":"\xc3\xa9"}', b'{}}'), (b'{"a":"\xc3\xa9"}', b'{} '), (b'{"a":"\xc3\xa9"}', b'null'),
                         (b'{"a":"\xc3\xa9"}', b'{"a":1}'), (b'\xc3\xa9', b'\\u00e9'), (b'\xc3\xa9', b'\xe9'),
                         (b'\xc3\xa9', b'\\ud800'), (b'\xc3\xa9', b'\xed\xa0\x80'), (b'\xc3\xa9', b'\\/'),
                         (b'\xc3\xa9', b'\\u007f'), (b'\xc3\xa9', b'\\u001F'), (b'\xc3\xa9', b'\\u000a'),
                         (b'\xc3\xa9', b'\x1f'), (b'\xc3\xa9', b'\\ud83d\\ude00'), (b'"shards"', b'"Shards"'),
                         (b'"parent"', b'"par\\u0065nt"'), (b'"metadata":', b'"metadata":' + b"[" * 10**5)):
            self.assertIn(old, good)
            self.refused("R-DOC-03", good.replace(old, new, 1))
        for members in ({"shards": []}, {"routes": []}, {"routes": [{"from": None, "files": []}]}, {"parent": None},
                        {"routes": [{"files": [self.FILE], "from": None}]}, {"metadata": {"b": "", "a": ""}},
                        {"shards": {HEX: 0}}, {"extra": 0}):
            self.changed("R-DOC-03", **members)
        self.changed("R-DOC-03", "routes", generation=0)
        self.refused("R-DOC-03", good + b"\n")
        self.refused("R-DOC-03", good, "routes")
        self.refused("R-DOC-03", documents.encode({"deltachain": 1, "chain": HEX, "metadata": {}}), "chain")
        # U+FF5E before U+10000: in the order of bytes, not of UTF-16 code units.
        self.changed(None, metadata={"～": "", "\U00010000": ""})

    def test_routes(self):
        def routes(*starts):
            return [{"from": start, "files": [self.FILE]} for start in starts]

        for kind in ("commit", "routes"):
            for starts in ([None], [0, 2], [None, 0, 1, 2]):
                self.changed(None, kind, routes=routes(*starts))
            for starts in ([0, None], [None, None], [1, 1], [2, 1], [3], [None, 4]):  # equal ones: the order is strict
                self.changed("R-DOC-04", kind, routes=routes(*starts))
        self.changed("R-DOC-05", routes=[{"from": None, "files": [self.FILE] * 2}])
        self.changed("R-DOC-05", shards=[HEX, HEX])
        self.changed("R-DOC-06", state="0" * 64)
        self.changed(None, state="0" * 64, shards=[HEX] * 2, routes=[{"from": 0, "files": [self.FILE] * 2}])


    def test_routes_from_the_same_version(self):
        def route(*files):
            return {"from": 1, "files": [{"digest": digest * 64, "size": size} for digest, size in files]}

        big, good = 2**53 - 1, [route(("b", 7)), route(("c", 7)), route(("a", 8))]
        self.changed(None, routes=good)
        for i, j in ((0, 1), (1, 2), (0, 2)):
            self.changed("R-DOC-04", routes=[good[j], good[i]])
        self.changed("R-DOC-04", routes=[good[0], good[0]])
        self.changed(None, "routes", routes=[route(("a", 1), ("c", 1)), route(("b", 1), ("a", 1))])
        # Sums are exact: 2^64 + 1 is more than 2.
        self.changed(None, "routes", routes=[route(("b", 2)), route(*[("a", big)] * 2048, ("a", 2049))])
        self.changed("R-DOC-04", "routes", routes=[route(*[("a", big)] * 2048, ("a", 2049)), route(("b", 2))])

    def test_metadata(self):
        for kind in ("commit", "routes"):
            for key in ("deltachain!", "deltachain!x"):
                self.changed("R-DOC-07", kind, metadata={key: ""})
            for key in ("deltachain.x", "deltachain", "Deltachain!x", " deltachain!"):
                self.changed(None, kind, metadata={key: ""})
        chain = {"deltachain": 1, "chain": HEX[:32], "metadata": {"deltachain!a": ""}}
        self.refused("R-DOC-07", documents.encode(chain), "chain")
        self.changed("R-DOC-06", state="0" * 64, metadata={"deltachain!x": ""})

    def test_assets(self):
        def assets(*names, size=5):
            return [{"name": name, "digest": HEX, "size": size} for name in names]

        self.changed(None, assets=assets("A.json", "a", "config.json", "x.safetensor", "xcon", "É.txt", "é.txt"))
        many = [f"{i:05}" for i in range(ASSETS + 1)]
        self.changed(None, assets=assets(*many[1:], size=ASSET_BYTES))
        self.changed(None, assets=assets("a", size=0))
        self.changed("R-LIM-07", assets=assets(*many))
        self.changed("R-LIM-07", assets=assets("a", size=ASSET_BYTES + 1))
        self.changed("R-DOC-08", assets=assets(".", *many))
        self.changed("R-DOC-03", assets=assets("a", size=2**53))
        self.changed("R-DOC-03", assets=[{"digest": HEX, "name": "a", "size": 1}])
        for names in (["b", "a"], ["a", "a"], ["A", "a"], [""], [".a"], ["a."], ["a "], ["a/"], ["a\\b"], ["a:b"],
                      ["a\x7f"], ["a\x85"], ["nul"], ["Con.txt"], ["com1 .x"], ["lpt²"], ["conin$"], ["x.safetensors"],
                      ["X.SafeTensors"], ["m.safetensors.INDEX.json"], ["deltachain.x"], ["DELTACHAIN."], ["é" * 128]):
            self.changed("R-DOC-08", assets=assets(*names))
        self.changed("R-DOC-07", assets=assets("b", "a"), metadata={"deltachain!": ""})

    def test_assets_in_folders(self):
        def assets(*names):
            return [{"name": name, "digest": HEX, "size": 1} for name in names]

        deep = "/".join("abcdefgh")
        long = "/".join(["a" * 255] * 3 + ["a" * 127, "a" * 128])  # 1024 bytes
        for names in ([deep], ["a/b", "a/c"], ["a", "a-b/c", "aa/b"], ["unet/config.json"], ["a/deltachain.x"], [long]):
            self.changed(None, assets=assets(*names))
        for names in (["i/" + deep], ["/a"], ["a//b"], ["a/../b"], ["a/.b"], ["a/con/b"], ["a /b"], ["a./b"],
                      ["x.safetensors/b"], ["X.safetensors.index.JSON/b"], ["a/b.safetensors"], ["a", "a/b"],
                      ["A/c", "a/c"], ["A/c", "a"], ["a/B", "a/b/c"], [long + "a"]):
            self.changed("R-DOC-08", assets=assets(*names))

    def test_direct(self):
        routes = [{"from": start, "files": [self.FILE]} for start in (None, 0, 1, 2)]
        for mark, numbers in (("", []), ("1", [1]), ("0 2", [2]), ("1 2 3", [1, 2, 3]), ("2 1", []), ("1 1", []),
                              ("01", []), ("4", []), ("1,2", []), ("1  2", []), (" 1", []), ("1 ", []), ("+1", []),
                              ("\u0661", []), ("1" * 5000, [])):
            self.assertEqual(documents.direct({"routes": routes, "metadata": {documents.DIRECT: mark}}), {0, *numbers})
        self.assertEqual(documents.direct({"routes": routes, "metadata": {}}), {0})


class ZAll(unittest.TestCase):
    def test_every_rule_was_seen(self):
        of_documents = {rule for rule in CHAIN_RULES if rule.startswith(("R-DOC", "R-LIM"))}
        self.assertEqual(of_documents - SEEN, set())


if __name__ == "__main__":
    unittest.main()
