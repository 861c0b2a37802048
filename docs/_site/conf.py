"""How Sphinx makes the site. `build.py` beside it makes the pages that this reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.search.en import SearchEnglish

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import redouble  # noqa: E402 - from the tree, so that the site shows what is in it

project = "redouble"
release = version = redouble.__version__
html_title = f"redouble {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
# Headings are linked to by the names that code hosts give them.
myst_heading_anchors = 4
# A name in single backticks is a link where there is something of that name, and code where not.
default_role = "py:obj"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_favicon = "static/favicon.svg"
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# Every colour has a contrast of at least 4.5 to 1; a test computes it.
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {
    "light_css_variables": {"color-foreground-muted": "#5c6066", "color-foreground-border": "#6b7078"},
    "dark_css_variables": {"color-foreground-muted": "#a3a9b0", "color-foreground-border": "#8b9198"},
}


class NumberSearch(SearchEnglish):
    """Find numbers too, such as statuses. Sphinx drops words of digits only, so they get two letters."""

    js_splitter_code = r"""
var splitQuery = (query) => query
  .split(/[^\p{Letter}\p{Number}_]+/gu)
  .filter((term) => term)
  .map((term) => (/^\d+$/.test(term) ? "no" + term : term));
"""

    def split(self, input: str) -> list[str]:  # noqa: A002 - the name of the base class
        return [f"no{word}" if word.isdigit() else word for word in super().split(input)]


def mark_short_code(app: Any, doctree: nodes.document, page: str) -> None:
    """Give code of a few words a class, by which the style sheet keeps it on one line."""
    for code in doctree.findall(nodes.literal):
        if len(code.astext()) <= 24:
            code["classes"].append("short")


def setup(app: Any) -> None:
    app.connect("doctree-resolved", mark_short_code)
    app.add_search_language(NumberSearch)
