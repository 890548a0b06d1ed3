# SPDX-License-Identifier: Apache-2.0
"""Reports of ranks to their launcher on the same host: datagrams to an abstract unix socket.

Scripts import this module, so it imports no other module of the project. DDL_LAUNCHER names the
socket, without the leading zero byte. A report is "RANK KIND TEXT":

    joining        the rank has begun to wait for the others, in the rendezvous of DDL_RENDEZVOUS
    joined         all ranks have joined the rendezvous
    gave up        the rank no longer waits; not all ranks have joined
    raised TEXT    an exception that its program does not catch: "ValueError: boom"

A datagram is in the launcher's queue before the sender continues, so the launcher gets a process's
reports before it sees the process's end. libddl/src/comm/world.c and
ddl_core/diagnosis/uncaught.py send them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from typing import NamedTuple

VARIABLE = "DDL_LAUNCHER"
LARGEST = 2048  # bytes of a report; a longer one is cut
_CREDENTIALS = struct.Struct("@3i")  # pid, uid, gid
_KINDS = ("joining", "joined", "gave up", "raised")


class Report(NamedTuple):
    """A report of one rank."""

    rank: int
    kind: str
    text: str


def parse(data: bytes) -> Report | None:
    """Return the report, or None if the data is not a report."""
    rank, _, said = data.decode(errors="replace").partition(" ")
    for kind in _KINDS:
        if rank.isdecimal() and (said == kind or said.startswith(kind + " ")):
            return Report(int(rank), kind, said[len(kind) :].strip())
    return None


class Reports:
    """The launcher's end of the socket. `name` is for DDL_LAUNCHER, or "" if the system has no
    abstract sockets."""

    def __init__(self) -> None:
        self.name = f"ddlrun-{secrets.token_hex(16)}"
        self.socket: socket.socket | None = None
        with contextlib.suppress(OSError):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self.socket.setblocking(False)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.socket.bind(b"\0" + self.name.encode())
            return
        self.close()
        self.name = ""

    def read(self) -> list[bytes]:
        """Return the reports that have arrived from processes of this user."""
        found: list[bytes] = []
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        while self.socket is not None:
            try:
                data, messages, *_ = self.socket.recvmsg(LARGEST, space)
            except BlockingIOError:
                break
            for level, kind, value in messages:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    uid = _CREDENTIALS.unpack_from(value)[1]
                    found += [data] if uid == os.geteuid() else []
        return found

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None
