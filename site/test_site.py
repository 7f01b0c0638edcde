"""Tests of the site's checks: they notice each kind of flaw."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from check import flaws, search_flaws
from hooks import link_pages, rules


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

    def test_a_page_without_text_for_the_search(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder)
            (site / "searchindex.js").write_text('Search.setIndex({"docnames":["docs/a","docs/b","c"]})')
            texts = {"docs/a": '<section id="a">Text</section>', "c": '<section id="c"> </section>'}
            (site / "search-texts.js").write_text(f"setSearchTexts({json.dumps(texts)});\n")
            (site / "search.html").write_text('<script src="_static/search-from-disk.js?v=1"></script>')
            assert search_flaws(site) == [f"{page}.html: no text for the search" for page in ("docs/b", "c")]
            (site / "search.html").write_text("")
            assert search_flaws(site)[-1] == "search.html does not load search-from-disk.js"


class Copies(unittest.TestCase):
    def test_links_of_a_copied_file_lead_to_pages(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.html"
            copy.write_text('<a class="x" href="../docs/a.md#b">a.md</a> <a href="https://example.org/a.md"></a> c.md"')
            link_pages(copy)
            assert copy.read_text() == (
                '<a class="x" href="../docs/a.html#b">a.md</a> <a href="https://example.org/a.md"></a> c.md"'
            )
