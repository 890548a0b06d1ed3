# SPDX-License-Identifier: Apache-2.0
"""A worker of tests of witnesses: registers an endpoint, as libddl does, and tells of those that it
is told of."""

from __future__ import annotations

import os
import socket

from ddl_elastic import environment
from ddl_elastic.messages import Channel
from ddl_launch import witness

if __name__ == "__main__":
    found = environment.take_agent()
    assert found
    channel, member = Channel(socket.socket(fileno=os.dup(found[0]))), found[1]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + os.environ[witness.VARIABLE])
        connection.sendall(witness.HELLO + bytes([member]) * witness.ID)
        channel.send("ready", address="", pid=os.getpid())
        record = connection.recv(64)
        assert record[: len(witness.ENDED)] == witness.ENDED
        channel.send("line", text=record[len(witness.ENDED) :].hex())
        channel.receive()
