# SPDX-License-Identifier: Apache-2.0
"""Requests to the scheduler are checked in one place, and errors say what to change."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_scheduler.base.requests import JOB, JobSpec, RequestError, spec_read
from ddl_scheduler.base.text import printable, printable_line

pytestmark = pytest.mark.pure

FULL = {
    "command": ["python", "train.py", "--lr", "0.1"],
    "min": 2,
    "max": 8,
    "tier": 1,
    "weight": 2.0,
    "threads": 2,
    "memory": {"fixed": 1000, "gradient": 10},
    "logical": 8,
    "batch": 64,
    "deadline": 2e9,
    "environment": {"SEED": "7"},
    "folder": "/data",
    "name": "digits",
}


def test_a_specification_is_read_and_written() -> None:
    spec = spec_read(FULL)
    assert (spec.least, spec.most, spec.name) == (2, 8, "digits")
    assert spec.fields() == FULL
    assert spec_read({**FULL, "asked": {"min": 1, "max": 2}}) == spec  # like in a store


def test_all_but_the_command_has_a_default() -> None:
    spec = spec_read({"command": ["/bin/../my train.py", "x"]})
    assert spec == JobSpec(("/bin/../my train.py", "x"), name="my-train.py")
    assert spec_read({"command": ["\N{SNOWMAN}"]}).name == "job"
    assert spec_read({"command": ["x"], "min": 2.0}).least == 2  # JSON has one kind of number


@pytest.mark.parametrize(
    ("change", "field", "given_value", "allowed"),
    [
        ({"command": None}, "command", "None", "array 1 to 1024 items"),
        ({"command": []}, "command", "'0 items'", "1 to 1024 items"),
        ({"command": "train.py"}, "command", "'train.py'", "array"),
        ({"command": [""]}, "command[0]", "''", "train.py"),
        ({"command": ["a", 3]}, "command[1]", "3", "string"),
        ({"command": ["a\0"]}, "command[0]", r"'a\x00'", "string"),
        ({"command": ["\ud800"]}, "command[0]", r"'\ud800'", "surrogates"),
        ({"min": -1}, "min", "-1", "from 0 to 4096"),
        ({"min": True}, "min", "True", "integer"),
        ({"min": 1.5}, "min", "1.5", "integer"),
        ({"min": 9}, "min", "9", "at most max=8"),
        ({"max": 0}, "max", "0", "from 1 to 4096"),
        ({"max": 10**400}, "max", "1000", "from 1 to 4096"),
        ({"tier": 10}, "tier", "10", "from 0 to 9"),
        ({"weight": 0}, "weight", "0", "from 0.001 to 1000"),
        ({"memory": {"fixed": 1}}, "gradient", "'missing'", "integer"),
        ({"batch": 63}, "batch", "63", "a multiple of logical=8"),
        ({"deadline": "tomorrow"}, "deadline", "'tomorrow'", "seconds since 1970"),
        ({"deadline": float("nan")}, "deadline", "nan", "number"),
        ({"environment": {"A=B": "1"}}, "a name in environment", "'A=B'", "string"),
        ({"environment": {"A": 1}}, "environment.A", "1", "string"),
        ({"environment": {"DDL_SECRET": "x"}}, "environment.DDL_SECRET", "'set'", "does not set"),
        ({"folder": "data"}, "folder", "'data'", "absolute path"),
        ({"name": "../x"}, "name", "'../x'", "letters, digits"),
        ({"name": "a\n"}, "name", r"'a\n'", "letters, digits"),
        ({"cores": 4}, "cores", "4", "only the fields command, min, max"),
    ],
)
def test_a_wrong_value_is_named(
    change: dict[str, Any], field: str, given_value: str, allowed: str
) -> None:
    with pytest.raises(RequestError) as error:
        spec_read({**FULL, **change})
    assert error.value.field == field
    assert error.value.given.startswith(given_value)
    assert allowed in error.value.allowed
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("wrong", [None, [], "train.py", 3])
def test_what_is_no_specification_is_refused(wrong: object) -> None:
    with pytest.raises(RequestError, match="body is"):
        spec_read(wrong)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = list(JOB["properties"])  # type: ignore[call-overload]


@given(st.dictionaries(st.sampled_from([*FIELDS, "other"]), VALUES), st.booleans())
def test_anything_is_read_or_refused(fields: dict[str, Any], command: bool) -> None:
    try:
        spec = spec_read({**fields, **({"command": ["x"]} if command else {})})
    except RequestError as error:
        assert error.field and error.allowed
    else:
        assert spec_read(spec.fields()) == spec


@given(st.text())
def test_printable_text_obeys_nobody(text: str) -> None:
    shown = printable_line(text)
    assert all(each == " " or each.isprintable() or ord(each) > 0x9F for each in shown)
    assert not set(shown) & set("\x1b\x07\r\n\x9b\u202e\u2028")
    assert printable("a\tb\n\x1b[2J\u202e") == "a\tb\n\\x1b[2J\\u202e"
