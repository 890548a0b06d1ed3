# SPDX-License-Identifier: Apache-2.0
"""Support for programs that run in the project's folder. There, Python finds the packages' sources
first, and these have no compiled parts."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from os.path import dirname, exists, join, realpath


def installed_path(package: str, path: list[str]) -> list[str]:
    """Return the `__path__` for a package that was found at `path`: the installed package's path if
    `path` is a source folder, else `path`. Python sources therefore never use compiled parts of
    another version."""
    folder = realpath(path[0])
    if not exists(join(folder, "csrc")) and not exists(join(dirname(folder), "pyproject.toml")):
        return path  # installed
    others = [entry for entry in sys.path if realpath(entry) != dirname(folder)]
    spec = PathFinder.find_spec(package, others)
    return list(spec.submodule_search_locations or path) if spec else path
