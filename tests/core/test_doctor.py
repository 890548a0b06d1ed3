# SPDX-License-Identifier: Apache-2.0
"""`ddl doctor`, on this machine, and on others whose files are simulated."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

import pytest
from conftest import Run

import ddl_core
from ddl_core import Config, Endpoint, errors
from ddl_launch.commands import doctor, installation, machine, selftest
from ddl_launch.commands.cli import main
from ddl_launch.commands.finding import Finding

DOCTOR = [sys.executable, "-m", "ddl_launch.commands", "doctor"]


def tell(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def without_info(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not import the frameworks to ask for their native parts, which takes seconds."""
    monkeypatch.setattr(installation, "_info", lambda adapter: "")


def levels(found: list[Finding]) -> dict[str, str]:
    return {f.what: f.level for f in found}


def test_reader_that_leaves() -> None:
    cluster = Path(__file__).parents[2] / "examples" / "clusters" / "lab.toml"
    command, pipe = [*DOCTOR[:-1], "plan", cluster], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as ended:
        assert ended.stdout and ended.stderr
        ended.stdout.close()
        assert ended.stderr.read() == b""
    assert ended.returncode == 128 + signal.SIGPIPE


def test_this_machine(run_here: Run) -> None:
    ended = run_here([*DOCTOR, "--ranks", "2"])
    assert ended.code == ("\nBAD " in ended.out), ended.out + ended.err
    for word in ("libddl", "eth0" if Path("/sys/class/net/eth0").exists() else "lo ", "cores"):
        assert word in ended.out
    assert re.search(r"^ +libcrypto +usable", ended.out, re.M), ended.out
    trials = [line for line in ended.out.splitlines() if "two ranks" in line]
    assert ["shared memory: " in line for line in trials] == [True, False], ended.out
    assert ["loopback: " in line for line in trials] == [False, True]
    assert all("8 B in " in line and "1 MiB in " in line for line in trials)


def test_ucx_is_missing_where_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    (found,) = installation.ucx()
    assert found.what == "UCX" and "RDMA devices: " in found.told
    monkeypatch.setattr(installation.ctypes, "CDLL", missing)
    (found,) = installation.ucx()
    has_devices = "RDMA devices: none" not in found.told
    assert found.level == ("note" if has_devices else "ok") and "not " in found.told


@pytest.mark.usefixtures("without_info")
def test_what_is_wrong_gives_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-test", "--ranks", "1000000000", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["healthy"]
    (bad,) = (f for f in told["findings"] if f["what"] == "open files")
    assert bad["level"] == "wrong" and bad["change"].startswith("ulimit -Hn 3000000064")
    assert not any(f["what"] == "two ranks" for f in told["findings"])


@pytest.mark.usefixtures("without_info")
def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-test", "--ranks", "1000000000"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (bad,) = (i for i, line in enumerate(lines) if line.startswith("BAD  open files"))
    assert "-> ulimit -Hn 3000000064" in lines[bad + 1]
    assert re.fullmatch(r"errors: [1-9], notes: \d", lines[-1])


def test_how_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (("RANK", "3"), ("SIZE", "700"), ("RENDEZVOUS", "tcp://a:1")):
        monkeypatch.setenv(f"DDL_{variable}", value)
    assert any(" 700 ranks" in f.told for f in doctor.findings(test=False))
    monkeypatch.setenv("DDL_LOCAL_SIZE", "701")
    assert any("a job of 701 takes about 2167" in f.told for f in doctor.findings(test=False))
    monkeypatch.setenv("DDL_LOCAL_SIZE", "7")
    monkeypatch.setenv("DDL_SOCKETS", "4")
    assert any("a job of 700 takes about 9164" in f.told for f in doctor.findings(test=False))
    assert any(" 7 ranks" in f.told for f in doctor.findings(test=False))
    monkeypatch.setenv("DDL_LOCAL_SIZE", "701")
    assert any(" 701 ranks" in f.told for f in doctor.findings(test=False))
    assert any(" 702 ranks" in f.told for f in doctor.findings(702, test=False))


@pytest.mark.usefixtures("without_info")
@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("DDL_INTERFACES", "nothere", "this host has "),
        ("DDL_RANK", "x", "DDL_RANK"),
        ("DDL_METRICS_PORT", "x", "DDL_METRICS_PORT"),
    ],
)
def test_a_wrong_environment(
    variable: str,
    value: str,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["doctor", "--no-test", "--ranks", "1"]) == 1
    (bad,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("BAD"))
    assert word in bad


def test_interfaces_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint(interfaces="lo") as endpoint:
        found = installation.interfaces(endpoint.address)
        with pytest.raises(ValueError, match="truncated"):
            installation.interfaces(endpoint.address[:-5])
        with pytest.raises(ValueError, match="format 99"):
            installation.interfaces(endpoint.address[:4] + b"\x63\0" + endpoint.address[6:])
    assert (found[0].name, found[0].address, found[0].loopback) == ("lo", "127.0.0.1/8", True)
    monkeypatch.setenv("DDL_INTERFACES", "lo")
    told = list(installation.network())
    assert told[-1].level == "note" and "only loopback is used" in told[-1].told


def test_a_container(tmp_path: Path) -> None:
    """A quota on a parent, little memory, and a seccomp filter."""
    tell(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    tell(tmp_path, "sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    tell(tmp_path, "sys/fs/cgroup/a/b/cpu.max", "900000 100000\n")
    tell(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    tell(tmp_path, "proc/meminfo", "MemTotal: 9\nMemAvailable:   16777216 kB\n")
    tell(tmp_path, "sys/fs/cgroup/memory.max", f"{1 << 30}\n")
    tell(tmp_path, "sys/fs/cgroup/memory.current", f"{900 << 20}\n")
    tell(tmp_path, "proc/self/status", "Name:\tx\nSeccomp:\t2\n")
    usable = len(os.sched_getaffinity(0))
    found = list(machine.cores(2, tmp_path))
    expected = "wrong" if usable >= 2 else "ok"
    assert levels(found)["cpu quota"] == expected and "1.5 cores" in found[-1].told
    assert levels(list(machine.cores(1, tmp_path)))["cpu quota"] == "ok"
    (memory, *_) = machine.memory(2, tmp_path)
    assert memory.level == "note" and "124 MiB left of the cgroup's 1 GiB" in memory.told
    assert list(machine.kernel(tmp_path))[-1].told == "a filter is active"


def test_cgroup_1_and_none(tmp_path: Path) -> None:
    assert "cpu quota" not in levels(list(machine.cores(1, tmp_path)))
    tell(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/job\n")
    tell(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    tell(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    found = list(machine.cores(1, tmp_path))
    assert levels(found)["cpu quota"] == "wrong" and "0.5 cores" in found[-1].told
    assert "mount /proc" in next(machine.memory(1, tmp_path)).change


def test_more_ranks_than_cores(tmp_path: Path) -> None:
    (found,) = machine.cores(100_000, tmp_path)
    assert found.level == "note" and "taskset" in found.change


def test_what_the_kernel_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    tell(tmp_path, "proc/self/status", "Name:\tx\nSeccomp:\t2\n")
    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    found = {f.what: f for f in machine.kernel(tmp_path)}
    assert found["sealed memfd"].level == "note"
    assert "TCP" in found["sealed memfd"].told
    assert "seccomp filter" in found["sealed memfd"].change
    assert found["pidfd"].level == "ok" and "libddl works without it" in found["pidfd"].told
    assert found["abstract unix socket"].told == found["timerfd"].told == "usable"


def test_a_slow_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    tell(tmp_path, name, "hpet\n")
    monkeypatch.setattr(machine, "_CLOCK_SLOW", 0)
    (found,) = machine.clock(tmp_path)
    assert found.level == "note" and "hpet" in found.told and "clocksource=tsc" in found.change
    tell(tmp_path, name, "tsc\n")
    assert next(machine.clock(tmp_path)).level == "ok"


def test_native_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_CACHE", str(tmp_path))
    versions = {"torch": "2.13.0", "libddl": ddl_core.version(), "jax": "0.9.1"}
    monkeypatch.setattr(installation, "find_version", versions.get)
    monkeypatch.setattr(installation, "_least", {"torch": "2.6", "jax": "0.10"}.get)
    monkeypatch.setenv("CXX", sys.executable)
    assert levels(list(installation.frameworks())) == {
        "torch": "ok",
        "ddl_torch's native part": "note",
        "jax": "wrong",
        "ddl_jax's native part": "note",
    }
    folder = f"ddl_torch/torch-2.13.0+cpu-abi-libddl-{ddl_core.version()}-0123"
    tell(tmp_path, f"{folder}/_ddl_torch.so", "")
    for state, level in (("not built yet", "note"), ("built", "ok")):  # of these very sources
        info = f"native part   /another/folder/_ddl_torch.so  {state}\n"
        monkeypatch.setattr(installation, "_info", lambda adapter, info=info: info)
        assert levels(list(installation.frameworks()))["ddl_torch's native part"] == level
    monkeypatch.setenv("CXX", "nowhere")
    assert levels(list(installation.frameworks()))["ddl_jax's native part"] == "wrong"
    versions["libddl"] = "0.0.1"
    mixed = next(installation.library())
    assert mixed.level == "wrong" and "the package is 0.0.1" in mixed.told


def test_prebuilt_native_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec:
        spec = ModuleSpec(name, None, origin=str(tmp_path / name / "__init__.py"))
        spec.submodule_search_locations = [str(tmp_path / name)]
        return spec

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    versions = {"torch": "2.13.0+cu130", "libddl": ddl_core.version(), "jax": "0.10.2"}
    monkeypatch.setattr(installation, "find_version", versions.get)
    abi = EXTENSION_SUFFIXES[0].split(".")[1]
    header = "#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 7\n"
    tell(tmp_path, "jaxlib/include/xla/ffi/api/c_api.h", header)
    tell(tmp_path, "ddl_jax/prebuilt/xla-ffi-0.6-45/part.so", "")
    tell(tmp_path, f"ddl_torch/prebuilt/torch-2.12.1-0123-{abi}-45/part.so", "")
    tell(tmp_path, "ddl_torch/prebuilt/torch-2.13.0-0123-cpython-27-45/part.so", "")

    def found() -> list[str]:
        findings = [each for each in installation.frameworks() if "native part" in each.what]
        return [each.told for each in findings if each.told.startswith("prebuilt")]

    assert found() == []
    tell(tmp_path, "ddl_jax/prebuilt/xla-ffi-0.7-45/part.so", "")
    tell(tmp_path, f"ddl_torch/prebuilt/torch-2.13.0-0123-{abi}-45/part.so", "")
    assert found() == [f"prebuilt, torch-2.13.0-0123-{abi}-45", "prebuilt, xla-ffi-0.7-45"]


def test_two_ranks_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_HEARTBEAT_MS", "many")
    with pytest.raises(selftest.SelfTestError, match="rank . on .*: .*DDL_HEARTBEAT_MS"):
        selftest.run()
    with (
        Endpoint(secret="test") as endpoint,
        pytest.raises(errors.InvalidArgument, match="DDL_HEARTBEAT_MS"),
    ):
        endpoint.connect([endpoint.address], 0, Config())


def test_two_ranks_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_LIMIT", 0.05)  # before Python has started
    with pytest.raises(selftest.SelfTestError, match="did not finish within"):
        selftest.run()


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--ranks", "none"]) == 2
    assert "'none' is not an integer >= 1" in capsys.readouterr().err
