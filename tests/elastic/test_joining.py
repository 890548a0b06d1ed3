# SPDX-License-Identifier: Apache-2.0
"""How the workers of a job come together."""

from __future__ import annotations

import pytest

from ddl_core import Endpoint
from ddl_core.errors import DdlError
from ddl_elastic import joining


def test_one_that_never_comes_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are told anew then."""
    monkeypatch.setattr(joining, "CONNECT_LIMIT", 0.3)
    with Endpoint(secret="") as own, Endpoint(secret="") as absent:
        addresses = [each.address.hex() for each in (own, absent)]
        plan = {"members": [0, 1], "addresses": addresses, "attempt": 0}
        with pytest.raises(DdlError, match="rank 0 waited for ranks that did not connect in time"):
            joining.create(own, 0, plan)
