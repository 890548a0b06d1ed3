# SPDX-License-Identifier: Apache-2.0
"""The systemd units of packaging/: systemd accepts them, and their commands start a cluster."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environment, free_port
from serving import LIMIT, wait_for

UNITS = Path(__file__).resolve().parents[2] / "packaging" / "systemd"
NAMES = ("ddl-serve", "ddl-agent")
BIN = Path(sys.executable).parent


def verify(folder: Path, extra: str = "") -> str:
    files = []
    for name in NAMES:
        text = (UNITS / f"{name}.service").read_text().replace("/opt/libddl/bin", str(BIN))
        file = folder / f"{name}.service"
        file.write_text(text.replace("[Service]\n", f"[Service]\n{extra}"))
        files.append(str(file))
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True)
    # systemd reads other units of the machine as well.
    about = [line for line in done.stderr.splitlines() if "ddl-" in line]
    return "\n".join(about) or ("" if done.returncode == 0 else done.stderr)


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"),
    reason="THE UNITS ARE NOT VERIFIED: systemd-analyze is missing; apt-get install systemd",
)
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    assert verify(tmp_path) == ""
    assert "KillMod" in verify(tmp_path, "KillMod=process\n")  # the check finds a wrong name


def settings(name: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command and the variables of a unit. /etc/ddl and /var/lib/ddl are in `folder`."""

    def read(file: Path) -> str:
        text = file.read_text()
        return text.replace("/etc/ddl", f"{folder}").replace("/var/lib/ddl", f"{folder}")

    unit = read(UNITS / f"{name}.service")
    lines = re.findall(r"^Environment=(.*)", unit, re.M)
    given = dict(word.split("=", 1) for line in lines for word in line.split())
    (file,) = re.findall(r"^EnvironmentFile=-?(.*)", unit, re.M)
    given |= dict(re.findall(r"^(\w+)=(.*)", read(UNITS / Path(file).name), re.M))
    (line,) = re.findall(r"^ExecStart=(.*)", unit, re.M)
    command: list[str] = []
    for word in line.replace("/opt/libddl/bin", str(BIN)).split():
        if match := re.fullmatch(r"\$(\w+)", word):  # systemd splits the value
            command += given[match[1]].split()
        else:
            command.append(re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], word))
    return command, given


def test_commands_of_the_units_start_a_cluster(tmp_path: Path) -> None:
    token, log = tmp_path / "agents.token", tmp_path / "log"
    token.write_text("a token of this test\n")
    port = str(free_port())
    processes = []
    with log.open("ab") as file:
        for name in NAMES:
            command, given = settings(name, tmp_path)
            command = [word.replace("29400", port).replace("head", "127.0.0.1") for word in command]
            command += {"ddl-serve": ["--listen", "0"], "ddl-agent": ["-n", "3"]}[name]
            processes.append(
                subprocess.Popen(command, env=clean_environment(given), stdout=file, stderr=file)
            )
    try:
        wait_for(lambda: "listening on http" in log.read_text(), "the service")
        wait_for(lambda: "has connected with 3 slots" in log.read_text(), "the agent")
    finally:
        for process in reversed(processes):  # with SIGTERM, like systemd
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0, log.read_text()
