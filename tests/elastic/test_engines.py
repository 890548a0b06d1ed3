# SPDX-License-Identifier: Apache-2.0
"""The requirements of every engine: agents, workers, their exits and their output.

This machine's, and the one whose agents dial in: by themselves; as mpirun starts them on a given
host; and as actors of a Ray cluster do, where Ray is installed (`make test-ray`). Slurm starts them
as a user does, so there is no engine for it; see ../lab.
"""

import atexit
import importlib.util
import itertools
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import clean_environment
from waits import wait_until

import ddl_core
from ddl_elastic.base.messages import Message
from ddl_elastic.base.protocol import ExitWorker, JobChannel, StepCommitted, WorkerReady
from ddl_elastic.engines import (
    AgentSpec,
    Engine,
    Event,
    Handle,
    Program,
    dialing,
    program,
    protocol,
)
from ddl_elastic.engines.agent import is_ordered
from ddl_elastic.engines.dialed import DialedEngine
from ddl_elastic.engines.hosts import HostAgents
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.engines.ray_cluster import RayAgents
from ddl_launch.hosts.layout import parse_hosts
from ddl_launch.rank import frames, witness

LIMIT = 60  # seconds
HELD = 256 << 20  # bytes of a file in memory: closing it takes longer than an order to an agent
WORKER = Path(__file__).parent / "programs" / "engine_worker.py"
PROGRAM = Program(str(WORKER), [], "", ["json"])
TOKEN = "a token of tests"

# If other tests of this process have started threads, the fork server and the agents do not use
# them.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def work(spec: AgentSpec, channel: JobChannel) -> None:
    program.work(spec, channel, WORKER, [], "secret", None)


@contextmanager
def local(slots: int, folder: Path) -> Iterator[Engine]:
    with LocalEngine(work, slots) as engine:
        yield engine


@contextmanager
def dialed(slots: int, folder: Path) -> Iterator[Engine]:
    sizes = [2] * (slots // 2) + [1] * (slots % 2)
    with DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM, print) as engine, ExitStack() as stack:
        agents = [stack.enter_context(dial_in(engine.port, folder, size)) for size in sizes]
        wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"] * slots)
        yield engine
        engine.close()
        assert [agent.wait(LIMIT) for agent in agents] == [0] * len(agents)


@contextmanager
def given(slots: int, folder: Path) -> Iterator[Engine]:
    hosts = parse_hosts(f"localhost:{slots}", "-H")
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM, print) as engine,
        HostAgents(hosts, engine.port, TOKEN, 1) as agents,
    ):
        wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"] * slots)
        assert agents.failure() == ""
        yield engine
        engine.close()  # before its agents


@contextmanager
def ray(slots: int, folder: Path) -> Iterator[Engine]:
    address = cluster_address()
    with (
        DialedEngine(("", 0), TOKEN, PROGRAM, print) as engine,
        RayAgents(address, slots, engine.port, TOKEN, 1) as agents,
    ):
        wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"] * slots)
        assert agents.failure() == ""
        yield engine
        engine.close()  # before its agents


@lru_cache
def cluster_address() -> str:
    """A Ray cluster of this process, which is created once, and ends with it."""
    cluster = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False}
    )
    atexit.register(cluster.shutdown)
    return str(cluster.address)


@contextmanager
def dial_in(
    port: int, folder: Path, slots: int, token: str = TOKEN, before: str = ""
) -> Iterator[subprocess.Popen]:
    # One file for each agent: another agent may be reading its own.
    file = folder / f"token{len(list(folder.glob('token*')))}"
    file.write_text(f"{token}\n")
    code = f"{before}\nimport sys\nfrom ddl_launch.commands.cli import main\nsys.exit(main())"
    order = [sys.executable, "-c", code, "elastic", "agent"]
    order += ["--join", f"127.0.0.1:{port}", "--token-file", str(file), "-n", str(slots)]
    with subprocess.Popen(
        order, cwd=folder, env=clean_environment({}), stderr=subprocess.PIPE, text=True
    ) as agent:
        try:
            yield agent
        finally:
            agent.kill()


Make = Callable[[int, Path], object]


needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (make test-ray)"
)


@pytest.fixture(
    params=[
        local,
        dialed,
        pytest.param(given, marks=pytest.mark.slow),
        pytest.param(ray, marks=[pytest.mark.slow, needs_ray]),
    ]
)
def make(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    mpirun_of: Callable[[str], Path],
) -> Make:
    if request.param is given:
        folders = f"{mpirun_of('openmpi').parent}{os.pathsep}{os.environ['PATH']}"
        monkeypatch.setenv("PATH", folders)
    return request.param


@pytest.fixture
def engine(make: Make, tmp_path: Path) -> Iterator[Engine]:
    with make(3, tmp_path) as engine:
        yield engine


def read_ready(handle: Handle) -> WorkerReady:
    message = handle.channel.receive()
    assert isinstance(message, WorkerReady)
    return message


def ended(engine: Engine) -> Event:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for event in engine.events(1.0):
            if event.kind == "agent ended":
                return event
    pytest.fail(f"no event in {LIMIT} s")


def test_a_worker_ends_by_itself_is_asked_to_and_is_killed(engine: Engine) -> None:
    handles = [engine.start(slot, AgentSpec(n, 2)) for n, slot in enumerate(engine.slots())]
    assert [slot.state for slot in engine.slots()] == ["used"] * 3
    for handle in handles:
        read_ready(handle)
        assert isinstance(handle.channel.receive(), StepCommitted)
    handles[0].channel.send(ExitWorker())
    first = ended(engine)
    assert (first.kind, first.member, first.slot.id, first.code) == ("agent ended", 0, 0, 7)
    engine.stop(handles[1], 60)
    second = ended(engine)
    assert (second.code, second.ordered) == (-signal.SIGTERM, True)
    engine.stop(handles[2], 0.1)  # it is stopped, so it gets no SIGTERM
    assert ended(engine).code == -signal.SIGKILL
    wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"] * 3)
    engine.stop(handles[2], 0)  # too late, and no error
    text = b"".join(engine.logs(handles[1], follow=True))
    assert text == b"member 1, 2 threads\n"
    again = engine.start(engine.slots()[0], AgentSpec(5, 1))
    read_ready(again)
    output = engine.logs(again, follow=True)
    wait_until(lambda: bool(engine.slots()) and next(output) == b"member 5, 1 threads\n")


def test_a_slot_holds_one_agent(engine: Engine) -> None:
    slot = engine.slots()[0]
    engine.start(slot, AgentSpec(0, 1))
    with pytest.raises(ValueError, match="slot 0 is used"):
        engine.start(slot, AgentSpec(1, 1))


def test_closing_ends_all(make: Make, tmp_path: Path) -> None:
    with make(1, tmp_path) as engine:
        handle = engine.start(engine.slots()[0], AgentSpec(2, 1))
        pid = read_ready(handle).pid
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_killed_worker_is_told(engine: Engine) -> None:
    handle = engine.start(engine.slots()[0], AgentSpec(0, 1))
    os.kill(read_ready(handle).pid, signal.SIGKILL)
    event = ended(engine)
    assert (event.member, event.code, event.ordered) == (0, -signal.SIGKILL, False)


def test_a_worker_that_ends_already_when_it_is_to_be_stopped(tmp_path: Path) -> None:
    """The other workers detect the end of its connections first, and report it. The exit must not
    count as caused by the stop that follows."""
    address = str(tmp_path / "others")

    def die_slowly(spec: AgentSpec, channel: JobChannel) -> None:
        # Files that take long to close: before or after the connection, depending on the order in
        # which files are closed.
        files = [os.memfd_create("lower")]
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            files.append(os.memfd_create("higher"))
            for file in files:
                os.posix_fallocate(file, 0, HELD)
            os.kill(os.getpid(), signal.SIGKILL)

    with LocalEngine(die_slowly, 1) as engine, socket.socket(socket.AF_UNIX) as others:
        others.bind(address)
        others.listen()
        others.settimeout(LIMIT)
        handle = engine.start(engine.slots()[0], AgentSpec(0, 1))
        connection, _ = others.accept()
        with connection:
            connection.settimeout(LIMIT)
            assert connection.recv(1) == b""
        engine.stop(handle, 0)
        event = ended(engine)
    assert (event.code, event.ordered) == (-signal.SIGKILL, False)


@pytest.mark.parametrize(
    ("code", "sent", "ordered"),
    [
        (-signal.SIGKILL, [], False),
        (-signal.SIGKILL, [signal.SIGKILL], True),
        (-signal.SIGKILL, [signal.SIGTERM, signal.SIGKILL], True),
        (-signal.SIGSEGV, [signal.SIGKILL], False),
        (1, [signal.SIGKILL], False),
        (1, [signal.SIGTERM], True),
        (0, [signal.SIGTERM, signal.SIGKILL], True),
    ],
)
def test_what_has_ended_a_worker(code: int, sent: list[int], ordered: bool) -> None:
    assert is_ordered(code, sent) == ordered


def test_workers_of_one_job_have_one_secret(engine: Engine) -> None:
    handles = [engine.start(slot, AgentSpec(n, 1)) for n, slot in enumerate(engine.slots())]
    assert len({read_ready(handle).address for handle in handles}) == 1


def test_an_agent_that_is_killed_takes_its_slots_along(tmp_path: Path) -> None:
    with DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM) as engine:
        with dial_in(engine.port, tmp_path, 2) as agent:
            wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"] * 2)
            handle = engine.start(engine.slots()[1], AgentSpec(0, 1))
            pid = read_ready(handle).pid
            agent.kill()
            event = ended(engine)
            assert (event.member, event.code) == (0, -signal.SIGKILL)
            assert "its agent is lost" in event.cause
            assert [slot.state for slot in engine.slots()] == ["lost"] * 2
            wait_until(lambda: not Path(f"/proc/{pid}").exists())
        with dial_in(engine.port, tmp_path, 1):  # another worker replaces it
            wait_until(lambda: [slot.state for slot in engine.slots()][2:] == ["free"])


@pytest.mark.parametrize("late", [False, True])
def test_agents_are_witnesses_for_each_other(tmp_path: Path, late: bool) -> None:
    """The exit of a worker that is killed on one host is reported to a worker on another host, even
    if the witness there does not know this worker yet because its host is busy."""
    words = ["late"] if late else []
    order = Program(str(WORKER.with_name("witnessed_worker.py")), words, "", ["json"])
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, order, print) as engine,
        dial_in(engine.port, tmp_path, 1),
        dial_in(engine.port, tmp_path, 1),
    ):
        wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"] * 2)
        handles = [engine.start(slot, AgentSpec(n, 1)) for n, slot in enumerate(engine.slots())]
        workers = [read_ready(handle) for handle in handles]
        os.kill(workers[1].pid, signal.SIGKILL)
        assert ended(engine).member == 1
        if late:
            wait_until(lambda: engine.slots()[1].state == "free")
            time.sleep(0.5)  # by then it has connected to the fork server, which is stopped
            os.kill(int(workers[0].address), signal.SIGCONT)
        told = handles[0].channel
        wait_until(lambda: bool(engine.slots() and select.select([told], [], [], 0)[0]))
        records = witness.CONTINUES + b"\x11" * 16 + witness.ENDED + b"\x01" * 16
        assert told.receive().text == records.hex()


def test_ends_that_nobody_has_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def work_witnessed(spec: AgentSpec, channel: JobChannel) -> None:
        worker = WORKER.with_name("witnessed_worker.py")
        program.work(spec, channel, worker, [], "secret", None)

    with LocalEngine(work_witnessed, 1) as engine:
        handle = engine.start(engine.slots()[0], AgentSpec(1, 1))
        os.kill(read_ready(handle).pid, signal.SIGKILL)
        ended(engine)
        wait_until(lambda: bool(select.select([engine.witness], [], [], 0)[0]))
    assert "Error" not in capfd.readouterr().err


def test_an_agent_with_another_token_is_refused(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM, said.append) as engine,
        dial_in(engine.port, tmp_path, 1, "another") as agent,
    ):
        wait_until(lambda: engine.slots() == [] and bool(said))
        _, text = agent.communicate(timeout=LIMIT)
        assert agent.returncode == 1
    assert said == ["refused 127.0.0.1: it does not know the job's secret"]
    assert "rejects this agent" in text and "token" in text


def test_an_agent_without_the_program_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    wrong = Program("nowhere.py", [], str(tmp_path), ["json"])
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, wrong, said.append) as engine,
        dial_in(engine.port, tmp_path, 1) as agent,
    ):
        wait_until(lambda: bool(engine.slots()) and bool(said))
        _, text = agent.communicate(timeout=LIMIT)
    assert "there is no such program: 'nowhere.py'" in text
    assert "there is no such program: 'nowhere.py'" in said[0]


@pytest.mark.parametrize("seed", range(6))
def test_garbage_is_refused(seed: int, tmp_path: Path) -> None:
    random_bytes = random.Random(seed)
    said: list[str] = []
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM, said.append) as engine,
        dial_in(engine.port, tmp_path, 1),
    ):
        wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"])
        for round in range(20):
            with socket.create_connection(("127.0.0.1", engine.port)) as newcomer:
                engine.slots()
                nonce = newcomer.recv(4096)[frames.HEAD.size :]
                hello = protocol.seal(protocol.SlotGreeting("x", 0, -1), b"0")
                wrong = bytearray(frames.proven(frames.HELLO, hello, nonce, TOKEN))
                if round % 2:
                    wrong[random_bytes.randrange(len(wrong))] ^= 1 << random_bytes.randrange(8)
                else:
                    wrong = bytearray(random_bytes.randbytes(random_bytes.randrange(1, 200)))
                with suppress(ConnectionError):
                    newcomer.sendall(wrong)
            wait_until(lambda: bool(engine.slots()) and len(said) > round)  # noqa: B023
        handle = engine.start(engine.slots()[0], AgentSpec(0, 1))
        read_ready(handle)
    assert len(said) == 20, said


def test_an_agent_that_is_gone_before_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    hello = protocol.seal(protocol.AgentGreeting("x", "h", "cpu1", 1, slots=2), b"nonce")
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM, said.append) as engine,
        socket.create_connection(("127.0.0.1", engine.port)) as newcomer,
    ):
        engine.slots()
        nonce = newcomer.recv(4096)[frames.HEAD.size :]
        newcomer.sendall(frames.proven(frames.HELLO, hello, nonce, TOKEN))
        monkeypatch.setattr(engine._dial_in, "answer", Mock(side_effect=OSError("it is gone")))
        wait_until(lambda: engine.slots() == [] and bool(said))
        time.sleep(frames.TICK)  # by then it polls its agents
        assert engine.slots() == [] and engine.events(0) == []
    assert "it is gone" in said[0]


def test_messages_may_follow_the_answer_at_once() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(frames.frame(frames.GO, b"settings") + frames.frame(b"x", b"next"))
        assert dialing._read_frame(near) == (frames.GO, b"settings")
        assert near.recv(100) == frames.frame(b"x", b"next")


def test_output_that_cannot_be_kept(tmp_path: Path) -> None:
    said: list[str] = []
    logs = tmp_path / "logs"
    logs.mkdir()
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM, said.append, logs=logs) as engine,
        dial_in(engine.port, tmp_path, 1),
    ):
        wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"])
        logs.rmdir()
        handle = engine.start(engine.slots()[0], AgentSpec(0, 1))
        assert list(engine.logs(handle, follow=True)) == []
        wait_until(lambda: bool(engine.slots()) and bool(said))
        handle.channel.send(ExitWorker())
        assert ended(engine).code == 7
    assert len(said) == 1 and "output of the workers is lost: [Errno 2]" in said[0]


def test_there_is_no_room_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    own, fork, forks = os.getpid(), os.fork, itertools.count()

    def limited() -> int:
        if os.getppid() == own and next(forks) == 1:  # the second worker of the fork server
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    with LocalEngine(work, 2) as engine:
        first = engine.start(engine.slots()[0], AgentSpec(0, 1))
        read_ready(first)
        engine.start(engine.slots()[1], AgentSpec(1, 1))
        event = ended(engine)
        assert (event.member, event.code) == (1, -signal.SIGKILL)
        again = engine.start(engine.slots()[1], AgentSpec(2, 1))
        read_ready(again)
        first.channel.send(ExitWorker())
        assert ended(engine).code == 7


@pytest.mark.parametrize("message", [ExitWorker(), protocol.StartWorker(7, 0, 1)])
def test_an_agent_refuses_what_is_no_order(message: Message, tmp_path: Path) -> None:
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM) as engine,
        dial_in(engine.port, tmp_path, 1) as agent,
    ):
        wait_until(lambda: [slot.state for slot in engine.slots()] == ["free"])
        (control,) = engine._agents.values()
        control.channel.send(message)
        _, text = agent.communicate(timeout=LIMIT)
        assert agent.returncode == 1
    assert "the job sent an invalid message" in text and type(message).__name__ in text


def test_an_agent_of_another_version_is_refused(tmp_path: Path) -> None:
    """The error on both sides names both versions."""
    said: list[str] = []
    newer = "from ddl_elastic.engines import protocol; protocol.VERSION = 77"
    with (
        DialedEngine(("127.0.0.1", 0), TOKEN, PROGRAM, said.append) as engine,
        dial_in(engine.port, tmp_path, 1, before=newer) as agent,
    ):
        wait_until(lambda: engine.slots() == [] and bool(said))
        _, text = agent.communicate(timeout=LIMIT)
        assert agent.returncode == 1
    own, release = protocol.VERSION, ddl_core.version()
    for shown, theirs, ours in ((said[0], 77, own), (text, own, 77)):
        assert f"has version {theirs} of the agents' protocol (libddl {release})" in shown
        assert f"and this process version {ours} (libddl {release}): install one" in shown
