# SPDX-License-Identifier: Apache-2.0
"""The strikes of a member, which it executes itself at the moment that its case names."""

import ctypes
import errno
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

HELD = 8  # seconds: longer than the watchdog's limit in the tests

# Exit codes of struck members. 3: the member gets an error, because the others counted it as dead.
CODES = {
    "kill": -signal.SIGKILL,
    "segv": -signal.SIGSEGV,
    "stop": -signal.SIGKILL,  # the agent kills it in the end
    "stop and continue": 3,
    "gil": 3,
    "exception": 1,
    "fail": 1,
    "refused": 3,
}


def strike(how: str, group: Any, target: Any) -> None:
    own = os.getpid()
    if how == "kill":
        os.kill(own, signal.SIGKILL)
        threading.Event().wait()
    elif how == "segv":
        ctypes.string_at(0)
    elif how == "stop":
        os.kill(own, signal.SIGSTOP)
    elif how == "stop and continue":
        # The other process keeps no descriptor of this one open.
        command = f"sleep {HELD}; kill -CONT {own}"
        subprocess.Popen(["sh", "-c", command], stdin=subprocess.DEVNULL)
        os.kill(own, signal.SIGSTOP)
    elif how == "gil":
        ctypes.PyDLL(None).sleep(HELD)  # which, unlike CDLL, keeps Python's lock
    elif how == "hang":  # like gil, for ever
        while True:
            ctypes.PyDLL(None).sleep(HELD)
    elif how == "exception":
        raise RuntimeError("struck")
    elif how == "fail":  # like a program that closes its comm at an exception
        group.comm.close()
        os._exit(1)
    elif how == "expel":
        group.comm.expel(group.members.index(target), "its place is needed")
    elif how == "pause":
        print("paused", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
    elif how == "late":
        time.sleep(HELD)
    elif how in ("coordinator", "both"):  # the worker's agent is killed, and this process
        os.kill(int(Path("coordinator").read_text()), signal.SIGKILL)
        if how == "both":
            strike("kill", group, target)
    elif how == "hold":  # until its host is lost, whose name the worker writes
        Path("held.new").write_text(f"{socket.gethostname()} {own}")
        Path("held.new").rename("held")
        threading.Event().wait()
    elif how == "full":  # fills the disk of the checkpoints until a write has failed
        fill(Path("saved/.filler"))
    elif how == "command":
        subprocess.run(target, shell=True, check=True)
    else:
        raise ValueError(how)


def fill(filler: Path) -> None:
    Path("at failed write").write_text('{"failed": ""}')
    try:
        with filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    while not Path("failed").exists():
        time.sleep(0.01)
    filler.unlink()
