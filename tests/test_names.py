# SPDX-License-Identifier: Apache-2.0
"""A class name stands for one thing in all of the packages."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ddl_core", "ddl_launch", "ddl_elastic", "ddl_scheduler")
SHARED = {  # each with the reason why several classes have it
    "World": "environment.World says how a process was started, adapter.World joins that job",
}


def test_class_names_are_unique() -> None:
    found = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path.relative_to(ROOT)))
    several = {name: places for name, places in found.items() if len(places) > 1}
    assert {name for name in several if name not in SHARED} == set(), several
    assert set(SHARED) <= set(several), "SHARED lists names that only one class has"
