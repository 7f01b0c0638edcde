"""Configuration of Sphinx for the documentation as a site: `./task site`.

The pages are the repository's Markdown files in their places, so their links work in both.
"""

import sys
import tomllib
from pathlib import Path

SITE = Path(__file__).parent
ROOT = SITE.parent
sys.path[:0] = [str(SITE), str(ROOT / "python"), str(ROOT / "integrations")]

project = "deltachain"
release = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
html_title = f"deltachain {release}"
html_logo = html_favicon = "logo.svg"
root_doc = "README"
include_patterns = ["**.md"]
exclude_patterns = ["target", "fuzz/target", "crates/*/README.md", "integrations/upstream/vllm"]
exclude_patterns += ["**/node_modules", "**/.*"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "hooks"]
# Code that is not in the language that its block names; types such as `bytes`, which are attributes of several classes.
suppress_warnings = ["misc.highlighting_failure", "ref.python"]

myst_heading_anchors = 6

# The theme fetches nothing from other hosts, and uses fonts of the reader's system.
html_theme = "furo"
html_static_path = ["style.css", "search-from-disk.js"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_extra_path = ["index.html"]
pygments_style = "friendly"

# The native module is an implementation detail of the package's classes, so its documentation is not needed.
autodoc_mock_imports = ["deltachain._native", "torch", "numpy", "transformers", "trl", "verl", "vllm"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
default_role = "code"
maximum_signature_line_length = 80
