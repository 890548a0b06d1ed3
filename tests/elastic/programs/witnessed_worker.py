# SPDX-License-Identifier: Apache-2.0
"""A worker of tests of witnesses: registers an endpoint, as libddl does, and tells of those that it
is told of. With `late` member 0 first stops the fork server, which is the witness; its pid is told
as the address."""

import os
import signal
import socket
import sys
from pathlib import Path

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import TO_WORKER, OutputLine, WorkerReady
from ddl_launch.rank import witness

if __name__ == "__main__":
    found = environment.take_agent()
    assert found
    connection, member = socket.socket(fileno=os.dup(found[0])), found[1]
    channel = Channel(connection, TO_WORKER)
    server = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(") ")[2].split()[1])
    if "late" in sys.argv and member == 0:
        os.kill(server, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + os.environ[witness.VARIABLE])
        connection.sendall(witness.HELLO + bytes([member]) * witness.ID)
        connection.sendall(witness.CONTINUES + bytes([member + 16]) * witness.ID)
        channel.send(WorkerReady(str(server).encode(), os.getpid()))
        records = connection.recv(48, socket.MSG_WAITALL)
        channel.send(OutputLine(records.hex()))
        channel.receive()
