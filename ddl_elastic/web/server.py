# SPDX-License-Identifier: Apache-2.0
"""How the app is served: on loopback, or elsewhere with TLS."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

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


def make_server(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    certificate: Path | None = None,
    key: Path | None = None,
) -> uvicorn.Server:
    """To be run in a thread by `run()`, and ended by `should_exit = True`. Raises ValueError, see
    check_address."""
    check_address(host, certificate, key)
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
            limit_concurrency=512,
            lifespan="on",
        )
    )
