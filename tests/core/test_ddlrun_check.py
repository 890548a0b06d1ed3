# SPDX-License-Identifier: Apache-2.0
"""`ddlrun --check` on the hosts of a laboratory, including one with IPv6 alone."""

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_hosts import Hosts

from ddl_launch.base.packages import find_frameworks, find_version
from ddl_launch.check import heat_map
from ddl_launch.lab import Lab, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a laboratory")


def test_check(one: Hosts) -> None:
    code, out, err = one.run("-H", "h1,h2,h3", "--check")
    assert code == 0, err
    assert re.search(r"libddl [\d.]+, Python [\d.]+, numpy", out)
    assert re.search(r"h2 +\d+ cores +\d+ accelerators +eth0 10\.77\.0\.3", out)
    table = out[out.index("one-way latency in us") :].splitlines()
    assert table[1].split() == ["h1", "h2", "h3"]
    assert re.fullmatch(r"h2 +[\d.]+ +- +[\d.]+", table[3])
    assert re.search(r"one way, us: ░ [\d.]+ to █ [\d.]+\nh1   [░▒▓█]{4}\n", out)
    assert re.search(r"bandwidth, Gbit/s: .*\nh1 .*\nh2 [░▒▓█]{2}  [░▒▓█]{2}\n", out)


def test_check_reports_a_host_without_the_framework_once(
    mpirun_of: Callable[[str], Path], tmp_path: Path
) -> None:
    metadata = str(importlib.metadata.distribution("torch")._path)  # type: ignore[attr-defined]
    program = tmp_path / "train.py"
    program.write_text("import ddl.torch as ddl\n")
    with Lab(2) as lab:
        hosts = Hosts(lab, mpirun_of("mpich"), tmp_path)
        assert lab.run("h2", ["mount", "-t", "tmpfs", "none", metadata]).returncode == 0
        code, out, err = hosts.run("-H", "h1,h2", "--check", program)
        assert code == 1
        error = "error: h2 has no torch, which the program imports: install it there"
        assert out.count(error) == 1 and error not in err
        assert "\n1 finding\n" in out
        assert lab.run("h1", ["mount", "-t", "tmpfs", "none", metadata]).returncode == 0
        code, out, _ = hosts.run("-H", "h1,h2", "--check", program)
        assert code == 1 and out.count("which the program imports") == 2
        assert re.search(r"; not installed: (\w+, )*torch", out)
        code, out, _ = hosts.run("-H", "h1,h2", "--check")
        assert code == 0, out


def test_frameworks_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    for text, frameworks in (
        ("import torch.nn as nn", ["torch"]),
        ("from ddl import jax", ["jax"]),
        ("import ddl_torch.elastic as elastic", ["torch"]),
        ("import ddl_horovod.tensorflow.keras as hvd", ["tensorflow", "keras"]),
        ("import ddl, numpy, torchvision", []),
        ("import (", []),
    ):
        program.write_text(text)
        assert find_frameworks(program) == frameworks


def test_tensorflow_cpu_counts_as_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tensorflow_cpu-2.21.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: 2.21.0\n"
    )
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert find_version("tensorflow") == "2.21.0"
    assert find_version("torch") is None


def test_heat_map() -> None:
    latency = [[0, 10, 1000], [0, 0, 100], [0, 0, 0]]
    assert heat_map("one way", "us", ["a", "b", "long"], latency).splitlines() == [
        *("one way, us: ░ 10 to █ 1000", "   a   ░░██", "   b ░░  ▓▓", "long ██▓▓  ")
    ]
    assert heat_map("one way", "us", ["a"], [[0.0]]) == "one way: only one host"


def test_check_names_what_is_slow(mpirun_of: Callable[[str], Path], tmp_path: Path) -> None:
    with Lab(4) as lab:
        shape = "tc qdisc add dev eth0 root tbf rate 400mbit burst 64kb latency 50ms"
        assert lab.run("h4", shape.split()).returncode == 0
        hosts = Hosts(lab, mpirun_of("mpich"), tmp_path)
        code, out, err = hosts.run("-H", "h1,h2,h3,h4", "--check")
    assert code == 0, err
    slow = re.findall(r"warning: between (\w+) and (\w+) only 0\.[2-9]\d Gbit/s", out)
    assert slow == [("h1", "h4"), ("h2", "h4"), ("h3", "h4")], out


def test_hosts_with_ipv6_alone(mpirun_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Open MPI can start ranks there; MPICH and Intel MPI cannot."""
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 localhost\nfd77::1 h1\nfd77::2 h2\n")
    with Lab(2, name="ipv6") as lab:
        for number in (1, 2):
            script = f"""set -e
ip -4 addr flush dev eth0
sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0
ip addr add fd77::{number}/64 dev eth0 nodad
mount --bind {names} /etc/hosts"""
            done = lab.run(f"h{number}", ["sh", "-c", script])
            assert done.returncode == 0, done.stderr
        text = "import numpy as np, ddl_core; comm = ddl_core.init(); "
        text += "x = np.full(3, comm.rank + 1.0); comm.allreduce(x); print(int(x[0]))"
        hosts = Hosts(lab, mpirun_of("openmpi"), tmp_path)
        code, out, err = hosts.run("-H", "h1,h2:2", hosts.program(text))
        assert code == 0, err
        sums = [line.split()[2] for line in out.splitlines()]
        assert sums == ["6", "6", "6"]
        code, out, err = hosts.run("-H", "h1,h2", "--check")
        assert code == 0, err
        assert re.search(r"h2 +\d+ cores +\d+ accelerators +eth0 fd77::2", out), out
