"""Checks the built site: `python check.py FOLDER`.

Every link within the site leads to a file, and to an existing anchor; every rule of the conformance kit has its anchor;
a page loads nothing from other hosts; the search has an excerpt for every page, also in a browser that opens the site
from a disk. `DELTACHAIN_BROWSER` names a Chromium; without one, a browser is not asked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

from hooks import rules

# Rustdoc makes this folder, and checks its own links.
OTHERS = "rust"
BROWSER = Path(os.environ.get("DELTACHAIN_BROWSER", "/usr/bin/chromium"))
HEADLESS = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom"]
# A word in the text of pages, and the title of a section.
SEARCHED = ["bandwidth", "Where ours is behind"]
# Attributes with addresses that a browser fetches to show a page.
FETCHED = {("script", "src"), ("img", "src"), ("source", "srcset"), ("iframe", "src"), ("link", "href")}


class Page(HTMLParser):
    """The anchors of a page, and what it links to and fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif (tag, name) in FETCHED:
                self.fetched.add(value or "")
            elif name in ("href", "src"):
                self.links.add(value or "")


def flaws(site: Path) -> list[str]:
    """Returns what is wrong, one line for each finding."""
    own = [path for path in site.rglob("*.html") if path.relative_to(site).parts[0] != OTHERS]
    pages = {path: Page(path.read_text()) for path in own}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in page.links | page.fetched:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                if link in page.fetched and url.scheme != "data":
                    found.append(f"{name} fetches {link}")
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file():
                found.append(f"{name}: no file {link}")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
                found.append(f"{name}: no anchor {link}")
    for style in site.glob("_static/**/*.css"):
        urls = re.findall(r"url\(['\"]?(https?:[^)'\"]*)", style.read_text())
        found += [f"{style.name} fetches {url}" for url in urls]
    for rule, page in rules().items():
        if rule not in pages[site / f"{page}.html"].anchors:
            found.append(f"{page}.html: no anchor of {rule}")
    return found


def search_flaws(site: Path) -> list[str]:
    """Returns the pages that the search finds, but has no text of, one line for each."""
    index = (site / "searchindex.js").read_text()
    pages = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]
    script = (site / "search-texts.js").read_text()
    texts = json.loads(script.removeprefix("setSearchTexts(").removesuffix(");\n"))
    found = [f"{page}.html: no text for the search" for page in pages if not re.search(r">\s*\w", texts.get(page, ""))]
    if "_static/search-from-disk.js" not in (site / "search.html").read_text():
        found.append("search.html does not load search-from-disk.js")
    return found


def browser_flaws(site: Path) -> list[str]:
    """Returns the searches that show a result without an excerpt in a browser, one line for each."""
    found = []
    for words in SEARCHED:
        address = f"{(site / 'search.html').as_uri()}?{urlencode({'q': words})}"
        asked = subprocess.run([BROWSER, *HEADLESS, address], capture_output=True, text=True, timeout=120, check=True)
        results = re.findall(r'<li class="kind-(?:text|title)">.*?</li>', asked.stdout, re.DOTALL)
        without = [result for result in results if 'class="context"' not in result]
        if not results or without:
            found.append(f"search for {words}: {len(without)} of {len(results)} results have no excerpt")
    return found


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    found = flaws(site) + search_flaws(site)
    done = "all links lead somewhere, all rules have anchors, and all pages have excerpts"
    if BROWSER.exists():
        found += browser_flaws(site)
    else:
        done += f" (not tried in a browser: no {BROWSER})"
    print("\n".join(sorted(found)) or done)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
