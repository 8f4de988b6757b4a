"""The documentation site: Sphinx's configuration, for scripts/docs.

Its source is the whole repository, so that README and SECURITY are pages of it, and a relative link leads to the same
file on the site and on the site of a code host. The order of pages is in index.md.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

project = "kernelmcp"
author = "the kernelmcp project"
release = re.findall(r'"(.+)"', (ROOT / "kernelmcp" / "version.py").read_text("utf-8"))[0]

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "examples/*.md"]
exclude_patterns = [".*", "build", "kernels", "kernelmcp", "notebooks", "tests", "dist", "**/node_modules"]
# Anchors as code hosts make them, so that a link with one works on both.
myst_heading_anchors = 4
# A block that names no language is none.
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # a cell of Python may have IPython's `name?`

html_theme = "sphinx_book_theme"
html_title = "kernelmcp"
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_theme_options = {
    "navbar_persistent": [],  # the search field is at the left, above the pages
    "use_download_button": False,
    "use_fullscreen_button": False,
}
