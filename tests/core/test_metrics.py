# SPDX-License-Identifier: Apache-2.0
"""Metrics in the format of Prometheus: the text, the server, and init with DDL_METRICS_PORT."""

import os
import re
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run
from ranks import together

from ddl_core import Comm, errors, metrics
from ddl_core.diagnosis.latencies import Latencies
from ddl_core.joining.environment import metrics_port

NAMES = {
    "ddl_operations_total": "counter",
    "ddl_operation_bytes_total": "counter",
    "ddl_pending_operations": "gauge",
    "ddl_deaths_total": "counter",
    "ddl_detection_seconds": "gauge",
    "ddl_operation_seconds": "histogram",
}

INIT = """
import os, urllib.request
import ddl_core
comm = ddl_core.init(ddl_core.Config(timeout=20, operation_timeout=20))
port = int(os.environ["DDL_METRICS_PORT"]) + comm.local_rank
where = f"http://127.0.0.1:{port}/metrics"
comm.barrier()
text = urllib.request.urlopen(where, timeout=10).read().decode()
print([line for line in text.splitlines() if line.startswith("ddl_operations_total")], flush=True)
comm.barrier()
ddl_core.finalize()
try:
    urllib.request.urlopen(where, timeout=10)
except OSError as error:
    print("closed")
"""

TAKEN = """
import logging, os, socket
import ddl_core
logging.basicConfig(format="%(message)s")
with socket.create_server(("127.0.0.1", 0)) as taken:
    os.environ["DDL_METRICS_PORT"] = str(taken.getsockname()[1])
    ddl_core.init().barrier()
"""


def parse(text: str) -> dict[str, dict[str, float]]:
    """Return the value of each name and labels; fails for a line that does not fit the format."""
    values: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r'(\w+)\{((?:\w+="[^"]*",?)+)\} ([0-9.e+-]+)', line)
            assert match, line
            series = values.setdefault(match[1], {})
            assert match[2] not in series, "a series twice"
            series[match[2]] = float(match[3])
    return values


def test_text(pair: tuple[Comm, Comm]) -> None:
    together(lambda rank: pair[rank].allreduce(np.ones(10)), 2)
    work = pair[0].barrier_async()
    told = metrics.text(pair)
    assert dict(re.findall(r"# TYPE (\w+) (\w+)", told)) == NAMES
    values = parse(told)
    parts = {f"ddl_operation_seconds_{part}" for part in ("bucket", "sum", "count")}
    assert values.keys() == (NAMES.keys() - {"ddl_operation_seconds"}) | parts
    for rank, comm in enumerate(pair):
        counters = comm.counters()
        (labels,) = (x for x in values["ddl_deaths_total"] if f'rank="{rank}",size="2"' in x)
        assert values["ddl_operations_total"][labels] == counters["operations"] > 0
        assert values["ddl_operation_bytes_total"][labels] == counters["bytes"] >= 80
        assert values["ddl_pending_operations"][labels] == 1 - rank
        assert values["ddl_detection_seconds"][labels] == 0
    pair[1].barrier()
    work.wait()


def test_all_live_comms(pair: tuple[Comm, Comm]) -> None:
    assert len(parse(metrics.text())["ddl_operations_total"]) >= 2
    assert len(parse(metrics.text(pair))["ddl_operations_total"]) == 2
    pair[0].close()
    assert len(parse(metrics.text(pair))["ddl_operations_total"]) == 1
    assert parse(metrics.text([])) == {}


def test_seconds(pair: tuple[Comm, Comm], monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {**pair[0].counters(), "deaths": 1, "detection_ns": 3_000_000_000}
    monkeypatch.setattr(Comm, "counters", lambda comm: counters)
    values = parse(metrics.text(pair[:1]))
    assert list(values["ddl_detection_seconds"].values()) == [3.0]
    assert list(values["ddl_deaths_total"].values()) == [1]


def test_server(alone: Comm) -> None:
    alone.barrier()
    with metrics.serve(0) as server:
        where = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{where}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert parse(answer.read().decode())["ddl_operations_total"]
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"{where}/secret", timeout=10)
        caught.value.close()
        with pytest.raises(OSError, match="in use"):
            metrics.serve(server.port)
        child = os.fork()  # keeps no port
        if child == 0:
            try:
                server._http.socket.getsockname()
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    server.close()  # again
    metrics.serve(server.port).close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(where, timeout=10)


def test_init_serves_each_rank(ddlrun: Run, find_port: Callable[[], int]) -> None:
    first = find_port()
    while find_port() != first + 1:  # each rank has its own
        first = find_port()
    ended = ddlrun(2, textwrap.dedent(INIT), env={"DDL_METRICS_PORT": str(first)})
    for rank in range(2):
        lines = ended.lines(rank)
        assert f'rank="{rank}",size="2"' in lines[0], ended.err
        assert lines[1:] == ["closed"]


def test_a_taken_port_is_no_error(ddlrun: Run) -> None:
    ended = ddlrun(1, textwrap.dedent(TAKEN)).expect_success()
    assert "rank 0 cannot serve metrics on port" in ended.err


@pytest.mark.parametrize("value", ["x", "0", "65536", "-1"])
def test_wrong_ports(value: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="DDL_METRICS_PORT"):
        metrics_port({"DDL_METRICS_PORT": value})


def test_no_port() -> None:
    assert metrics_port({}) is metrics_port({"DDL_METRICS_PORT": ""}) is None
    assert metrics_port({"DDL_METRICS_PORT": "9400"}) == 9400


def event(number: int, microseconds: float, status: str = "ok") -> dict[str, Any]:
    return {"ph": "X", "dur": microseconds, "args": {"number": number, "status": status}}


def test_latencies_count_each_operation_once() -> None:
    latencies = Latencies()
    latencies.add([event(0, 5), event(1, 2000), event(2, 9, "failed")])
    latencies.add([event(1, 2000), event(3, 3e7), event(4, 2e8)])
    lines = latencies.lines("t", 'rank="0"')
    assert 't_bucket{rank="0",le="1e-05"} 1' in lines
    assert 't_bucket{rank="0",le="0.0025"} 2' in lines
    assert 't_bucket{rank="0",le="50.0"} 3' in lines
    assert lines[-3:-2] == ['t_bucket{rank="0",le="+Inf"} 4']
    assert lines[-1] == 't_count{rank="0"} 4'


def test_dashboard_shows_what_there_is() -> None:
    path = Path(__file__).resolve().parents[2] / "examples" / "grafana.json"
    used = set(re.findall(r"ddl_\w+", path.read_text())) - {"libddl"}
    assert {name.removesuffix("_bucket") for name in used} == set(NAMES)
