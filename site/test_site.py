"""Tests of the site's checks: they notice each kind of flaw."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from check import flaws
from hooks import rules


class Check(unittest.TestCase):
    def flaws(self, page: str, **styles: str) -> list[str]:
        """Returns the flaws of a site that has the texts and this page."""
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder).resolve()
            for text in set(rules().values()):
                anchors = (f'<b id="{rule}"></b>' for rule, page in rules().items() if page == text)
                (site / text).parent.mkdir(exist_ok=True)
                (site / f"{text}.html").write_text("".join(anchors))
            (site / "page.html").write_text(page)
            (site / "_static").mkdir()
            for name, style in styles.items():
                (site / "_static" / f"{name}.css").write_text(style)
            return flaws(site)

    def test_what_is_good(self) -> None:
        page = '<h1 id="top"></h1><a href="#top"></a><a href="SPEC.html#R-CHN-13"></a><a href="https://example.org"></a>'
        assert self.flaws(page, good="a { background: url(picture.png) }") == []

    def test_links(self) -> None:
        assert self.flaws('<a href="none.html"></a>') == ["page.html: no file none.html"]
        assert self.flaws('<a href="#none"></a>') == ["page.html: no anchor #none"]
        assert self.flaws('<a href="SPEC.html#R-CHN-99"></a>') == ["page.html: no anchor SPEC.html#R-CHN-99"]

    def test_what_is_fetched_from_elsewhere(self) -> None:
        script = '<script src="https://example.org/x.js"></script>'
        assert self.flaws(script) == ["page.html fetches https://example.org/x.js"]
        font = "@font-face { src: url('https://example.org/x.woff') }"
        assert self.flaws("", bad=font) == ["bad.css fetches https://example.org/x.woff"]

    def test_a_rule_without_anchor(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for text in set(rules().values()):
                (Path(folder) / text).parent.mkdir(exist_ok=True)
                (Path(folder) / f"{text}.html").write_text("")
            assert len(flaws(Path(folder))) == len(rules())
