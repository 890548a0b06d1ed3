# SPDX-License-Identifier: Apache-2.0
"""Where the scheduler is, and with which token: from the environment, or a file that nobody else
can read.
"""

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
    """What to change, so that the scheduler can be asked."""


@dataclass(frozen=True)
class Access:
    """How a client reaches the scheduler."""

    address: str  # as in https://head:8470
    token: str
    ca: str = ""  # a file with the certificates that are trusted; "": the system's

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AccessError(f"the address {self.address!r} is no URL, as in {DEFAULT}")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise AccessError(
                f"the token may not travel to {parts.hostname} unencrypted; use https://, or"
                " http://127.0.0.1 through an ssh tunnel"
            )
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise AccessError("the token has characters that no token has")


def access_read(given: str = "") -> Access:
    """From the environment (DDL_SERVER, DDL_TOKEN, DDL_SERVER_CA), and what is missing there from
    the file $DDL_SERVER_FILE, else ~/.config/ddl/server.toml. Raises AccessError.

    given   an address that is taken instead
    """
    found = {**_read(environment.server_file()), **environment.server()}
    if given:
        found["address"] = given
    if not found.get("token"):
        raise AccessError(
            f"there is no token: set DDL_TOKEN, or write it to {environment.server_file()}, of mode"
            ' 600, as in: token = "..."'
        )
    return Access(found.get("address", DEFAULT), found["token"], found.get("ca", ""))


def _read(path: Path) -> Mapping[str, str]:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_mode & 0o077 or about.st_uid not in (os.getuid(), 0):
                mode = f"{about.st_mode & 0o777:o}"
                raise AccessError(f"{path} has mode {mode}: others can read its token; chmod 600")
            found: dict[str, str] = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise AccessError(f"{path}: {error}") from None
    wrong = [name for name in found if name not in FIELDS or not isinstance(found[name], str)]
    if wrong:
        raise AccessError(f"{path}: {wrong[0]} is no text of {', '.join(FIELDS)}")
    return found


def access_write(path: Path, access: Access) -> None:
    """All of it or nothing, for this user alone. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        for name in FIELDS:
            if value := getattr(access, name):
                escaped = value.replace("\\", "\\\\").replace('"', '\\"')
                file.write(f'{name} = "{escaped}"\n')
    new.replace(path)
