# SPDX-License-Identifier: Apache-2.0
"""Sphinx's configuration for the site. `make docs` runs Doxygen, then Sphinx."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import commands_page  # noqa: E402
import drawings  # noqa: E402
import messages  # noqa: E402
import reference  # noqa: E402
import search_terms  # noqa: E402
import variables_page  # noqa: E402

project = "libddl"
author = "the libddl authors"
numbers = re.findall(
    r"#define DDL_VERSION_\w+ (\d+)", (ROOT / "libddl/include/ddl/ddl.h").read_text()
)
release = version = ".".join(numbers)

extensions = ["breathe", "myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["site"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"libddl {release}"
html_show_copyright = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_logo = html_favicon = "static/logo.svg"
breathe_projects = {"libddl": str(ROOT / "build" / "doxygen" / "xml")}
breathe_default_project = "libddl"
breathe_domain_by_extension = {"h": "c"}
breathe_show_include = False
breathe_show_define_initializer = True
breathe_show_enumvalue_initializer = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
default_role = "py:obj"
suppress_warnings = ["ref.python"]  # ddl_core.Work is also ddl_core.handles.work.Work
highlight_language = "none"  # mostly aligned prose

_log = logging.getLogger(__name__)


def as_written(
    app: Sphinx, what: str, name: str, value: object, options: Any, lines: list[str]
) -> None:
    """Replace autodoc's docstrings by the output of `reference.paragraphs`. A missing docstring is
    an error."""
    if not any(lines) and not name.endswith(".status"):
        _log.warning("%s %s has no docstring", what, name)
    lines[:] = reference.paragraphs("\n".join(lines))


def outside_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Markdown pages link to each other and, with `../`, to the tree. A file of the tree is a
    download on the site; a folder or a page that is not on the site is its name."""

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        path = (folder / target.split("#")[0]).resolve()
        if path == ROOT / "README.md":
            return f"[{words}]({up}index.md)"
        if path == ROOT / "CHANGELOG.md":
            return f"[{words}]({up}api/generated/changelog.md)"
        is_text = path.is_dir() or (path.suffix == ".md" and ROOT / "docs" not in path.parents)
        return f"`{words.strip('`')}`" if is_text else match[0]

    folder, up = (ROOT / "docs" / page).parent, "../" * page.count("/")

    if page == "gallery":
        text = (ROOT / "examples" / "README.md").read_text().replace("# Examples", "# Gallery", 1)
        text = re.sub(r"\]\((?!\.\./|http)", "](../examples/", text)
        source[0] = text.replace("](../docs/", "](")
    if page == "index":
        readme = (ROOT / "README.md").read_text()
        table = readme[readme.index("| you have ") :].partition("\n\n")[0]
        table = re.sub(r"\]\((?!docs/)", "](../", table).replace("](docs/", "](")
        source[0] = source[0].replace("<!-- The README's table of readers stands here. -->", table)
    if page == "troubleshooting":
        source[0] = messages.with_messages(source[0])
    source[0] = search_terms.with_terms(page, source[0])
    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)]+)\)", link, source[0])


def write_pages(app: Sphinx) -> None:
    """Write the pages that come from the sources; they are git-ignored."""
    folder = ROOT / "docs" / "api" / "generated"
    reference.write(folder)
    variables_page.write(folder)
    commands_page.write(folder)
    drawings.write(folder)
    changes = (ROOT / "CHANGELOG.md").read_text()
    (folder / "changelog.md").write_text(changes.replace("](docs/", "](../../"))


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_pages)
    app.connect("source-read", outside_links)
    app.connect("autodoc-process-docstring", as_written)
