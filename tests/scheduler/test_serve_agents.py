# SPDX-License-Identifier: Apache-2.0
"""`ddl serve` with the slots of real agents that dial in, leave and are killed."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conftest import clean_environment, free_port
from serving import DDL, LIMIT, STEPS, Serving, holders, is_alive, wait_for

from ddl_elastic.engines import protocol
from ddl_elastic.engines.dialing import dial
from ddl_elastic.engines.host_agent import JoinRefused


class AgentServing(Serving):
    """A service with the slots of agents."""

    def __init__(self, folder: Path) -> None:
        self.token = folder / "token"
        self.token.write_text("what only agents know\n")
        self.agents: list[subprocess.Popen[bytes]] = []
        self._port = 0
        super().__init__(folder)

    def start(self) -> None:
        self.options = ["--agents", f"127.0.0.1:{self._port}", "--token-file", self.token]
        super().start()
        log = self.folder / "serve.log"
        found = wait_for(lambda: re.findall(r"for agents on port (\d+)", log.read_text()))
        self._port = int(found[-1])

    def agent(self, slots: int) -> subprocess.Popen[bytes]:
        where = ["--join", f"127.0.0.1:{self._port}", "--token-file", self.token]
        order = [*DDL, "elastic", "agent", *map(str, where), "-n", str(slots)]
        with (self.folder / "agents.log").open("ab") as log:
            self.agents.append(
                subprocess.Popen(
                    order, cwd=self.folder, env=clean_environment({}), stdout=log, stderr=log
                )
            )
        return self.agents[-1]

    def close(self) -> None:
        super().close()
        for agent in self.agents:
            agent.terminate()
            agent.wait(LIMIT)

    def alive(self, job: int) -> list[int]:
        return [pid for pid in self.pids(job) if is_alive(pid)]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[AgentServing]:
    made = AgentServing(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_agents_come_and_go(serving: AgentServing, alone: str, tmp_path: Path) -> None:
    """A job waits for a first agent, grows with the second, and continues without the service and
    after an agent is killed or leaves."""
    go = tmp_path / "go"
    job = serving.submit(*STEPS, "--go", go, "--every", 5)
    first = serving.agent(1)
    wait_for(lambda: len(serving.alive(job)) == 1)
    second = serving.agent(2)
    wait_for(lambda: len(serving.alive(job)) == 3)
    serving.kill()
    serving.start()
    serving.wait_for_size(job, 3)
    lines = (serving.folder / "agents.log").read_text().splitlines()
    for text in ("connected to the service", "the service is away; running jobs continue"):
        assert lines.count(f"ddl elastic agent: {text}") == 2
    assert len(serving.pids(job)) == 3  # no worker was restarted
    second.kill()
    wait_for(lambda: len(serving.alive(job)) == 1)
    serving.wait_for_size(job, 1)
    third = serving.agent(1)
    wait_for(lambda: len(serving.alive(job)) == 2)
    serving.wait_for_size(job, 2)
    first.send_signal(signal.SIGTERM)  # like Slurm at the end of an allocation
    assert first.wait(LIMIT) == 0
    wait_for(lambda: len(serving.alive(job)) == 1)
    go.touch()
    serving.wait(job, "done")
    assert serving.state(job) == alone
    assert third.poll() is None
    report = serving.folder_of(job).result()["report"]
    died = [event["cause"] for event in report["events"] if event["kind"] == "died"]
    assert len(died) == 2 and all("agent is lost" in cause for cause in died)
    assert any(event["kind"] == "left" for event in report["events"])


@pytest.mark.slow
def test_all_agents_are_lost(serving: AgentServing, alone: str, tmp_path: Path) -> None:
    """The job resumes from its newest checkpoint once other agents have connected. The same happens
    when its run is killed, whose workers then end."""
    go = tmp_path / "go"
    job = serving.submit(*STEPS, "--go", go, "--share", 0.01, "--every", 5)
    agent = serving.agent(1)
    saved = serving.folder_of(job).checkpoints / "0"
    wait_for(lambda: list(saved.glob("steps-*.json")))
    agent.kill()
    wait_for(lambda: not serving.alive(job))
    serving.agent(1)
    wait_for(lambda: len(serving.alive(job)) == 1)
    worker = serving.alive(job)[0]
    run = holders(serving.folder_of(job).path / "lock")[0]
    os.kill(run, signal.SIGKILL)
    wait_for(lambda: len(serving.pids(job)) == 3)
    assert not is_alive(worker)
    go.touch()
    serving.wait(job, "done")
    assert serving.state(job) == alone
    log = serving.folder_of(job).events.read_text()
    assert log.count("is lost") >= 1


@pytest.mark.slow
def test_all_agents_are_lost_after_a_worker_was_replaced(
    serving: AgentServing, alone: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    job = serving.submit(*STEPS, "--go", go, "--share", 0.02, "--every", 5)
    agent = serving.agent(3)
    wait_for(lambda: len(serving.alive(job)) == 3)
    os.kill(serving.alive(job)[0], signal.SIGKILL)
    wait_for(lambda: len(serving.pids(job)) == 4)
    serving.store.job_scale(job, 1, 2, time.time())
    wait_for(lambda: len(serving.alive(job)) == 2)
    saved = serving.folder_of(job).checkpoints / "0"
    wait_for(lambda: list(saved.glob("steps-*.json")))
    agent.kill()
    wait_for(lambda: not serving.alive(job))
    serving.agent(1)
    wait_for(lambda: len(serving.alive(job)) == 1)
    go.touch()
    serving.wait(job, "done")
    assert serving.state(job) == alone


def test_ports_of_jobs_are_in_the_given_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = [str(free_port()) for _ in range(2)]
    allowed = f"{ports[0]}-{ports[1]}"
    monkeypatch.setattr(
        "serving.clean_environment", lambda _: clean_environment({"DDL_PORTS": allowed})
    )
    with closing(AgentServing(tmp_path)) as serving:
        agent_port, go = serving._port, tmp_path / "go"
        assert str(agent_port) == ports[0]  # of --agents 0
        job = serving.submit("--steps", 3, "--go", go)
        serving.agent(1)
        wait_for(lambda: len(serving.alive(job)) == 1)
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("", int(ports[1])))  # where the job's run listens
        serving.agent(1)
        later = serving.submit("--steps", 3)
        log = serving.folder / "serve.log"
        wait_for(lambda: f"no port of DDL_PORTS={allowed} is free" in log.read_text())
        assert serving.record(later).state == "waiting"
        go.touch()
        serving.wait(job, "done")
        serving.wait(later, "done")


def test_agent_of_another_protocol_is_refused(
    serving: AgentServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = protocol.AgentGreeting("old", "h", "cpu", 1, 1)
    address, token = ("127.0.0.1", serving._port), serving.token.read_text().strip()
    with pytest.raises(JoinRefused, match=f"127.0.0.1:{serving._port} rejects this agent"):
        dial(address, token, protocol.SlotGreeting("old", 0, -1))
    log = serving.folder / "serve.log"
    wait_for(lambda: "refused 127.0.0.1: a greeting of an agent named 'old'" in log.read_text())
    with monkeypatch.context() as other:
        other.setattr(protocol, "VERSION", 77)
        with pytest.raises(JoinRefused, match="process version 77 .*: install one version"):
            dial(address, token, about)
    wait_for(lambda: "refused 127.0.0.1: the agent has version 77 of" in log.read_text())
    dial(address, token, about)[0].close()
    wait_for(lambda: "agent old has connected with 1 slots" in log.read_text())


def test_a_program_that_is_not_there(serving: AgentServing) -> None:
    serving.agent(1)
    job = serving.submit(command=["missing.py"])
    serving.wait(job, "failed")
    texts = [text for _, _, of, text in serving.store.events() if of == job]
    assert "there is no such program" in " ".join(texts)


@pytest.mark.slow
def test_jobs_share_an_agent(serving: AgentServing, alone: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    serving.agent(2)
    jobs = [serving.submit(*STEPS, "--go", go) for _ in range(2)]
    wait_for(lambda: all(len(serving.alive(job)) == 1 for job in jobs))
    go.touch()
    for job in jobs:
        serving.wait(job, "done")
        assert serving.state(job) == alone


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--agents", "1"], "--agents requires --token-file"),
        (["--agents", "1", "--ray", "auto"], "--ray and --agents exclude each other"),
    ],
)
def test_wrong_usage(options: list[str], said: str, tmp_path: Path) -> None:
    order = [*DDL, "serve", "--store", "a.db", *options]
    done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr


def test_agent_with_fewer_ports_than_slots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("what only agents know\n")
    order = [*DDL, "elastic", "agent", "--join", "127.0.0.1:1", "--token-file", "token", "-n", "3"]
    environment = clean_environment({"DDL_PORTS": "20000-20001"})
    ended = subprocess.run(
        order, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert ended.returncode == 2
    assert "DDL_PORTS=20000-20001 has 2 ports; the workers of 3 slots need one" in ended.stderr


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("what only agents know\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        order = [*DDL, "serve", "--store", tmp_path / "jobs.db", "--listen", "0", "--token-file"]
        order += [tmp_path / "token", "--agents", f"127.0.0.1:{port}"]
        ended = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 2, ended.stderr
    assert f"ddl: --agents 127.0.0.1:{port}: Address already in use" in ended.stderr
