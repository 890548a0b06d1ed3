# SPDX-License-Identifier: Apache-2.0
"""Hidden state is found, its changes are noticed, and the first difference of two runs is named."""

import collections
import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddl_elastic.hidden.marks import mark
from ddl_elastic.hidden.source import locate
from ddl_elastic.hidden.walk import Root, Walk
from ddl_elastic.verify.causes import find_hidden
from ddl_elastic.verify.compare import first_difference
from ddl_elastic.verify.records import RunRecords, WorkerRecords

pytestmark = pytest.mark.pure


class Noise:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)


class Data:
    def __init__(self) -> None:
        self.transforms = [Noise()]
        self.cache = collections.deque([1])


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (np.zeros(3), lambda value: value.fill(1)),
        (np.random.default_rng(1), lambda value: value.normal()),
        (np.random.RandomState(1), lambda value: value.normal()),
        (random.Random(1), lambda value: value.random()),
        ({"a": [np.zeros(2)]}, lambda value: value["a"][0].fill(1)),
        (collections.deque([1]), lambda value: value.append(2)),
        ({"a"}, lambda value: value.add("b")),
    ],
)
def test_mark_of_changed_value_differs(value: Any, change: Any) -> None:
    before = mark(value)
    assert mark(value) == before
    change(value)
    assert mark(value) != before


def test_mark_of_set_has_no_order() -> None:
    names = [f"name{number}" for number in range(20)]
    reverse = names[::-1]
    assert mark(set(names)) == mark(set(reverse))


def test_walk_finds_nested_generator_once() -> None:
    data = Data()
    items = list(Walk([]).items([Root("data", "Data", data), Root("data", "again", data)]))
    found = {item.name: item.kind for item in items}
    assert found["Data.transforms[0].generator"] == "generator"
    assert found["Data.cache"] == "container"
    assert not any(name.startswith("again") for name in found)


def test_walk_passes_known_state_over() -> None:
    data = Data()
    items = Walk([data.transforms[0].generator]).items([Root("data", "Data", data)])
    assert "generator" not in {item.kind for item in items}


class Broken:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} cannot be loaded")


def test_walk_skips_objects_that_raise() -> None:
    data = Data()
    data.broken = Broken()  # type: ignore[attr-defined]
    names = [item.name for item in Walk([]).items([Root("data", "Data", data)])]
    assert "Data.cache" in names and "Data.broken" not in names


def make_records(member: int, gradient: str, generator: str) -> WorkerRecords:
    """Return the records of a worker that has computed one share."""
    found = WorkerRecords(member)
    found.shares[0, 1] = {"batch": "b", "tensors": {"weight": gradient, "loss": "1"}}
    found.hidden[0, 1] = {"data:Data.generator": generator, "data:Data.count": "1"}
    found.steps[0] = {"loss": "1", "state": {"model.weight": gradient}}
    place = {"kind": "generator", "class": "numpy.Generator", "owner": "Data", "where": "t.py:3"}
    found.places = {"data:Data.generator": place, "data:Data.count": {**place, "kind": "number"}}
    return found


def test_equal_runs_have_no_difference() -> None:
    alone = RunRecords("alone", [make_records(0, "1", "1")])
    assert first_difference(alone, RunRecords("other", [make_records(4, "1", "2")])) is None


def test_first_difference_is_of_the_share_and_has_its_cause() -> None:
    alone = RunRecords("alone", [make_records(0, "1", "1")])
    other = RunRecords("with 3", [make_records(0, "1", "1"), make_records(2, "2", "2")])
    found = first_difference(alone, other)
    assert found and (found.step, found.share, found.member) == (0, 1, 2)
    assert "gradient of weight" in str(found)
    (cause,) = find_hidden(found)
    assert "Data.generator" in cause.text and cause.where == "t.py:3"


def test_line_of_change_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program_of_test.py"
    program.write_text(
        "class Count:\n"
        "    def __init__(self):\n"
        "        self.calls = 0\n"
        "    def call(self):\n"
        "        self.calls += 1\n"
    )
    spec = importlib.util.spec_from_file_location("program_of_test", program)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "program_of_test", module)
    spec.loader.exec_module(module)
    items = Walk([]).items([Root("model", "Count", module.Count())])
    assert [locate(item) for item in items] == ["program_of_test.py:5"]
