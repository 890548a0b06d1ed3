# SPDX-License-Identifier: Apache-2.0
"""The launcher's listening sockets use the ports of DDL_PORTS, as a firewall needs."""

import re
from contextlib import closing

import pytest
from conftest import free_port

from ddl_elastic.engines.agent_listener import AgentListener
from ddl_launch.rank import sockets

pytestmark = pytest.mark.pure


def refuse(*_: object) -> None:
    raise ValueError("no agent is expected")


def test_listeners_take_ports_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("DDL_PORTS", f"{port}-{port + 1}")
    with closing(sockets.listen(1)) as first:
        assert first.getsockname()[1] == port
        with closing(AgentListener(("", 0), "token", refuse, refuse)) as second:
            assert second.port == port + 1
            full = f"no port of DDL_PORTS={port}-{port + 1} is free; make the range larger"
            with pytest.raises(OSError, match=re.escape(full)):
                sockets.listen(1)
    monkeypatch.delenv("DDL_PORTS")
    with closing(sockets.listen(1)) as other:
        assert other.getsockname()[1] not in (0, port, port + 1)


def test_chosen_port_of_agents_needs_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("DDL_PORTS", f"{port + 1}-{port + 1}")
    with closing(AgentListener(("", port), "token", refuse, refuse)) as listener:
        assert listener.port == port


@pytest.mark.parametrize("text", ["x", "0", "5-4", "1-65536", "1-", "-1", "20000,20001"])
def test_wrong_range_is_rejected(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_PORTS", text)
    with pytest.raises(OSError, match=re.escape(f"DDL_PORTS is {text!r}; must be a range")):
        sockets.listen(1)
