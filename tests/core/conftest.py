"""Comms for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import join

from ddl_core import Comm, Config, Endpoint

CONFIG = Config(operation_timeout=30)  # so that what waits in vain fails its test


@pytest.fixture
def alone() -> Iterator[Comm]:
    with Endpoint(secret="test") as endpoint:
        yield endpoint.connect([endpoint.address], 0, CONFIG)


@pytest.fixture
def pair() -> Iterator[tuple[Comm, Comm]]:
    """Two ranks in this process."""
    with Endpoint(secret="test") as a, Endpoint(secret="test") as b:
        yield join([a, b], CONFIG)
