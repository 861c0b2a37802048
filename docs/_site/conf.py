"""How Sphinx makes the site. `build.py` beside it makes the pages that this reads."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import redouble  # noqa: E402 - from the tree, so that the site shows what is in it

project = "redouble"
release = version = redouble.__version__
html_title = f"redouble {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
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
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
