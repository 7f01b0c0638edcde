"""The layout that a link may carry (section 12), and when it is checked (section 10)."""
import json
import unittest

from deltachain_py import layout, writer
from tests.helper import dcf, one_tensor, remake, rule_of

U8 = one_tensor()["t"]


def text(*files):
    files = [{"name": name, "metadata": metadata, "tensors": tensors} for name, metadata, tensors in files]
    return json.dumps({"files": files}, ensure_ascii=False, separators=(",", ":"))


def two(one, other="~.safetensors"):
    return text((one, None, ["x"]), (other, None, ["y", "z"]))


class Layout(unittest.TestCase):
    def says(self, expected, *texts):
        for one in texts:
            self.assertEqual(rule_of(layout.parse, one, {"x": 0, "y": 0, "z": 0}), expected, one[:200])

    def test_the_one_form(self):
        one = text(("a.safetensors", {"k": "é\n", "l": ""}, None))
        self.says(None, one, text((None, None, None)), text((None, {}, None)), two("a.safetensors"),
                  text(("a.safetensors", None, []), ("b.safetensors", {}, ["x", "y", "z"])))
        self.says("R-LAY-01", "", "[]", "{}", '{"files":[]}', '{"files":{}}', "[" * 10**5, one + " ", " " + one,
                  "\ufeff" + one, one.replace(":", ": ", 1), one.replace("é", "\\u00e9"), one.replace("é", "\\ud800"),
                  one.replace('"name":"a.safetensors",', ""), one.replace('"metadata":', '"Metadata":'),
                  one.replace(',"tensors":null', ""), one.replace("{\"name", '{"more":0,"name'),
                  one.replace('"k":"é\\n","l":""', '"l":"","k":""'), one.replace('"k":"é\\n"', '"k":1'),
                  text(("a.safetensors", None, ["x", "y", "z"])), text((None, None, ["x", "y", "z"])),
                  text((None, None, ["x"]), ("b.safetensors", None, ["y", "z"])), text(("a.safetensors", None, None), (
                      "b.safetensors", None, ["x", "y", "z"])),
                  text(("b.safetensors", None, ["x"]), ("a.safetensors", None, ["y", "z"])),
                  text(("a.safetensors", None, ["x"]), ("b.safetensors", None, ["z", "y"])),
                  text(("a.safetensors", None, ["x", "x"]), ("b.safetensors", None, ["y", "z"])),
                  text(("a.safetensors", None, ["x", "y"]), ("b.safetensors", None, ["y", "z"])),
                  text(("a.safetensors", None, ["x"]), ("b.safetensors", None, ["y"])),
                  text(("a.safetensors", None, ["w", "x"]), ("b.safetensors", None, ["y", "z"])))

    def test_names(self):
        for name in ("a", "é", "com", "com10", "COM٣", "conin", "con x", "a" * 243, "lpt", "\u212a"):
            name += ".safetensors"
            self.says(None, two(name, "\U0010ffff.safetensors"), text((name, None, None)))
        self.says(None, two("k.safetensors", "\u212a.safetensors"), two("s.safetensors", "ſ.safetensors"),
                  two("É.safetensors", "é.safetensors"))
        self.says("R-LAY-01", two("A.safetensors", "a.safetensors"))
        for name in ("", ".safetensors", "a.SAFETENSORS", "a", "a.safetensors ", "x/a.safetensors", "x\\a.safetensors",
                     "x:a.safetensors", "\x1f.safetensors", "\x7f.safetensors", "\x85.safetensors",
                     "a" * 244 + ".safetensors", "é" * 122 + ".safetensors", "con.safetensors", "Aux.x.safetensors",
                     "NUL  .safetensors",
                     "CONOUT$.safetensors", "com0.safetensors", "lpt¹.safetensors", "COM³ .safetensors"):
            self.says("R-LAY-01", two(name), text((name, None, None)))

    def test_folders(self):
        names = {"v/x": 0, "v/y": 0, "w/x": 0}
        good = text(("v/a.safetensors", None, ["v/x", "v/y"]), ("w/a.safetensors", None, ["w/x"]))
        layout.parse(good, names)
        layout.parse(text(("v/a.safetensors", None, None)), {"v/": 0, "v/x": 0})
        for one in (good.replace("w/a", "W/a"), good.replace("w/", "V/"), good.replace("w/a", "w/b/a"),
                    good.replace("w/a", "con/a"), text(("v/a.safetensors", None, None))):
            self.assertEqual(rule_of(layout.parse, one, names), "R-LAY-01", one)

    def test_order(self):
        base, target = {"t": U8}, {"t": U8, "u": U8}
        good = writer.diff(base, target)
        bad = writer.diff(base, target, metadata={layout.KEY: "{}"})
        back = writer.diff(target, base)

        def wrong_segment(bodies):
            bodies[0] = b"x"

        def promised(index):
            index.tensors[0].digests = [bytes(32)]

        other = target | {"u": one_tensor(values=b"x" * 8)["t"]}
        segment = remake(writer.diff(base, other, metadata={layout.KEY: "{}"}), change_segments=wrong_segment)
        self.assertIsNone(rule_of(dcf.check_link, bad))
        for files, start, expected in (([bad], base, "R-LAY-01"), ([bad], {}, "R-APP-01"),
                                       ([segment], base, "R-LAY-01"), ([remake(bad, promised)], base, "R-APP-05"),
                                       ([bad, back], base, "R-LAY-01"),
                                       ([good, back, bad], base, "R-LAY-01"), ([bad, good], base, "R-APP-06"),
                                       ([bad, back[:-1]], base, "R-HDR-09"), ([good, good], {}, "R-APP-06"),
                                       ([good, back], {}, "R-APP-01"), ([good, back], base, None)):
            self.assertEqual(rule_of(dcf.apply_chain, files, start), expected)


if __name__ == "__main__":
    unittest.main()
