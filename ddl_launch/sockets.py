# SPDX-License-Identifier: Apache-2.0
"""Free ports of this host, and its addresses for connections from other hosts.

Scripts import this module, so it imports no other module of the project.
"""

from __future__ import annotations

import contextlib
import random
import socket

PORTS = range(20000, 32000)  # below Linux's ephemeral ports


def free_ports(number: int) -> list[int]:
    """Return up to `number` different ports that are free now. The ranks use them soon after."""
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
    """Return this host's source address for another host, and that host's address. Raises OSError
    if there is no route, and socket.gaierror if the name is unknown."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    # IPv6 only if there is no route for IPv4.
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    problem = OSError(f"{host} has no address")
    for family, kind, _, _, known in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(known)
                return str(probe.getsockname()[0]), str(known[0])
        except OSError as error:
            problem = error
    raise problem


def is_loopback(address: str) -> bool:
    """Return True if no other host can reach the address."""
    return address.startswith("127.") or address == "::1"


def listen(backlog: int) -> socket.socket:
    """Listen on a free port of all IPv4 and IPv6 addresses of this host."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is disabled
            return socket.create_server(
                ("::", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=backlog)
