# SPDX-License-Identifier: Apache-2.0
"""Asks a laboratory's daemon to run a command on a host, with this process's stdin, stdout and
stderr.

A script that also runs on the hosts. It imports no module of the project:

    reach.py SOCKET exec HOST COMMAND ARGS...     in this folder and environment
    reach.py SOCKET rsh [OPTIONS] HOST WORDS...   like ssh: in a shell, in a fresh environment

The exit code is the command's. Signals are forwarded to the command. It ends if this process ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_NOT_REACHED = 255  # ssh's exit code


def main() -> int:
    path, way, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    request: dict[str, object] = {"folder": os.getcwd(), "environment": dict(os.environ)}
    if way == "rsh":
        while words and words[0].startswith("-"):
            words = words[2:] if words[0] in ("-o", "-p", "-l", "-i", "-F") else words[1:]
        request = {"folder": os.path.expanduser("~"), "environment": None}
    if len(words) < 2:
        return fail("HOST or COMMAND is missing")
    host, command = words[0], words[1:]
    if way == "rsh":
        command = ["/bin/sh", "-c", " ".join(command)]
    daemon = socket.socket(socket.AF_UNIX)
    try:
        daemon.connect(path)
    except OSError:
        return fail("the lab is not running: `ddl lab up N` creates one with N hosts")
    text = json.dumps({"do": "run", "host": host, "command": command, **request}).encode()
    socket.send_fds(daemon, [struct.pack("!I", len(text))], [0, 1, 2])
    daemon.sendall(text)
    # Only now, since a signal's byte must not come within the request.
    for number in _FORWARDED:
        signal.signal(number, lambda number, _frame: daemon.sendall(bytes([number])))
    answer = b""
    while piece := daemon.recv(65536):
        answer += piece
    if not answer:
        return fail("the lab's daemon has exited")
    ended = json.loads(answer)
    return int(ended["code"]) if "code" in ended else fail(ended["error"])


def fail(why: str) -> int:
    print(f"ddl lab: {why}", file=sys.stderr)
    return _NOT_REACHED


if __name__ == "__main__":
    sys.exit(main())
