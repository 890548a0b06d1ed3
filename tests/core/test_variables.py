# SPDX-License-Identifier: Apache-2.0
"""The table of environment variables is complete, and misspelt ones cause a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

from ddl_core.joining.environment import metrics_port
from ddl_core.joining.variables import NAMES, misspelt

ROOT = Path(__file__).resolve().parents[2]


def read_by_the_sources() -> set[str]:
    """Return all strings that are names of variables. A prefix of several names ends in an
    underscore."""
    found: set[str] = set()
    packages = ("ddl_core", "ddl_launch", "ddl_elastic", "ddl_scheduler", "adapters")
    for folder in ("libddl/src", *packages):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".c", ".h", ".cpp", ".py") and path.name != "variables.py":
                found.update(re.findall(r'"(DDL_[A-Z_]*[A-Z])"', path.read_text()))
    return found


def test_the_table_has_what_the_sources_read() -> None:
    read = read_by_the_sources()
    assert read - NAMES == set(), "not in ddl_core/joining/variables.py"
    assert NAMES - read == set(), "in ddl_core/joining/variables.py, and read nowhere"


def test_misspelt() -> None:
    assert misspelt({"DDL_INTERFACE": "eth0", "DDL_LOG": "info", "DDL_WHATEVER_MINE": "1"}) == [
        "DDL_INTERFACE is set, but libddl does not read it: did you mean DDL_INTERFACES?"
    ]


def test_variables_of_kubernetes_services_are_ignored() -> None:
    env = {}
    for name, port in (("DDL", 80), ("DDL_METRICS", 9400), ("DDL_SERVER", 443)):
        address = f"tcp://10.0.0.1:{port}"
        env |= {
            f"{name}_SERVICE_HOST": "10.0.0.1",
            f"{name}_SERVICE_PORT": str(port),
            f"{name}_SERVICE_PORT_HTTP": str(port),
            f"{name}_PORT": address,
            f"{name}_PORT_{port}_TCP": address,
            f"{name}_PORT_{port}_TCP_PROTO": "tcp",
            f"{name}_PORT_{port}_TCP_ADDR": "10.0.0.1",
        }
    assert misspelt(env) == []
    assert metrics_port(env) is None
    assert metrics_port({**env, "DDL_METRICS_PORT": "9400"}) == 9400
    assert misspelt({"DDL_PORT": "20000"}) != []


def test_init_warns_once() -> None:
    program = "import ddl_core as d; d.init(); d.finalize(); d.init(); d.finalize()"
    env = {k: v for k, v in os.environ.items() if not k.startswith("DDL_")}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**env, "DDL_DEAD_MSS": "9"},
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("did you mean DDL_DEAD_MS?") == 1, ended.stderr
