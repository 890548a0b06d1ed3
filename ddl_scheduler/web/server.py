# SPDX-License-Identifier: Apache-2.0
"""The web server of the app: on loopback, or on other addresses with TLS."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ddl_scheduler.web.connections import ClientConnection

DEFAULT_PORT = 8470


def check_address(host: str, certificate: Path | None, key: Path | None) -> bool:
    """Return True if this address uses TLS. Raises ValueError if tokens would be sent over the
    network unencrypted, or if only one of certificate and key is given."""
    if (certificate is None) != (key is None):
        raise ValueError("TLS needs both a certificate and its key")
    if certificate is None and not is_loopback(host):
        raise ValueError(
            f"{host} is not a loopback address, where tokens would be sent unencrypted; give a"
            " certificate and a key, or listen on 127.0.0.1 and use an ssh tunnel"
        )
    return certificate is not None


def is_loopback(host: str) -> bool:
    """Return True if no other machine can connect to this address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_names(host: str, given: Iterable[str] = ()) -> list[str]:
    """Return the names that a Host header may have in addition to the loopback names.

    These are the host on which the app listens, the names `given` and, if other machines can reach
    it, this machine's own names. Raises ValueError.
    """
    own = [] if is_loopback(host) else [socket.gethostname(), socket.getfqdn()]
    names = [_host_name(name) for name in given]
    return list(dict.fromkeys([_bracketed(host), *own, *names]))


def _host_name(text: str) -> str:
    name = _bracketed(text)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]", name):
        raise ValueError(
            f"{text!r} is not a name or address of a machine, such as head.example.org; give it"
            " without https:// and without a port"
        )
    return name


def _bracketed(host: str) -> str:
    """Return the address in the form of a Host header."""
    try:
        is_six = ipaddress.ip_address(host.strip("[]")).version == 6
    except ValueError:
        return host
    return f"[{host.strip('[]')}]" if is_six else host


def _first_address(host: str) -> str:
    found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def make_server(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    certificate: Path | None = None,
    key: Path | None = None,
) -> uvicorn.Server:
    """Create a server. `start` starts it, and `should_exit = True` ends it. Raises ValueError, see
    check_address, and OSError if the host does not exist."""
    check_address(host, certificate, key)
    if port == 0:  # otherwise each address of a name would get its own port
        host = _first_address(host)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host.strip("[]"),
            port=port,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # ignore headers that claim another client's address
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,  # streams do not end by themselves
            http=ClientConnection,
            limit_concurrency=1024,
            lifespan="on",
        )
    )


def start(server: uvicorn.Server) -> int:
    """Run the server in a thread. Return its port, which is a free one if 0 was given. Raises
    OSError; uvicorn has then logged the reason."""
    thread = threading.Thread(target=server.run, name="ddl web", daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise OSError("the server could not listen; the previous lines give the reason")
        time.sleep(0.01)
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port
