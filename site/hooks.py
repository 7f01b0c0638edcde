"""Additions of the site to the pages: the contents, an anchor for each rule of the specification and links to these
anchors, the references of Python, Rust and JavaScript, the texts for excerpts of search results, and the files that
pages link to.
"""

from __future__ import annotations

import html
import importlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.ext.autodoc.mock import ismock, mock
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.inspect import signature, stringify_signature

ROOT = Path(__file__).resolve().parent.parent
# Matches a link text that is the file of a page.
FILE = re.compile(r"[\w./-]+\.md")
RULE = re.compile(r"\bR-[A-Z]{3}-\d{2}\b")
# The texts that define rules, by the section of each; all other rules are in SPEC.md.
ADDITIONS = {
    "20": "spec/publishing",
    "21": "spec/publishing",
    "23": "spec/signatures",
    "24": "spec/in-place",
    "25": "spec/layouts",
}
# Modules that define exported names of the Python package, by purpose.
PYTHON = {
    "Links": ["_files", "_tensors"],
    "Publish": ["_publisher", "_like"],
    "Follow": ["_subscriber", "_fleet", "_host_copy", "_parts", "_ranks", "_store"],
    "Read and maintain a chain": ["_chain"],
    "Keys": ["_keys"],
    "Errors": ["_errors"],
}
# The package's other public modules.
PYTHON_PARTS = {"Classes of results": "reports", "Kinds of broken links": "errors", "Adapters of engines": "adapters"}
# Modules that users import by name. verl's base class, which is not installed here, hides the members of the verl
# module.
PYTHON_MODULES = ["transformers", "trl", "vllm"]
# Words by which the search finds a page, beside those that stand there.
KEYWORDS = tomllib.loads((ROOT / "site/keywords.toml").read_text())
# Nodes of a page whose text does not become a link.
NOT_TEXT = (nodes.reference, nodes.literal, nodes.literal_block, nodes.raw, addnodes.pending_xref)


def setup(app: Sphinx) -> dict[str, bool]:
    # Folders made by other programs: the documentation of the crates, and declarations of types.
    app.add_config_value("rustdoc", "", "env", str)
    app.add_config_value("javascript_types", "", "env", str)
    app.connect("source-read", add_text)
    # Before napoleon, which parses the sections of docstrings.
    app.connect("autodoc-process-docstring", mark_code, priority=100)
    app.connect("autodoc-process-signature", own_signature)
    app.add_transform(JoinParts)
    app.add_transform(LinkFiles)
    app.add_transform(NameRules)
    app.add_post_transform(LinkRules)
    app.add_post_transform(NamePages)
    app.connect("html-page-context", keep_text)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": False}


def rules() -> dict[str, str]:
    """Returns the page of each rule."""
    found = json.loads((ROOT / "conformance/rules.json").read_text())
    return {rule["id"]: ADDITIONS.get(rule["section"].split(".")[0], "SPEC") for rule in found}


def add_text(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds the parts that pages cannot contain themselves."""
    if words := KEYWORDS.get(page):
        source[0] = f"---\nmyst:\n  html_meta:\n    keywords: {words}\n---\n{source[0]}"
    if page == app.config.root_doc:
        source[0] += "\n".join(contents(app.env.found_docs))
    elif page == "site/python":
        source[0] += "\n".join(python_names(app.config.autodoc_mock_imports))
    elif page == "site/rust":
        source[0] += "\n".join(crates(app.config.rustdoc))
    elif page == "site/javascript":
        source[0] += "\n".join(types(app.config.javascript_types))


def contents(pages: set[str]) -> Iterator[str]:
    """Yields the contents. Their last part has all pages that the contents do not name."""
    text = (ROOT / "site/contents.inc").read_text()
    named = set(re.findall(r"<(.*)>$", text, re.MULTILINE))
    yield text
    yield from sorted(pages - named - {"README"})
    yield "```"


def python_names(mocked: list[str]) -> Iterator[str]:
    """Yields the exported names of the Python package, by purpose."""
    with mock(mocked):
        package = importlib.import_module("deltachain")
    # The native module is not installed; its names are documented by its stub.
    declared = {"__name__": "deltachain._native"}
    exec("from __future__ import annotations\n" + (ROOT / "python/deltachain/_native.pyi").read_text(), declared)
    parts = {title: importlib.import_module(f"deltachain.{module}") for title, module in PYTHON_PARTS.items()}
    for module in parts.values():
        native = [name for name in module.__all__ if ismock(getattr(module, name))]
        vars(module).update({name: declared[name] for name in native})
    names = [name for name in [*package.__all__, "open", "TimeoutError"] if name != "__version__"]
    for title, modules in PYTHON.items():
        yield f"## {title}\n\n```{{eval-rst}}"
        for name in [name for name in names if getattr(package, name).__module__.split(".")[1] in modules]:
            names.remove(name)
            yield from documented(package, name)
        yield "```\n"
    if names:
        raise ExtensionError(f"the Python reference has no place for {names}")
    for title, module in parts.items():
        yield f"## {title}\n\n```{{eval-rst}}"
        for name in module.__all__:
            yield from documented(module, name)
        yield "```\n"
    yield "## Trainers and servers\n\n```{eval-rst}"
    for module in PYTHON_MODULES:
        yield f".. automodule:: deltachain_integrations.{module}\n   :members:"
    yield "```"


def documented(module: ModuleType, name: str) -> Iterator[str]:
    """Yields the directive for a class or a function of a module."""
    is_class = isinstance(getattr(module, name), type)
    yield f".. auto{'class' if is_class else 'function'}:: {module.__name__}.{name}"
    yield "   :members:\n   :inherited-members: Exception\n" if is_class else ""


def own_signature(
    _app: Sphinx, _what: str, _name: str, thing: object, _options: object, *shown: str
) -> tuple[str, None] | None:
    """Returns the arguments of a class's own `__init__` if its base is not installed."""
    own = vars(thing).get("__init__") if isinstance(thing, type) else None
    if own is None or shown[0] != "(*args: Any, **kwargs: Any)":
        return None
    return stringify_signature(signature(own, bound_method=True)), None


def mark_code(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Marks code in docstrings, which are Markdown: there, indentation after an empty line means code."""
    for number in range(len(lines) - 1, 0, -1):
        if lines[number].strip() and not lines[number - 1].strip():
            before = next((line for line in reversed(lines[: number - 1]) if line.strip()), "")
            indent = len(before) - len(before.lstrip())
            if before and len(lines[number]) - len(lines[number].lstrip()) >= indent + 4:
                lines[number:number] = [" " * indent + "::", ""]


def crates(rustdoc: str) -> Iterator[str]:
    """Yields the rows of a table of the crates for users."""
    for manifest in [ROOT / "Cargo.toml", *sorted(ROOT.glob("crates/*/Cargo.toml"))]:
        package = tomllib.loads(manifest.read_text())["package"]
        if package.get("publish", True):
            name, page = package["name"], package["name"].replace("-", "_")
            link = f'<a href="../rust/{page}/index.html">{name}</a>' if rustdoc else name
            yield f"| {link} | {package['description']} |"


def types(folder: str) -> Iterator[str]:
    """Yields the declarations of the public interface, and of the modules whose names and types it exports."""
    if folder:
        interface = (Path(folder) / "index.d.ts").read_text()
        for module in ["index", "node", *dict.fromkeys(re.findall(r'"\./([\w-]+)\.js"', interface))]:
            yield f"## {module}.js\n\n```ts\n{(Path(folder) / module).with_suffix('.d.ts').read_text().strip()}\n```\n"


class JoinParts(SphinxTransform):
    """Gives a page one title, with its parts below that."""

    default_priority = 100

    def apply(self) -> None:
        first, *others = [node for node in self.document if isinstance(node, nodes.section)] or [None]
        for part in others:
            self.document.remove(part)
            first.append(part)


class LinkFiles(SphinxTransform):
    """Lets links to files that are not pages lead to copies of them, in the same place."""

    default_priority = 800

    def apply(self) -> None:
        for node in list(self.document.findall(addnodes.download_reference)):
            link = nodes.reference("", "", *node.children, refuri=node["reftarget"], internal=True)
            node.replace_self(link)
            file = (ROOT / self.env.docname).parent / node["reftarget"]
            self.env.linked_files = getattr(self.env, "linked_files", set()) | {file.resolve().relative_to(ROOT)}


class NameRules(SphinxTransform):
    """Makes a rule's id an anchor where a text defines the rule: **R-IDX-07** (MALFORMED)."""

    default_priority = 800

    def apply(self) -> None:
        if self.env.docname not in ("SPEC", *ADDITIONS.values()):
            return
        for node in self.document.findall(nodes.strong):
            after = "".join(sibling.astext() for sibling in node.parent[node.parent.index(node) + 1 :])
            if RULE.fullmatch(node.astext()) and re.match(r"\s\([A-Za-z_]+\)", after):
                node["ids"].append(node.astext())


class NamePages(SphinxPostTransform):
    """Replaces link texts that are names of files, which a site does not have, by the titles of the pages."""

    default_priority = 800

    def run(self, **_: object) -> None:
        listed = re.findall(r"^(.+) <(.+)>$", (ROOT / "site/contents.inc").read_text(), re.MULTILINE)
        named = {page: name for name, page in listed}
        for page in self.env.found_docs - {self.env.docname}:
            name = named.get(page) or self.env.titles[page].astext()
            uri = self.app.builder.get_relative_uri(self.env.docname, page)
            for link in self.document.findall(nodes.reference):
                if FILE.fullmatch(link.astext()) and link.get("refuri", "").split("#")[0] == uri:
                    link.children = []
                    link += nodes.inline("", name)


class LinkRules(SphinxPostTransform):
    """Makes the id of a rule a link to its anchor, outside of the definition."""

    default_priority = 800

    def run(self, **_: object) -> None:
        pages = rules()
        for text in list(self.document.findall(nodes.Text)):
            if RULE.search(text) and not any(isinstance(node, NOT_TEXT) or node.get("ids") for node in above(text)):
                text.parent.replace(text, list(self.linked(str(text), pages)))

    def linked(self, text: str, pages: dict[str, str]) -> Iterator[nodes.Node]:
        end = 0
        for match in RULE.finditer(text):
            if page := pages.get(match[0]):
                yield nodes.Text(text[end : match.start()])
                uri = f"{self.app.builder.get_relative_uri(self.env.docname, page)}#{match[0]}"
                yield nodes.reference("", match[0], refuri=uri, internal=True, classes=["rule"])
                end = match.end()
        yield nodes.Text(text[end:])


def above(node: nodes.Node) -> Iterator[nodes.Element]:
    """Yields the parents of a node, up to its section."""
    while (node := node.parent) is not None and not isinstance(node, nodes.section):
        yield node


def keep_text(app: Sphinx, page: str, _template: str, _context: object, doctree: nodes.document | None) -> None:
    """Keeps the text of a page, by sections, for `search-texts.js`."""
    if page == "search":
        app.add_js_file("search-from-disk.js")
    if doctree is not None:
        text = "".join(map(section_text, doctree.findall(nodes.section)))
        app.env.search_texts = getattr(app.env, "search_texts", {}) | {page: text}


def section_text(section: nodes.section) -> str:
    """Returns the text of a section, without the sections in it, as Sphinx's search reads it from a page."""
    others = (nodes.section, nodes.raw, nodes.comment, addnodes.toctree)
    own = " ".join(node.astext() for node in section if not isinstance(node, others))
    text = " ".join(own.split())
    return f'<section id="{html.escape(section["ids"][0])}">{html.escape(text)} </section>'


def write_texts(app: Sphinx) -> None:
    """Writes the texts of all pages as a script, which browsers load from a disk, too."""
    texts = {page: f'<div role="main">{text}</div>' for page, text in sorted(app.env.search_texts.items())}
    (app.outdir / "search-texts.js").write_text(f"setSearchTexts({json.dumps(texts)});\n")


def finish(app: Sphinx, error: Exception | None) -> None:
    """Writes the texts for the search, and copies the files that pages link to and the documentation of the crates."""
    if error is None:
        write_texts(app)
        if app.config.rustdoc:
            # Links of the previous build cannot be created again.
            shutil.rmtree(app.outdir / "rust", ignore_errors=True)
            shutil.copytree(app.config.rustdoc, app.outdir / "rust", copy_function=os.link)
        for file in app.env.linked_files:
            (app.outdir / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, app.outdir / file)
            if file.suffix == ".html":
                link_pages(app.outdir / file)


def link_pages(copy: Path) -> None:
    """Lets links of a copied HTML file to Markdown files lead to pages of the site."""
    copy.write_text(re.sub(r'(<a [^>]*href="[^":]+)\.md(?=[#"])', r"\1.html", copy.read_text()))
