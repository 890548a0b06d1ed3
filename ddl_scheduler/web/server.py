# SPDX-License-Identifier: Apache-2.0
"""How the app is served: on loopback, or elsewhere with TLS."""

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
    """Whether TLS is spoken at this address. Raises ValueError if tokens would travel over the
    network unencrypted, or half of what TLS needs is missing."""
    if (certificate is None) != (key is None):
        raise ValueError("TLS needs both a certificate and its key")
    if certificate is None and not is_loopback(host):
        raise ValueError(
            f"{host} is no loopback address, and tokens may not travel over a network unencrypted;"
            " give a certificate and a key, or listen on 127.0.0.1 and use an ssh tunnel"
        )
    return certificate is not None


def is_loopback(host: str) -> bool:
    """Whether no other machine can send to this address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_names(host: str, given: Iterable[str] = ()) -> list[str]:
    """What a Host header may have beside the names of loopback, where the app listens on this host:
    the host, the names `given`, and, where others can reach it, this machine's own names. Raises
    ValueError."""
    own = [] if is_loopback(host) else [socket.gethostname(), socket.getfqdn()]
    names = [_host_name(name) for name in given]
    return list(dict.fromkeys([_bracketed(host), *own, *names]))


def _host_name(text: str) -> str:
    name = _bracketed(text)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]", name):
        raise ValueError(
            f"{text!r} is no name or address of a machine, as in head.example.org; give it without"
            " https:// and without a port"
        )
    return name


def _bracketed(host: str) -> str:
    """Return the address as it is in a Host header."""
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
    """To be started by `start`, and ended by `should_exit = True`. Raises ValueError, see
    check_address, and OSError if there is no such host."""
    check_address(host, certificate, key)
    if port == 0:  # each address of a name would get a port of its own
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
            proxy_headers=False,  # nobody is believed who says to ask for somebody else
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,  # streams have no end of their own
            http=ClientConnection,
            limit_concurrency=1024,
            lifespan="on",
        )
    )


def start(server: uvicorn.Server) -> int:
    """Run it in a thread. The port that it listens on: what it was given, or a free one for 0.
    Raises OSError, once uvicorn has said why it cannot."""
    thread = threading.Thread(target=server.run, name="ddl web", daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise OSError("it could not be opened; the lines before this one say why")
        time.sleep(0.01)
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port
