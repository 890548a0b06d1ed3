# SPDX-License-Identifier: Apache-2.0
"""Comms, endpoints and works in one process: alone, or with ranks as threads."""

import gc
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ranks import LIMIT, join, together

import ddl_core
from ddl_core import Comm, Config, Endpoint
from ddl_core.errors import Aborted, Expired, InvalidArgument, InvalidState, PeerLost, TimedOut


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, a: c.allreduce(a, op="mean"), "op is 'mean'; must be one of sum, average"),
        (lambda c, a: c.allreduce(a, op=["sum"]), "op is .'sum'.; must be one of"),
        (lambda c, a: c.allreduce(a, a[:3].copy()), "recv has 3 elements; must have 4: like send"),
        (lambda c, a: c.allreduce(a, np.zeros(4)), "recv has dtype float64, but send has float32"),
        (lambda c, a: c.allreduce(a.astype(object)), "send has dtype object; must be one of"),
        (lambda c, a: c.allreduce(a[::2]), "send: .*not C-contiguous"),
        (lambda c, a: c.allreduce(a, timeout=0), "timeout is 0; must be a positive number"),
        (lambda c, a: c.allreduce(a, timeout="1m"), "timeout is '1m'; must be a number"),
        (
            lambda c, a: c.reduce_scatter(a, np.zeros(3, "f4")),
            "send has 4 elements; must have 6: 2",
        ),
        (
            lambda c, a: c.reduce_scatter(a[:3]),
            "send has 3 elements, which cannot be divided into 2",
        ),
        (
            lambda c, a: c.allgather(a, np.zeros(4, "f4")),
            "recv has 4 elements; must have 8: 2 blocks",
        ),
        (lambda c, a: c.allgather(a[:1]), "send has 1 elements, which cannot be divided into 2"),
        (lambda c, a: c.broadcast(a, 2), "root is 2; must be from 0 to 1"),
        (lambda c, a: c.broadcast(a, -1), "root is -1; must be from 0 to 1"),
        (lambda c, a: c.broadcast(a, 2**40), "root is 1099511627776; must be from 0 to 1"),
        (lambda c, a: c.broadcast(a, "0"), "root is '0'; must be an integer"),
        (lambda c, a: c.broadcast(bytes(4)), "array: bytes is read-only"),
        (lambda c, a: c.allreduce(a[:3], a[1:]), "send and recv overlap"),
        (lambda c, a: c.allreduce_async(a[:3], a[1:]), "send and recv overlap"),
    ],
)
def test_refused_calls_change_nothing(
    pair: tuple[Comm, Comm], call: Callable[[Comm, Any], Any], message: str
) -> None:
    array = np.arange(4, dtype=np.float32)
    with pytest.raises(InvalidArgument, match=message):
        call(pair[0], array)
    assert array.tolist() == [0, 1, 2, 3]
    # The other rank has not noticed this, and all operations continue.
    both = [np.ones(1), np.ones(1)]
    together(lambda rank: pair[rank].allreduce(both[rank]), 2)
    assert [a[0] for a in both] == [2, 2]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(links=["udp"]), "links is .'udp'.; must be one or more of inproc, shm, tcp"),
        (Config(links=[]), "links is ..; must be one or more"),
        (Config(timeout=-1), "timeout is -1; must be a positive"),
        (Config(timeout=float("nan")), "timeout is nan; must be a positive"),
        (Config(operation_timeout=0), "operation_timeout is 0; must"),
        (Config(tag=-1), "tag is -1; must be from 0"),
        (Config(epoch=2**64), "epoch is 18446744073709551616; must be from"),
        (Config(segment_bytes=2**40), "segment_bytes is 1099511627776"),
    ],
)
def test_bad_config_is_refused(config: Config, message: str) -> None:
    with Endpoint() as endpoint, pytest.raises(InvalidArgument, match=message):
        endpoint.connect([endpoint.address], 0, config)
    with pytest.raises(InvalidArgument, match=message):
        ddl_core.init(config)
    assert not ddl_core.is_initialized()


@pytest.mark.parametrize(
    ("addresses", "rank", "message"),
    [
        (lambda own: [own], 1, "rank is 1; must be from 0 to 0"),
        (lambda own: [own], -1, "rank is -1; must be from 0 to 0"),
        (lambda own: [], 0, "size is 0"),
        (lambda own: [b"nonsense"], 0, "not a libddl address"),
        (lambda own: [own[:-1]], 0, "address"),
    ],
)
def test_bad_address_list_is_refused(addresses: Any, rank: int, message: str) -> None:
    with Endpoint() as endpoint, pytest.raises(InvalidArgument, match=message):
        endpoint.connect(addresses(endpoint.address), rank, Config(timeout=2))


@pytest.mark.parametrize(
    ("url", "rank", "size", "message"),
    [
        ("udp://127.0.0.1:1", 0, 2, "udp://127.0.0.1:1"),
        ("tcp://127.0.0.1", 0, 2, "tcp://127.0.0.1"),
        ("tcp://127.0.0.1:70000", 0, 2, "70000"),
        ("tcp://127.0.0.1:29999", 2, 2, "rank is 2 and size is 2"),
        ("tcp://127.0.0.1:29999", -2, 2, "rank is -2"),
        ("tcp://127.0.0.1:29999", 0, -1, "size is -1"),
    ],
)
def test_bad_rendezvous_is_refused(url: str, rank: int, size: int, message: str) -> None:
    with Endpoint() as endpoint, pytest.raises(InvalidArgument, match=message):
        endpoint.rendezvous(url, rank, size, Config(timeout=2))


def test_host_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(ddl_core.DdlError, match="203.0.113.1"):
        Endpoint(host="203.0.113.1")


def test_interfaces_and_ports_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidArgument, match='"nonesuch"; this host has'):
        Endpoint(interfaces="nonesuch")
    with pytest.raises(InvalidArgument, match="20000-20100"):
        Endpoint(ports="many")
    with pytest.raises(InvalidArgument, match="sockets"):
        Endpoint(sockets=-1)
    with Endpoint(interfaces="lo", sockets=2) as endpoint:
        assert b"lo" in endpoint.address


@pytest.fixture
def url(find_port: Callable[[], int]) -> str:
    return f"tcp://127.0.0.1:{find_port()}"


@pytest.mark.parametrize(
    ("rank", "message"), [(0, "have rank 0 of 2, waiting for 1"), (1, "{url}")]
)
def test_rendezvous_alone_times_out(url: str, rank: int, message: str) -> None:
    started = time.monotonic()
    with Endpoint() as endpoint:
        with pytest.raises(ddl_core.errors.RetryError, match=message.format(url=url)) as caught:
            endpoint.rendezvous(url, rank, 2, Config(timeout=1))
        assert isinstance(caught.value, (TimeoutError, ConnectionError))
        # The endpoint continues to exist.
        assert endpoint.connect([endpoint.address], 0).size == 1
    assert 0.5 < time.monotonic() - started < 10


def test_rendezvous_with_another_secret_is_refused(url: str) -> None:
    with Endpoint(secret="ours") as ours, Endpoint(secret="theirs") as theirs:
        endpoints = [ours, theirs]

        def attempt(rank: int) -> ddl_core.DdlError:
            with pytest.raises(ddl_core.errors.RetryError) as caught:
                endpoints[rank].rendezvous(url, rank, 2, Config(timeout=2))
            return caught.value

        _, refused = together(attempt, 2)
    assert isinstance(refused, ddl_core.errors.Refused)


def test_rendezvous_of_threads(url: str) -> None:
    with Endpoint() as a, Endpoint() as b, Endpoint() as c:
        endpoints = [a, b, c]
        comms = together(lambda rank: endpoints[rank].rendezvous(url, rank, 3), 3)
        arrays = [np.full(5, rank, np.int32) for rank in range(3)]
        together(lambda rank: comms[rank].allreduce(arrays[rank]), 3)
        assert [array.tolist() for array in arrays] == [[3] * 5] * 3


@pytest.mark.parametrize("links", ["inproc", "tcp"])
def test_one_endpoint_has_many_comms(links: str) -> None:
    with Endpoint() as a, Endpoint() as b:
        comms = [join([a, b], Config(links=[links], tag=tag)) for tag in (1, 2)]
        for tag, pair in enumerate(comms):
            arrays = [np.full(3, tag + rank) for rank in range(2)]
            together(lambda r, pair=pair, arrays=arrays: pair[r].allreduce(arrays[r], op="max"), 2)
            assert arrays[0].tolist() == [tag + 1] * 3


def test_wait_times_out(pair: tuple[Comm, Comm]) -> None:
    array = np.ones(4, np.float32)
    work = pair[0].allreduce_async(array)
    started = time.monotonic()
    with pytest.raises(TimedOut, match="still pending after 0.3 s"):
        work.wait(0.3)
    assert 0.25 < time.monotonic() - started < 5
    with pytest.raises(TimedOut):
        work.wait(0)
    assert not work.done()
    pair[1].allreduce(np.ones(4, np.float32))
    assert work.wait(LIMIT) is array
    assert array.tolist() == [2] * 4
    assert work.wait(0) is array


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_work_refuses_bad_timeouts(pair: tuple[Comm, Comm], seconds: float) -> None:
    work = pair[0].barrier_async()
    with pytest.raises(InvalidArgument, match="timeout"):
        work.wait(seconds)


def test_arrays_of_a_dropped_work_stay_alive(pair: tuple[Comm, Comm]) -> None:
    data = bytearray(8)
    pair[0].allreduce_async(data)
    gc.collect()
    with pytest.raises(BufferError):  # still in use
        data.extend(b"more")
    pair[1].allreduce(bytearray(b"\1" * 8))
    deadline = time.monotonic() + LIMIT
    while data[0] != 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bytes(data) == b"\1" * 8
    together(lambda rank: pair[rank].barrier_async().wait(), 2)
    data.extend(b"more")


def test_waiting_releases_the_gil(pair: tuple[Comm, Comm]) -> None:
    counted = 0
    waiting = threading.Thread(target=pair[0].barrier)
    waiting.start()
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        counted += 1
    assert waiting.is_alive()
    pair[1].barrier()
    waiting.join(LIMIT)
    assert counted > 1000


def test_operations_time_limit_kills_the_comm(pair: tuple[Comm, Comm]) -> None:
    started = time.monotonic()
    with pytest.raises(Expired, match="limit of 300 ms"):
        pair[0].allreduce(np.ones(4), timeout=0.3)
    assert time.monotonic() - started < 10
    assert isinstance(pair[0].error, Expired)
    with pytest.raises(ddl_core.errors.CommDead):
        pair[0].barrier()


def test_abort_ends_the_comm_on_all_ranks(pair: tuple[Comm, Comm]) -> None:
    assert pair[0].error is None
    work = pair[1].barrier_async()
    pair[0].abort("out of patience")
    with pytest.raises(Aborted, match="out of patience"):
        work.wait(LIMIT)
    with pytest.raises(Aborted, match="out of patience"):
        pair[0].barrier()
    assert isinstance(pair[1].error, Aborted)


def test_leaving_fails_the_others_operation(pair: tuple[Comm, Comm]) -> None:
    pair[1].close()
    with pytest.raises(PeerLost, match="rank 1.*left"):
        pair[0].allreduce(np.ones(4))


def test_close_ends_a_wait_in_another_thread(pair: tuple[Comm, Comm]) -> None:
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            pair[0].barrier()
        except ddl_core.DdlError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not pair[0].counters()["pending"]:
        time.sleep(0.01)
    pair[0].close()
    waiting.join(LIMIT)
    assert [type(error) for error in caught] == [Aborted]


def test_works_outlive_their_comm(pair: tuple[Comm, Comm]) -> None:
    work = pair[0].allreduce_async(np.ones(4))
    pair[0].close()
    assert work.done()
    with pytest.raises(Aborted):
        work.wait()


def test_closed_comm(alone: Comm) -> None:
    assert not alone.closed
    alone.close()
    alone.close()
    assert alone.closed
    for call in (alone.barrier, lambda: alone.error, alone.abort):
        with pytest.raises(InvalidState, match="the comm is closed"):
            call()
    assert repr(alone) == "<ddl_core.Comm, rank 0 of 1, closed>"


def test_closed_endpoint() -> None:
    endpoint = Endpoint()
    comm = endpoint.connect([endpoint.address], 0)
    endpoint.close()
    endpoint.close()
    assert comm.closed
    with pytest.raises(InvalidState, match="the endpoint is closed"):
        endpoint.connect([b""], 0)
    with pytest.raises(InvalidState, match="the endpoint is closed"):
        _ = endpoint.address


def _in_child(comm: Comm, answers: Any) -> None:
    try:
        comm.barrier()
    except ddl_core.DdlError as error:
        answers.put((type(error).__name__, str(error)))
    comm.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_cannot_use_inherited_handles(alone: Comm) -> None:
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=_in_child, args=(alone, answers))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == 0
    name, message = answers.get()
    assert name == "InvalidState"
    assert "forked" in message
    array = np.ones(3)
    assert alone.allreduce(array) is array


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("DDL_RANK", "DDL_SIZE", "DDL_RENDEZVOUS", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    ddl_core.finalize()


@pytest.mark.usefixtures("no_launcher")
def test_second_init_names_the_first() -> None:
    with pytest.raises(InvalidState, match="call ddl_core.init"):
        ddl_core.world()
    comm = ddl_core.init()
    assert ddl_core.world() is comm
    with pytest.raises(InvalidState, match=r"initialized already, as rank 0 of 1 \(alone\)"):
        ddl_core.init()
    ddl_core.finalize()
    ddl_core.finalize()
    assert comm.closed
    assert not ddl_core.is_initialized()


@pytest.mark.usefixtures("no_launcher")
def test_init_works_again_after_close() -> None:
    for _ in range(3):
        with ddl_core.init() as comm:
            assert comm.allreduce(np.ones(1))[0] == 1


@pytest.mark.usefixtures("no_launcher")
def test_failed_init_frees_everything(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("DDL_RANK", "0")
    monkeypatch.setenv("DDL_SIZE", "2")
    monkeypatch.setenv("DDL_RENDEZVOUS", url)
    with pytest.raises(TimedOut):
        ddl_core.init(Config(timeout=0.5))
    assert not ddl_core.is_initialized()
    monkeypatch.setenv("DDL_SIZE", "1")
    assert ddl_core.init().size == 1


@pytest.mark.usefixtures("no_launcher")
def test_init_warns_in_a_batch_shell(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    caplog.set_level("INFO", logger="ddl_core")
    assert ddl_core.init().size == 1
    warning, info = caplog.records
    assert (warning.levelname, info.levelname) == ("WARNING", "INFO")
    assert "srun did not start this process" in warning.message
    assert "rank 0 of 1, launcher: alone" in info.message


@pytest.mark.usefixtures("no_launcher")
def test_mpirun_without_mpi4py_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(ddl_core.errors.Unsupported, match=r"pip install 'libddl\[mpi\]'"):
        ddl_core.init()
