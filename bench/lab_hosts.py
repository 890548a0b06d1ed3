# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine, for --lab: network namespaces, created by tests/lab/lab.py."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.cases import UsageError
from bench.environments import ROOT
from bench.libraries import Placement


class LabHosts:
    def __init__(self, lab: Any, hosts: Sequence[int], rate: str) -> None:
        self._lab = lab
        self.hosts = list(hosts)
        self.loops = 0
        self.name = f"{len(hosts)} hosts, {rate} links"

    def address(self, host: int) -> str:
        return str(self._lab.address(host))

    def interface(self) -> str:
        return "eth0"

    def enter(self, host: int) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._lab.prefix}{host}"]


@contextmanager
def open_lab(hosts: Sequence[int], rate: str) -> Iterator[tuple[Placement, float]]:
    if os.geteuid() != 0:
        raise UsageError("--lab needs root: it creates network namespaces")
    sys.path.insert(0, str(ROOT / "tests" / "lab"))
    from lab import Lab

    from bench.lab import stream_rate

    with Lab(len(hosts), None if rate == "unshaped" else rate) as lab:
        wire = max(stream_rate(lab) for _ in range(3)) if len(hosts) > 1 else 0.0
        yield LabHosts(lab, hosts, rate), wire
