# SPDX-License-Identifier: Apache-2.0
"""The header's words: every exported function says what a caller must know of it.

Which threads may call it; where it returns a status, whether it blocks; where it gives something
out, who owns that. Operations say so once, in "Common rules".
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "libddl" / "include" / "ddl" / "ddl.h").read_text()

THREADS = r"thread-safe|not concurrently|from any thread"
BLOCKS = r"block|wait until"
OWNERS = r"owned|stay valid|static"
RULES = r"common rules"

FUNCTION = re.compile(r"^DDL_API ([^;]*?)(\bddl_\w+)\(([^;]*?)\);", re.MULTILINE)
COMMENTED = re.compile(r"^(/\*(?:(?!\*/).)*\*/)\n((?:DDL_API [^;]*;\n)+)", re.MULTILINE | re.DOTALL)


def words(comment: str) -> str:
    return " ".join(re.sub(r"^\s*/?\*+/?|\*/", " ", comment, flags=re.MULTILINE).split())


def says(pattern: str, comment: str) -> bool:
    return bool(re.search(pattern, comment, re.IGNORECASE))


DECLARED = {name: (result, parameters) for result, name, parameters in FUNCTION.findall(HEADER)}
COMMENTS = {
    name: words(comment)
    for comment, declarations in COMMENTED.findall(HEADER)
    for _, name, _ in FUNCTION.findall(declarations)
}


def section(name: str) -> str:
    """Return the text between this line of dashes and the next one."""
    (text,) = re.findall(rf"/\* -+ {name} \*/\n(.*?)(?=/\* -{{8,}}|/\* ---- )", HEADER, re.DOTALL)
    return str(text)


@pytest.fixture(scope="module")
def common_rules() -> str:
    (rules,) = re.findall(r"^/\* Common rules\..*?\*/\n\n", section("operations"), re.M | re.S)
    return words(rules)


def test_common_rules_say_all(common_rules: str) -> None:
    assert len(DECLARED) > 40
    for pattern in (THREADS, BLOCKS, OWNERS):
        assert says(pattern, common_rules)


@pytest.mark.parametrize("name", DECLARED)
def test_function_says_what_a_caller_must_know(name: str) -> None:
    result, parameters = DECLARED[name]
    assert name in COMMENTS, "no comment in front of it"
    comment = COMMENTS[name]
    for other in re.findall(r"Otherwise as (ddl_\w+)\.", comment):
        comment += COMMENTS[other]
    operation = parameters.endswith("ddl_work **work") and "ddl_comm *comm" in parameters
    if operation:  # in the section of operations, common rules say it; elsewhere, these words do
        assert f"{name}(" in section("operations") or says(RULES, comment)
        return
    assert says(THREADS, comment), "which threads may call it?"
    if "ddl_status" in result:
        assert says(BLOCKS, comment), "does it block, and until when?"
    if re.search(r"\bddl_\w+ \*\*", parameters) or "*" in result:
        assert says(OWNERS, comment), "who owns it?"


def test_reference_has_every_section() -> None:
    page = (ROOT / "docs" / "api" / "c.rst").read_text()
    names = re.findall(r"/\* -{8,} (\w+) \*/", HEADER)
    assert len(names) > 5
    for name in names:
        assert f".. doxygengroup:: {name}\n   :content-only:" in page
