"""Horovod's API over libddl; see programs/horovod_torch.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ddl_horovod.torch as hvd

if TYPE_CHECKING:
    from conftest import Run

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent.parent / "docs" / "horovod.md"


@pytest.mark.usefixtures("torch_native")
@pytest.mark.parametrize("size", [2, 3])
def test_values(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, FOLDER / "programs" / "horovod_torch.py", limit=240).expect_success()
    assert ended.out.count("done ") == 13 * size, ended.out


def test_page_lists_what_is_served() -> None:
    """Every name is in docs/horovod.md as served or differing, and every such name is there."""
    rows = re.findall(r"^\| (`.*?) \| (served|differs|not served)", PAGE.read_text(), re.MULTILINE)
    listed = {
        name
        for names, state in rows
        if state != "not served"
        for name in re.findall(r"`(\w+)[`(]", names)
    }
    assert listed == set(hvd.__all__)
