# SPDX-License-Identifier: Apache-2.0
"""Free ports of this host, and its addresses towards other hosts.

Imported by scripts that import nothing else of the project.
"""

from __future__ import annotations

import contextlib
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
    """Return this host's address that the kernel uses towards another host, and that host's
    address. OSError when there is no route; socket.gaierror when the name is unknown."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)  # IPv6 only where IPv4 leads nowhere
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
    """Listen at a free port of all of this host's addresses, of IPv4 and IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is switched off
            return socket.create_server(
                ("::", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=backlog)
