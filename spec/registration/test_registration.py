"""Tests of the registered entries, and of the programs that use them. Run in `conformance/python`, whose writer is
used: `python -m unittest discover -v -s ../../spec/registration`.
"""

import json
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from deltachain_py.model import BY_NAME, Tensor
from deltachain_py.writer import diff

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
CONFORMANCE = REPOSITORY / "conformance"
MAGIC_FILE = HERE / "deltachain.magic"
MAGIC = bytes.fromhex("89 44 43 46 0D 0A 1A 0A")
TYPE = "application/vnd.deltachain.link"
SPEC = (REPOSITORY / "SPEC.md").read_text(encoding="utf-8")


def needs(program):
    return unittest.skipUnless(shutil.which(program), f"SKIPPED: {program} is not installed")


def describe(*options, files):
    """Returns the output of file(1) for each file."""
    names = "".join(f"{file}\n" for file in files)
    command = ["file", "--brief", "--magic-file", MAGIC_FILE, *options, "--files-from", "-"]
    run = subprocess.run(command, input=names, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


class Magic(unittest.TestCase):
    def test_is_that_of_the_specification(self):
        (block,) = re.findall(r"\n```\n(0   string .*?)```\n", SPEC, re.DOTALL)
        lines = MAGIC_FILE.read_text(encoding="utf-8").splitlines()
        own = [line.split() for line in lines if line[:1] in ("0", ">")]
        self.assertEqual(own, [line.split() for line in block.splitlines()])

    @needs("file")
    def test_compiles_without_a_remark(self):
        with tempfile.TemporaryDirectory() as folder:
            command = ["file", "--compile", "--magic-file", MAGIC_FILE]
            run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        self.assertEqual(run.stderr, "")

    @needs("file")
    def test_tells_links_from_other_vectors(self):
        vectors = json.loads((CONFORMANCE / "index.json").read_text(encoding="utf-8"))["vectors"]
        files = [CONFORMANCE / vector["file"] for vector in vectors if vector["kind"] in ("link", "document")]
        links = [file.read_bytes()[:8] == MAGIC for file in files]
        self.assertTrue(any(links) and not all(links))
        for file, is_link, said in zip(files, links, describe(files=files), strict=True):
            self.assertEqual(said.startswith("delta chain link"), is_link, (file, said))

    @needs("file")
    def test_knows_a_new_link(self):
        link = diff({}, {"t": Tensor(BY_NAME["U8"], (2,), b"\1\2")})
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("link", "link of version 2")]
            files[0].write_bytes(link)
            files[1].write_bytes(link[:8] + b"\2" + link[9:])
            self.assertEqual(describe(files=files), ["delta chain link, version 1", "delta chain link, version 2"])
            self.assertEqual(describe("--mime-type", files=files), [TYPE, TYPE])
            self.assertEqual(describe("--extension", files=files), ["dcf", "dcf"])


class Texts(unittest.TestCase):
    def test_media_type_is_that_of_the_specification(self):
        self.assertIn(f"its media type is `{TYPE}`", SPEC)
        text = (HERE / "media-type.txt").read_text(encoding="utf-8")
        self.assertEqual("/".join(re.findall(r"^(?:Type|Subtype) name: (.*)$", text, re.MULTILINE)), TYPE)
        self.assertIn(f"Magic number(s): {MAGIC.hex(' ').upper()},", text)


class SharedMimeInfo(unittest.TestCase):
    @needs("update-mime-database")
    def test_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            database = Path(folder)
            (database / "packages").mkdir()
            shutil.copy(HERE / "deltachain.xml", database / "packages")
            subprocess.run(["update-mime-database", database], check=True, capture_output=True)
            magic = (database / "magic").read_bytes()
            self.assertIn(f"[60:{TYPE}]\n".encode() + b">0=\0\x08" + MAGIC + b"\n", magic)
            self.assertIn(f"40:{TYPE}:*.dcf\n", (database / "globs2").read_text(encoding="utf-8"))
            self.assertTrue((database / f"{TYPE}.xml").is_file())
