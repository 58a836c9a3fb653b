"""How `make docs` turns the Markdown pages of this folder and the docstrings of the package into HTML."""

import posixpath
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import reference  # noqa: E402

import fcal  # noqa: E402

project, author, copyright = "fcal", "The fcal authors", "The fcal authors"  # noqa: A001
version = release = fcal.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
exclude_patterns = ["_build", "results/*/*.md"]  # the latter are tables that pages quote
html_theme = "alabaster"
html_theme_options = {
    "description": "Error bars that are true",
    "body_max_width": "auto",
    "page_width": "1200px",
    "sidebar_width": "260px",
    "font_family": "sans-serif",
    "font_size": "15px",
}
html_static_path: list[str] = []

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

autodoc_typehints_format = "short"
nitpicky = True  # a reference in a docstring must lead somewhere ...
nitpick_ignore_regex = [("py:class", ".*"), ("py:obj", r".*\.Settings")]  # ... but annotations name classes of torch
napoleon_use_ivar = True  # fields of dataclasses are described in their class
napoleon_use_rtype = False


CODE = r"(?s:```.*?```)|`[^`\n]+`"
LINK = r"(?<!!)\[(?P<text>[^][]+)\]\((?!https?:|#)(?P<target>[^)#\s]+)[^)\s]*\)"


def without_links_to_the_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Show links to what is in the repository but not among the pages as paths: browsers of files follow them."""

    def shown(found: re.Match[str]) -> str:
        if not found["target"]:
            return found[0]  # code
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), found["target"]))
        is_page = path.removeprefix("docs/").removesuffix(".md") in app.env.found_docs
        is_file = path.startswith("docs/") and not path.endswith(".md") and (HERE.parent / path).is_file()
        return found[0] if is_page or is_file else f"{found['text']} (`{path}`)"

    source[0] = re.sub(f"{CODE}|{LINK}", shown, source[0])
    if page == "api":  # names of rooms lead to their pages, which only the HTML has
        rooms = "|".join(fcal._ROOMS)
        source[0] = re.sub(rf"`fcal\.({rooms})`", r"[`fcal.\1`](api/fcal.\1.rst)", source[0])
    if page == root_doc:  # the navigation follows the index; browsers of files would show the directive as code
        pages = re.findall(r"\]\(([\w/]+)\.md\)", source[0])
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n" + "\n".join([*dict.fromkeys(pages), "api/*"]) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("config-inited", lambda _app, _config: reference.write(HERE / "api"))
    app.connect("source-read", without_links_to_the_repository)
