"""Sphinx's configuration for the reference pages. `make docs` runs Doxygen, then Sphinx."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]

project = "libddl"
author = "the libddl authors"
numbers = re.findall(
    r"#define DDL_VERSION_\w+ (\d+)", (ROOT / "libddl/include/ddl/ddl.h").read_text()
)
release = version = ".".join(numbers)

extensions = ["breathe", "sphinx.ext.autodoc"]
html_theme = "alabaster"
html_theme_options = {"description": "Collective communication", "page_width": "70em"}
html_show_copyright = False
breathe_projects = {"libddl": str(ROOT / "build" / "doxygen" / "xml")}
breathe_default_project = "libddl"
breathe_domain_by_extension = {"h": "c"}
breathe_show_include = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
default_role = "py:obj"
highlight_language = "none"  # aligned prose, mostly

_log = logging.getLogger(__name__)


def as_written(
    app: Sphinx, what: str, name: str, value: object, options: Any, lines: list[str]
) -> None:
    """Our docstrings are plain text: an aligned or indented paragraph stays as it is. What has no
    docstring is an error."""
    if not any(lines) and not name.endswith(".status"):
        _log.warning("%s %s has no docstring", what, name)
    out: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        if re.search(r"^ |\S {3,}\S", paragraph, re.MULTILINE):
            paragraph = "::\n\n" + re.sub(r"^", "    ", paragraph, flags=re.MULTILINE)
        out += [*paragraph.split("\n"), ""]
    lines[:] = out


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_written)
