# SPDX-License-Identifier: Apache-2.0
"""This host's free ports, and its addresses towards other hosts.

Imported by scripts that import nothing else of the project.
"""

from __future__ import annotations

import random
import socket

PORTS = range(20000, 32000)  # below Linux's ephemeral ports


def free_ports(number: int) -> list[int]:
    """Different ports that are free now, at most so many. The ranks use them soon after."""
    free: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        free.append(port)
        if len(free) == number:
            break
    return free


def addresses_to(host: str) -> tuple[str, str]:
    """This host's address that the kernel uses towards another host, and that host's address.
    OSError when there is no route; socket.gaierror when the name is unknown."""
    known = socket.getaddrinfo(host, 9, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(known)
        return probe.getsockname()[0], str(known[0])
