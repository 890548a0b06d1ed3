# SPDX-License-Identifier: Apache-2.0
"""The code in docs/heritage.md for each framework trains on two ranks, in a program with the names
that it uses.

Frameworks that are not installed are skipped; `make test-heritage` has them all.
"""

import importlib.util
import re

import adapter_list
import pytest
from conftest import Run

EQUAL = """
import numpy
texts = ddl.allgather_object(b"".join(numpy.array(each).tobytes() for each in weights))
assert len(texts) == 2 and len(set(texts)) == 1
print("right")
"""


SHOWN = [adapter for adapter in adapter_list.SMALL if "BEFORE" in adapter.tests()]


@pytest.mark.parametrize("adapter", SHOWN, ids=lambda adapter: adapter.name)
def test_snippet(ddlrun: Run, adapter: adapter_list.Adapter) -> None:
    if importlib.util.find_spec(adapter.name) is None:
        pytest.skip(f"there is no {adapter.name}")
    blocks = re.findall(r"```python\n(.*?)```", adapter_list.PAGE.read_text(), re.DOTALL)
    (shown,) = (block for block in blocks if f"import {adapter.package} as ddl" in block)
    tests = adapter.tests()
    program = tests["BEFORE"] + shown + tests["AFTER"] + EQUAL
    ended = ddlrun(2, program, env={"GLOG_minloglevel": "2"}, limit=120).expect_success()
    assert [ended.lines(rank)[-1] for rank in (0, 1)] == ["right"] * 2
