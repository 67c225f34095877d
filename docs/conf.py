"""The configuration of the documentation's site. `make docs` builds it with Sphinx, and every warning is an error."""

from __future__ import annotations

import html
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

DOCS = Path(__file__).parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: The folder of mermaid.min.js, which `make docs` gets from npm. Without it, the site shows the text of diagrams.
MERMAID = DOCS.parent / "build" / "mermaid"

SOURCE = str(PROJECT["urls"]["Source"])

project = "pytest-agentbench"
author = "the authors of pytest-agentbench"
version = release = str(PROJECT["version"])

extensions = ["myst_parser"]
exclude_patterns = ["examples", "_*"]
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]

html_theme = "furo"
html_title = f"pytest-agentbench {release}"
templates_path = ["_templates"]
html_static_path = ["_static", *([str(MERMAID)] if MERMAID.exists() else [])]
html_css_files = ["site.css"]
html_js_files = ["versions.js"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"source_view_link": f"{SOURCE}/blob/main/docs/{{filename}}"}
html_sidebars = {
    "**": [
        "sidebar/scroll-start.html",
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}


class Mermaid(Directive):  # type: ignore[misc]  # docutils has no types
    """A diagram in the language of Mermaid. GitHub draws it from the same block."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        text = html.escape("\n".join(self.content), quote=False)
        return [nodes.raw("", f'<pre class="mermaid">{text}</pre>', format="html")]


def source_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lets links to files outside docs/ lead to the repository."""
    folder = posixpath.dirname(f"docs/{docname}")

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        outside = not target.startswith("docs/") or not target.partition("#")[0].endswith((".md", ".png", ".svg"))
        return f"]({SOURCE}/blob/main/{target})" if outside else match[0]

    source[0] = re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", link, source[0])


def draw_diagrams(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Loads Mermaid on pages with a diagram only, because it has 3 MB."""
    if MERMAID.exists() and 'class="mermaid"' in context.get("body", ""):
        app.add_js_file("mermaid.min.js")


def setup(app: Sphinx) -> None:
    app.add_directive("mermaid", Mermaid)
    app.connect("source-read", source_links)
    app.connect("html-page-context", draw_diagrams)
