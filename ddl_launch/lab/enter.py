# SPDX-License-Identifier: Apache-2.0
"""Runs a command on a host of a laboratory, in the namespaces of the host's process 1.

A script that imports no module of the project: enter.py PID FOLDER COMMAND ARGS...

Its exit code is the command's, or 128 + N if signal N killed the command. Signals to its process
group reach the command. If this process is killed, the kernel kills the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Entered in this order: after mnt, /proc is the host's.
_NAMESPACES = ("net", "uts", "ipc", "pid", "mnt")


def main() -> int:
    pid, folder, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor in [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]:
        if libc.setns(descriptor, 0):
            print(f"ddl lab: setns: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
            return 1
        os.close(descriptor)
    child = os.fork()
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _become(folder, command)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the command gets the signal, too, and decides
    for descriptor in range(3):
        os.close(descriptor)  # otherwise a reader waits for this process as well
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _become(folder: str, command: list[str]) -> None:
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"ddl lab: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    sys.exit(main())
