# SPDX-License-Identifier: Apache-2.0
"""The network between members on two hosts, which are network namespaces, is cut. One side
continues, with the undisturbed result, and the other ends."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))
sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from faults import FIREWALL
from lab import Lab

from ddl_elastic.storage.checkpoint import Folder, manifests, read_manifest, read_state

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nft"),
    reason="network namespaces need root, iproute2 and nftables",
)

STEP = 5
KEPT = 3  # checkpoints
PHASES = ["compute", "reduce", "vote", "apply"]
CUTS = {
    "link down": "ip -n {host} link set eth0 down",
    "packets dropped": "ip -n {switch} link set p1n0 nomaster",
    "resets": f"ip netns exec {{host}} nft '{FIREWALL.replace('{', '{{').replace('}', '}}')}'",
}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2, None) as lab:
        yield lab


def cut(
    members: Any, lab: Lab, fault: str, phase: str, places: list[int], **case: Any
) -> list[list[list[Any]]]:
    names = [f"{lab.prefix}{place}" for place in places]
    victims = [member for member, place in enumerate(places) if place == 1]
    command = CUTS[fault].format(host=f"{lab.prefix}1", switch=f"{lab.prefix}sw")
    kill = {"member": victims[0], "step": STEP, "phase": phase}
    kill |= {"how": "command", "target": command, "cut": victims}
    where = {"hosts": names, "interfaces": "eth0", "links": ["shm", "tcp"]}
    logs: list[list[list[Any]]] = members.check(members=len(places), **where, kills=[kill], **case)
    return logs


def test_sample(members: Any, lab: Lab) -> None:
    """Of two halves, the one with the lowest rank continues; the coordinator is on its host. From
    then on only that side writes checkpoints, and all of them are whole."""
    logs = cut(members, lab, "resets", "reduce", [0, 0, 1, 1], every=1)
    storage = Folder(members.folder / f"{members.name}.saved")
    found = [read_manifest(storage, name) for name in manifests(storage)]
    assert len(found) == KEPT
    for each in found:
        read_state(storage, each)  # raises DamagedCheckpoint
    commits = [sum(line[0] == "commit" for line in log) for log in logs]
    assert max(each.steps for each in found) == commits[0] > commits[2]


@pytest.mark.slow
@pytest.mark.parametrize("places", [[0, 0, 1, 1], [0, 0, 1]])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", CUTS)
def test_cuts(members: Any, lab: Lab, fault: str, phase: str, places: list[int]) -> None:
    cut(members, lab, fault, phase, places)
