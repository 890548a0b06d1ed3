# SPDX-License-Identifier: Apache-2.0
"""A worker for tests of engines: sends its process id, and exits when it is told to."""

import os
import signal
import socket

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import TO_WORKER, ExitWorker, StepCommitted, WorkerReady

if __name__ == "__main__":
    found = environment.take_agent()
    assert found
    connection, member = socket.socket(fileno=os.dup(found[0])), found[1]
    channel = Channel(connection, TO_WORKER)
    print(f"member {member}, {os.environ['OMP_NUM_THREADS']} threads", flush=True)
    channel.send(WorkerReady(os.environ["DDL_SECRET"].encode(), os.getpid()))
    channel.send(StepCommitted(0, 0.0, 1, 0.1, 0))
    if member == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    if channel.receive() == ExitWorker():
        raise SystemExit(7)
