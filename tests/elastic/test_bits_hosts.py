# SPDX-License-Identifier: Apache-2.0
"""The bits of up to eight ranks on two hosts, which are network namespaces."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from lab import Lab

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(2, None) as lab:
        yield lab


def check(members: Any, lab: Lab, model: str, size: int, owners: str) -> None:
    places = [rank * 2 // size for rank in range(size)]
    names = [f"{lab.prefix}{place}" for place in places]
    where = {"hosts": names, "interfaces": "eth0", "links": ["shm", "tcp"]}
    bucket_bytes = 2000 if size % 2 else 25 << 20
    members.check(members=size, model=model, owners=owners, bucket_bytes=bucket_bytes, **where)


def test_sample(members: Any, lab: Lab) -> None:
    check(members, lab, "cnn", 3, "changing")


@pytest.mark.slow
@pytest.mark.parametrize("owners", ["even", "random", "changing"])
@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_bits(members: Any, lab: Lab, model: str, size: int, owners: str) -> None:
    check(members, lab, model, size, owners)
