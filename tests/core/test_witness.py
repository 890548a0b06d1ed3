# SPDX-License-Identifier: Apache-2.0
"""The launcher as witness of its ranks' ends, with real sockets and processes that are killed."""

import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Run

from ddl_launch.rank.witness import CONTINUES, ENDED, HELLO, LEAVE, Witness

LIMIT = 10.0

# An endpoint, as libddl registers it.
ENDPOINT = """
import os, socket, sys, time
def connect(name, own):
    witness = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    witness.connect(b"\\0" + name.encode())
    witness.sendall(b"ddlwitn1" + own)
    return witness
"""


class Served:
    """A witness and the loop that serves it."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.told: list[bytes] = []
        self.opened: list[socket.socket] = []
        self.witness = Witness(self.selector, self.told.append)

    def serve(self, seconds: float = 0.0, until: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + seconds
        while True:
            ready = self.selector.select(0.01)
            for key, _ in ready:
                key.data()
            if until() or (not ready and time.monotonic() >= deadline):
                return

    def connect(self, own: bytes = b"") -> socket.socket:
        """An endpoint of this process; without an id it has not registered yet."""
        endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.opened.append(endpoint)
        endpoint.connect(b"\0" + self.witness.name.encode())
        endpoint.setblocking(False)
        endpoint.sendall(HELLO + own if own else b"")
        self.serve()
        return endpoint


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.witness.close()
    assert not served.selector.get_map()
    served.selector.close()
    for endpoint in served.opened:
        endpoint.close()


def own_id(number: int) -> bytes:
    return bytes([number]) * 16


def received(endpoint: socket.socket) -> bytes | None:
    try:
        return endpoint.recv(1000)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""


def test_a_killed_process_is_reported_to_all_others(served: Served) -> None:
    others = [served.connect(own_id(number)) for number in (1, 2)]
    mute = served.connect()
    text = f"{ENDPOINT}\nconnect(sys.argv[1], bytes([9]) * 16)\nprint(flush=True)\ntime.sleep(60)"
    command = [sys.executable, "-c", text.replace("\nconnect(", "\nkept = connect(")]
    with subprocess.Popen([*command, served.witness.name], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        served.serve()
        assert [received(other) for other in others] == [None, None]
        process.send_signal(signal.SIGKILL)
        served.serve(LIMIT, lambda: bool(served.told))
    assert [received(other) for other in others] == [ENDED + own_id(9)] * 2
    assert received(mute) is None  # no message has said which endpoint this is
    assert served.told == [own_id(9)]


def test_a_leaving_process_is_not_reported(served: Served) -> None:
    leaves, stays = served.connect(own_id(1)), served.connect(own_id(2))
    leaves.sendall(LEAVE + own_id(1))
    leaves.close()
    served.serve(0.1)
    assert received(stays) is None
    assert not served.told


def test_end_is_reported_with_the_attempts_by_which_the_process_continued(served: Served) -> None:
    ends, stays = served.connect(own_id(1)), served.connect(own_id(2))
    attempts = [
        bytes([comm]) * 8 + bytes([number]) * 8 for number in (1, 2) for comm in range(1, 11)
    ]
    for attempt in attempts:
        ends.sendall(CONTINUES + attempt)
        served.serve()
    ends.close()
    served.serve(LIMIT, lambda: bool(served.told))
    rest = (0).to_bytes(8, sys.byteorder) + (2**32 - 1).to_bytes(8, sys.byteorder)
    kept = [rest, *attempts[-8:]]  # it stands for the forgotten ones
    expected = b"".join(CONTINUES + attempt for attempt in kept) + ENDED + own_id(1)
    assert received(stays) == expected
    assert served.told == [own_id(1) + b"".join(kept)]
    served.witness.spread(served.told[0])  # like a rank on another host
    assert received(stays) == expected


def test_records_in_pieces_and_two_at_once(served: Served) -> None:
    pieces, stays = served.connect(), served.connect(own_id(2))
    for byte in HELLO + own_id(1):
        pieces.sendall(bytes([byte]))
        served.serve()
    pieces.close()
    served.serve(LIMIT, lambda: bool(served.told))
    assert received(stays) == ENDED + own_id(1)
    once = served.connect()
    once.sendall(HELLO + own_id(3) + LEAVE + own_id(3))
    once.close()
    served.serve(0.1)
    assert received(stays) is None


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 2,
        LEAVE + own_id(1),
        HELLO + own_id(1) + HELLO + own_id(2),
        HELLO + own_id(1) + LEAVE + own_id(2),
        HELLO + own_id(1) + ENDED + own_id(2),
    ],
    ids=["other words", "leave first", "two hellos", "leave of another", "ended"],
)
def test_a_connection_with_a_wrong_record_is_closed(served: Served, said: bytes) -> None:
    client, stays = served.connect(), served.connect(own_id(5))
    client.sendall(said)
    served.serve(0.1)
    assert received(client) == b""
    assert received(stays) is None
    assert not served.told


def test_a_connection_closed_within_a_record_is_not_reported(served: Served) -> None:
    half, stays = served.connect(), served.connect(own_id(5))
    half.sendall(HELLO + own_id(1)[:7])
    half.close()
    served.serve(0.1)
    assert received(stays) is None


def test_a_connection_that_does_not_read_is_closed(served: Served) -> None:
    deaf, reads = served.connect(own_id(1)), served.connect(own_id(2))
    heard = 0
    for number in range(20_000):
        served.witness.spread(number.to_bytes(16, "big"))
        heard += len(received(reads) or b"")
    assert heard == 20_000 * 24
    held = 0
    while data := received(deaf):
        held += len(data)
    assert data == b"", "it is still connected"
    assert 0 < held < 20_000 * 24
    served.witness.spread(own_id(3))
    assert received(reads) == ENDED + own_id(3)


def test_ends_on_other_hosts_are_reported(served: Served) -> None:
    endpoints = [served.connect(own_id(number)) for number in (1, 2)]
    served.witness.spread(own_id(7))
    assert [received(endpoint) for endpoint in endpoints] == [ENDED + own_id(7)] * 2
    assert not served.told  # they know of it


def test_an_end_that_comes_before_the_endpoint_is_known(served: Served) -> None:
    """On a busy host, the witness reads late what the endpoint has sent before its end."""
    late = served.connect()
    late.sendall(HELLO + own_id(1))
    served.witness.spread(own_id(7))
    served.serve()
    assert received(late) == ENDED + own_id(7)
    served.witness.spread(own_id(8))
    assert received(late) == ENDED + own_id(8)


def test_only_the_last_ends_are_remembered(served: Served) -> None:
    for number in range(200):
        served.witness.spread(own_id(number))
    late, told = served.connect(own_id(1)), b""
    while data := received(late):
        told += data
    assert len(told) < 200 * 24
    assert told.endswith(ENDED + own_id(198) + ENDED + own_id(199))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_connections_of_other_users_are_closed(served: Served) -> None:
    stays = served.connect(own_id(1))
    text = (
        f"import os\nos.setuid(65534)\n{ENDPOINT}\nprint(connect(sys.argv[1], b'x' * 16).recv(1))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text, served.witness.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        served.serve(LIMIT, lambda: process.poll() is not None)
        out, err = process.communicate(timeout=LIMIT)
    assert out == b"b''\n" or b"Error" in err  # closed before or after it has written
    served.serve()
    assert received(stays) is None
    assert not served.told


RANKS = f"""
import signal
{ENDPOINT}
rank = int(os.environ["DDL_RANK"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
witness = connect(os.environ["DDL_WITNESS"], bytes([rank]) * 16)
print("ready", flush=True)
open(f"ready.{{rank}}", "w").close()
if rank == 1:
    while not (os.path.exists("ready.0") and os.path.exists("ready.2")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
witness.settimeout({LIMIT})
print(witness.recv(24), flush=True)
"""


def test_ddlrun_is_the_witness(ddlrun: Run) -> None:
    ended = ddlrun(3, RANKS)
    assert ended.code == 128 + signal.SIGKILL
    for rank in (0, 2):
        assert ended.lines(rank) == ["ready", repr(ENDED + own_id(1))], ended.err


NO_ABSTRACT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    int (*next)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    const struct sockaddr_un *name = (const struct sockaddr_un *)address;
    if (address->sa_family == AF_UNIX && length > 2 && !name->sun_path[0]) {
        errno = EINVAL;
        return -1;
    }
    return next(fd, address, length);
}
"""


def test_without_abstract_sockets(run_here: Run, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "none.c").write_text(NO_ABSTRACT)
    library = tmp_path / "none.so"
    command = [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "none.c", "-ldl"]
    subprocess.run(command, check=True)
    (tmp_path / "program.py").write_text(
        "import os; print(os.environ.get('DDL_WITNESS'), os.environ.get('DDL_LAUNCHER'))"
    )
    command = [sys.executable, "-m", "ddl_launch", "-n", "2", "program.py"]
    env = {"LD_PRELOAD": str(library), "DDL_WITNESS": "another", "DDL_LAUNCHER": "another"}
    ended = run_here(command, env=env).expect_success()
    assert sorted(ended.out.splitlines()) == ["[0] None None", "[1] None None"]


SURVIVOR = """
import os, signal
import numpy as np
import ddl_core
comm = ddl_core.init()
comm.barrier()
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ddlrun ends a job that has lost a rank
comm.barrier()
if comm.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        comm.barrier()
except ddl_core.errors.PeerLost:
    survivors = comm.shrink()
ones = np.ones(1)
survivors.allreduce(ones)
print("goes on with", survivors.size, ones[0], flush=True)
"""


def test_survivor_goes_on_by_the_launchers_report(ddlrun: Run) -> None:
    """Over TCP, the loss of the lower half of two ranks looks like a cut network to the other
    rank."""
    ended = ddlrun(2, SURVIVOR, options=["--grace", "10"], env={"DDL_LINKS": "tcp"})
    assert "goes on with 1 1.0" in ended.out, ended
    assert "rank 0" in ended.err
