# SPDX-License-Identifier: Apache-2.0
"""A worker of tests of engines: tells its process, and ends when told to."""

import os
import signal
import socket

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel

if __name__ == "__main__":
    found = environment.take_agent()
    assert found
    channel, member = Channel(socket.socket(fileno=os.dup(found[0]))), found[1]
    print(f"member {member}, {os.environ['OMP_NUM_THREADS']} threads", flush=True)
    channel.send("ready", address=os.environ["DDL_SECRET"], pid=os.getpid())
    channel.send("progress", step=0, loss=0.0, shares=1, busy=0.1, audited=0)
    if member == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    if channel.receive().kind == "exit":
        raise SystemExit(7)
