# SPDX-License-Identifier: Apache-2.0
"""Write the page of the environment variables from the table in ddl_core/joining/variables.py."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write(folder: Path) -> None:
    """Write FOLDER/environment.md."""
    groups = runpy.run_path(str(ROOT / "ddl_core" / "joining" / "variables.py"))["GROUPS"]
    out = ["# Environment variables", ""]
    out += [
        "A variable that is set to nothing counts as not set, except `DDL_SECRET`: no secret.",
        "",
    ]
    out += ["`ddl_core.init` warns once of a variable that resembles one of these and is none.", ""]
    for title, variables in groups.items():
        out += [f"## {title}", "", "| variable | effect |", "|---|---|"]
        out += [f"| `{name}` | {effect} |" for name, effect in variables.items()]
        out += [""]
    text = "\n".join(out)
    path = folder / "environment.md"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
