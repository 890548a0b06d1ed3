# SPDX-License-Identifier: Apache-2.0
"""Replaces itself by one rank's program. The kernel kills the program when the launcher dies, even
by SIGKILL.

A script: exec_rank.py LAUNCHER_PID CORES PROGRAM ARGS... It imports no module of the project.
CORES, such as "0-3,8", are the cores to bind to; "" keeps the current cores. The program has no
terminal, because it would stop when it reads from the terminal of its launcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import termios

_PR_SET_PDEATHSIG = 1


def main() -> None:
    launcher, cores, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # the launcher died before prctl
        sys.exit(1)
    if cores:
        os.sched_setaffinity(0, _numbers(cores))
    with contextlib.suppress(OSError), open("/dev/tty", "rb") as terminal:  # not if there is none
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"ddlrun: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _numbers(text: str) -> set[int]:
    numbers = set()
    for item in text.split(","):
        first, _, last = item.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


if __name__ == "__main__":
    main()
