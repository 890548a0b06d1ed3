# SPDX-License-Identifier: Apache-2.0
"""Support for imports in the project's folder, where Python finds the sources first, which have no
compiled parts."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from os.path import dirname, exists, join, realpath


def installed_path(package: str, path: list[str]) -> list[str]:
    """Return the `__path__` of a package whose own path is `path`. If that is a folder of sources,
    return the path of the installed package. So Python sources never use the compiled parts of
    another version."""
    folder = realpath(path[0])
    if not exists(join(folder, "csrc")) and not exists(join(dirname(folder), "pyproject.toml")):
        return path  # installed
    others = [entry for entry in sys.path if realpath(entry) != dirname(folder)]
    spec = PathFinder.find_spec(package, others)
    return list(spec.submodule_search_locations or path) if spec else path
