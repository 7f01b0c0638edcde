"""Tests that forbidden uses are found, and circles through reexports."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tasks import directions


class Directions(unittest.TestCase):
    def crate(self, **files):
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(directions, "ROOT", root))
        for name, text in files.items():
            path = root / f"{name.replace('__', '/')}.rs"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return directions.Crate(root)

    def circles(self, member=lambda module: module, **files):
        return [members for members, _ in self.crate(**files).circles(member)]

    def test_circles_are_found_through_what_is_passed_on(self):
        lib = {"lib": "mod a; mod b; mod c; mod d; pub use a::A;"}
        uses = {"a": "use crate::b::B;", "b": "use crate::c::C;", "c": "use crate::A;", "d": "use crate::A;"}
        self.assertEqual(self.circles(**lib, **uses), [("a", "b", "c")])
        uses["b"] = "#[cfg(test)] mod t { use crate::c::C; }"
        self.assertEqual(self.circles(**lib, **uses), [])
        # Folders can have circles that their files do not have.
        files = {"lib": "mod a; mod b;", "a": "mod c; mod d;", "a__d": "", "b": "use crate::a::d;"}
        files["a__c"] = "use crate::b;"
        self.assertEqual(self.circles(**files), [])
        self.assertEqual(self.circles(lambda module: module.partition("::")[0], **files), [("a", "b")])
        # A module that only reexports items of its submodule forms no circle with it; a module that uses them does.
        self.assertEqual(self.circles(lib="mod a; pub use a::A; pub struct B;", a="use crate::B;"), [])
        self.assertEqual(self.circles(lib="mod a; use a::A; pub struct B;", a="use crate::B;"), [("", "a")])

    def test_a_path_leads_to_the_module_that_has_the_item(self):
        lib = "mod a; mod b; pub use b::c::{D as E, f};"
        crate = self.crate(lib=lib, a="", b="pub mod c; pub use self::c::D; pub use c::*;", b__c="")
        for path in "crate::E", "super::f", "crate::b::D::new", "crate::b::c::x", "crate::b::G":
            self.assertEqual(crate.definer("a", path), "b::c", path)
        self.assertEqual((crate.definer("a", "crate::H"), crate.definer("a", "std::fs")), ("", None))

    def test_a_use_against_the_directions_is_named_with_its_line(self):
        def flaws(text):
            crate = self.crate(lib="mod a; mod b;", a="mod x;", a__x=text, b="")
            with mock.patch.dict(directions.LAYERS, {"a": "a b::C"}):
                return [flaw.removeprefix("a/x.rs:") for flaw in directions.flaws_of_layers(crate)]

        self.assertEqual(flaws('use crate::b::C;\nuse std::fmt; // crate::b::X\nconst A: &str = "std::fs";'), [])
        wanted = ["1: `a` must not use `b::D`", "4: `a` must not use `std::fs::File`"]
        self.assertEqual(flaws("use crate::b::{\nC,\nD};\nuse std::{fmt, fs::File};"), wanted)
        self.assertEqual(len(flaws("use crate::b::Cd;\nuse super::super::b;")), 2)
        self.assertEqual(flaws("#[cfg(test)]\nmod tests { use std::fs; }\nfn f() { crate::b::g() }"),
                         ["3: `a` must not use `b::g`"])


if __name__ == "__main__":
    unittest.main()
