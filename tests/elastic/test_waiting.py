# SPDX-License-Identifier: Apache-2.0
"""More connections than select.select supports, and long messages."""

import socket
import zlib

import pytest

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel, pack
from ddl_elastic.base.protocol import TO_WORKER, ConnectGroup
from ddl_elastic.base.waiting import ready
from ddl_launch.rank.frames import HEAD, LARGEST, frame

pytestmark = pytest.mark.pure


def test_many_connections() -> None:
    environment.allow_connections()
    pairs = [socket.socketpair() for _ in range(1100)]
    try:
        assert pairs[-1][1].fileno() > 1024
        assert ready([near for near, _ in pairs], 0) == []
        pairs[-1][1].send(b"x")
        pairs[0][1].close()
        assert ready([near for near, _ in pairs], 5) == [pairs[0][0], pairs[-1][0]]
        assert ready([pairs[-1][0]], 0, writes=True) == [pairs[-1][0]]
    finally:
        for pair in pairs:
            for each in pair:
                each.close()


def test_a_plan_of_many_is_compressed() -> None:
    """Without compression it would be longer than a frame may be."""
    addresses = [b"%01600x" % number for number in range(1000)]
    packed = pack(ConnectGroup([*range(1000)], addresses, 1))
    assert len(packed) < LARGEST < sum(map(len, addresses))
    near, far = socket.socketpair()
    with near, far:
        near.sendall(packed)
        message = Channel(far, TO_WORKER).receive()
        assert isinstance(message, ConnectGroup) and message.addresses == addresses


@pytest.mark.parametrize(
    "data",
    [
        b"no zlib",
        zlib.compress(b"{}" * 100)[:-3],
        zlib.compress(b"{}") + b"x",
    ],
)
def test_what_is_no_message(data: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        near.sendall(frame(b"Z", data))
        with pytest.raises(ValueError):
            Channel(far, TO_WORKER).receive()


def test_a_message_that_becomes_too_long() -> None:
    data = zlib.compress(bytes(64 << 20), 9)
    assert len(data) + HEAD.size < LARGEST
    near, far = socket.socketpair()
    with near, far:
        near.sendall(frame(b"Z", data))
        with pytest.raises(ValueError, match="more than 16777216 bytes"):
            Channel(far, TO_WORKER).receive()
