# SPDX-License-Identifier: Apache-2.0
"""What can happen to a member, done by itself at the moment that its case names."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from typing import Any

HELD = 8  # seconds: longer than the watchdog's limit in the tests

# Exit codes of those who are struck; 3: refused, since the others have counted it as dead.
CODES = {
    "kill": -signal.SIGKILL,
    "segv": -signal.SIGSEGV,
    "stop": -signal.SIGKILL,  # by the agent, in the end
    "stop and continue": 3,
    "gil": 3,
    "exception": 1,
    "fail": 1,
    "refused": 3,
}


def strike(how: str, group: Any, target: Any) -> None:
    """`target`: the member to expel, or the command to run, such as one that cuts a network."""
    own = os.getpid()
    if how == "kill":
        os.kill(own, signal.SIGKILL)
        threading.Event().wait()
    elif how == "segv":
        ctypes.string_at(0)
    elif how == "stop":
        os.kill(own, signal.SIGSTOP)
    elif how == "stop and continue":
        # The other process keeps nothing of this one's open.
        command = f"sleep 5; kill -CONT {own}"
        subprocess.Popen(["sh", "-c", command], stdin=subprocess.DEVNULL)
        os.kill(own, signal.SIGSTOP)
    elif how == "gil":
        ctypes.PyDLL(None).sleep(HELD)  # which, unlike CDLL, keeps Python's lock
    elif how == "hang":  # as with gil, for ever
        while True:
            ctypes.PyDLL(None).sleep(HELD)
    elif how == "exception":
        raise RuntimeError("struck")
    elif how == "fail":  # an exception at which the program leaves the others, as most do
        group.comm.close()
        os._exit(1)
    elif how == "expel":
        group.comm.expel(group.members.index(target), "its place is needed")
    elif how == "pause":
        print("paused", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
    elif how == "command":
        subprocess.run(target, shell=True, check=True)
    else:
        raise ValueError(how)
