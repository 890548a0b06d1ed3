# SPDX-License-Identifier: Apache-2.0
"""Misuse of objects: copies, which would own a handle twice, and arguments of wrong types."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ddl_core import Comm, Endpoint
from ddl_core.errors import InvalidArgument

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("what", ["Comm", "Endpoint", "Work", "Group"])
def test_copies_are_refused(alone: Comm, copied: Callable[[Any], Any], what: str) -> None:
    objects: dict[str, Any] = {
        "Comm": alone,
        "Endpoint": alone._endpoint,
        "Work": alone.allreduce_async(np.ones(3)),
        "Group": alone.group(),
    }
    with pytest.raises(
        TypeError, match=f"a ddl_core.{what} belongs to the process that created it"
    ):
        copied(objects[what])
    assert alone.allreduce(np.ones(3))[0] == 1


def test_arguments_of_other_types_are_named(alone: Comm) -> None:
    with pytest.raises(InvalidArgument, match="timeout is 'soon'; must be a number of seconds"):
        alone.allreduce_async(np.ones(3)).wait("soon")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="secret is 5; must be a str"):
        Endpoint(secret=5)  # type: ignore[arg-type]
