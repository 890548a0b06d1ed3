# SPDX-License-Identifier: Apache-2.0
"""Free ports of this host, and its addresses for connections from other hosts.

Scripts import this module, so it imports no other module of the project.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import socket
from collections.abc import Callable, Mapping, Sequence

PORTS = range(20000, 32000)  # below Linux's ephemeral ports


def allowed_ports(environment: Mapping[str, str] = os.environ) -> range | None:
    """Return the ports of DDL_PORTS, or None if it is not set. Raises OSError if it is not a range,
    so that callers handle it as a port that cannot be used."""
    text = environment.get("DDL_PORTS", "")
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last < 1 << 16:
        raise OSError(errno.EINVAL, f"DDL_PORTS is {text!r}; must be a range such as 20000-20100")
    return range(first, last + 1)


def listen_at_allowed(
    listen: Callable[[int], socket.socket], environment: Mapping[str, str] = os.environ
) -> socket.socket:
    """Call `listen` with each port of DDL_PORTS until one is free, or with port 0 if it is not set.
    Return its socket. Raises OSError."""
    ports = allowed_ports(environment)
    if ports is None:
        return listen(0)
    for port in ports:
        try:
            return listen(port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    text = f"no port of DDL_PORTS={environment['DDL_PORTS']} is free; make the range larger"
    raise OSError(errno.EADDRINUSE, text)


def free_ports(number: int, ports: Sequence[int] = ()) -> list[int]:
    """Return up to `number` different ports that are free now. The ranks use them soon after.

    ports  the ports to try, in this order; by default, the ports of PORTS in a random order
    """
    free: list[int] = []
    for port in ports or random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            # Connections of an earlier job that are closed may still have the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
                probe.listen()
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


def listen(backlog: int, environment: Mapping[str, str] = os.environ) -> socket.socket:
    """Listen on a free port of all IPv4 and IPv6 addresses of this host. The port is one of
    DDL_PORTS if it is set. Raises OSError."""

    def listen_at(port: int) -> socket.socket:
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # IPv6 is disabled, or the port is in use
                return socket.create_server(
                    ("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
                )
        return socket.create_server(("", port), backlog=backlog)

    return listen_at_allowed(listen_at, environment)
