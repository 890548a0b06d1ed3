# SPDX-License-Identifier: Apache-2.0
"""Installed versions of packages, and the frameworks that a program imports."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from pathlib import Path

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
# Other distributions of the same package.
_DISTRIBUTIONS = {"tensorflow": ("tensorflow-cpu", "tf-nightly", "tensorflow-rocm")}


def find_version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    for name in (package, *_DISTRIBUTIONS.get(package, ())):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def find_frameworks(program: Path) -> list[str]:
    """Return the frameworks that a Python program imports, by itself or through an adapter such as
    `ddl.torch`. Return an empty list if the file cannot be read or is not valid Python."""
    try:
        tree = ast.parse(program.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    words = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = re.sub(r"^ddl_", "ddl.", name).split(".")
            words.update(rest if first == "ddl" else [first])
    return [name for name in FRAMEWORKS if name in words]
