# SPDX-License-Identifier: Apache-2.0
"""The address and the token of the scheduler, from the environment or from a private file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ddl_elastic.base import environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIELDS = ("address", "token", "ca")
DEFAULT = "http://127.0.0.1:8470"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class AccessError(Exception):
    """A missing or wrong setting for access to the scheduler. The message states what to change."""


@dataclass(frozen=True)
class Access:
    """The settings with which a client connects to the scheduler."""

    address: str  # such as https://head:8470
    token: str
    ca: str = ""  # a file with the trusted certificates; "" means the system's

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AccessError(f"the address {self.address!r} is not a URL such as {DEFAULT}")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise AccessError(
                f"{parts.hostname} would receive the token unencrypted; use https://, or"
                " http://127.0.0.1 through an ssh tunnel"
            )
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise AccessError(
                "the token contains a space, a control character or a non-ASCII character; copy it"
                " again"
            )


def access_read(given: str = "") -> Access:
    """Read the settings from DDL_SERVER, DDL_TOKEN and DDL_SERVER_CA. Raises AccessError.

    Missing settings come from the file $DDL_SERVER_FILE, or ~/.config/ddl/server.toml.

    given   an address that replaces the configured one
    """
    found = {**_read(environment.server_file()), **environment.server()}
    if given:
        found["address"] = given
    if not found.get("token"):
        raise AccessError(
            f"no token is set: set DDL_TOKEN, or write it to {environment.server_file()} (mode 600)"
            ' as: token = "..."'
        )
    return Access(found.get("address", DEFAULT), found["token"], found.get("ca", ""))


def _read(path: Path) -> Mapping[str, str]:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid not in (os.getuid(), 0):
                raise AccessError(
                    f"{path} belongs to another user (id {about.st_uid}), who can read and change"
                    " its token; replace it by a file of your own with mode 600"
                )
            if about.st_mode & 0o077:
                raise AccessError(
                    f"{path} has mode {about.st_mode & 0o777:o}, so other users can read its token;"
                    " set its mode to 600"
                )
            found: dict[str, str] = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise AccessError(f"{path}: {error}") from None
    wrong = [name for name in found if name not in FIELDS or not isinstance(found[name], str)]
    if wrong:
        raise AccessError(
            f"{path}: {wrong[0]} is not valid; the file may set {', '.join(FIELDS)}, each a text"
        )
    return found


def access_write(path: Path, access: Access) -> None:
    """Replace the file in one step. Only this user can read it. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        for name in FIELDS:
            if value := getattr(access, name):
                escaped = value.replace("\\", "\\\\").replace('"', '\\"')
                file.write(f'{name} = "{escaped}"\n')
    new.replace(path)
