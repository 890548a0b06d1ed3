# SPDX-License-Identifier: Apache-2.0
"""Each program of docs/clients.md, in its own environment, has the same losses with libddl as with
Gloo."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from clients.libraries import LIBRARIES, install, train


@pytest.mark.slow  # the environments of `make test-clients`
@pytest.mark.parametrize("name", LIBRARIES)
def test_losses_are_those_of_gloo(name: str, tmp_path: Path, find_port: Callable[[], int]) -> None:
    library = LIBRARIES[name]
    install(library)
    ddl, gloo = (train(library, backend, tmp_path, find_port()) for backend in ("ddl", "gloo"))
    assert (ddl.backends, gloo.backends) == ({"ddl"}, {"gloo"})
    assert ddl.losses == gloo.losses
    guessing = math.log(library.classes)  # the loss of a model that learned nothing
    assert all(float(loss) < guessing for loss in ddl.losses[1:]), ddl.losses
    assert len(ddl.losses) > 1
