# SPDX-License-Identifier: Apache-2.0
"""The addresses at which the ranks of a job on one machine listen."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Run, clean_environment

# Each rank prints the addresses of its own listening sockets, as the kernel reports them.
LISTENING = """
import json, os, sys, threading, time
import ddl_core

LISTEN = "0A"

def own_sockets():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return {link[8:-1] for link in links if link.startswith("socket:[")}

def listening():
    own, found = own_sockets(), set()
    for table in ("tcp", "tcp6"):
        if os.path.exists(f"/proc/self/net/{table}"):
            for line in open(f"/proc/self/net/{table}").readlines()[1:]:
                words = line.split()
                if words[3] == LISTEN and words[9] in own:
                    found.add(words[1].rpartition(":")[0])
    return found

seen = set()
if os.environ["DDL_RANK"] == "0":  # of the rendezvous as well, which is over when init returns
    def look():
        while not ddl_core.is_initialized():
            seen.update(listening())
            time.sleep(0.01)
    watcher = threading.Thread(target=look)
    watcher.start()
else:
    time.sleep(0.3)
comm = ddl_core.init(ddl_core.Config(links=["tcp"]))
comm.barrier()
print(json.dumps(sorted(seen | listening())))
comm.barrier()
"""
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def addresses(ended: object) -> set[str]:
    return {address for rank in range(2) for address in json.loads(ended.lines(rank)[0])}  # type: ignore[attr-defined]


def test_ranks_of_one_machine_listen_on_loopback(ddlrun: Run) -> None:
    found = addresses(ddlrun(2, LISTENING).expect_success())
    assert found and found <= LOOPBACK


@pytest.mark.skipif(os.geteuid() != 0, reason="a new network namespace needs root")
def test_loopback_that_is_down_is_reported(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import ddl_core; print(ddl_core.init().size)")
    for words in (("-n", "1", "one.py"), ("-n", "2", "true")):
        command = ["unshare", "--net", sys.executable, "-m", "ddl_launch", *words]
        ended = subprocess.run(
            command, cwd=tmp_path, env=clean_environment(), capture_output=True, timeout=60
        )
        assert ended.returncode == 0, ended.stderr
        assert (b"the loopback interface is down" in ended.stderr) == (words[1] == "2")
        assert ended.stdout == (b"[0] 1\n" if words[1] == "1" else b"")


def test_interfaces_of_the_user_are_kept(ddlrun: Run) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("there is no way to other hosts")
    found = addresses(ddlrun(2, LISTENING, options=["-x", "DDL_INTERFACES="]).expect_success())
    assert found - LOOPBACK
