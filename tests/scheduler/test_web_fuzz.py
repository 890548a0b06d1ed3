# SPDX-License-Identifier: Apache-2.0
"""Requests that schemathesis generates from the OpenAPI document. No response is a 5xx, each has
the described form, and requests that violate a schema are rejected. `make test` runs a sample,
`make test-web` more.
"""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from web_site import Site

from ddl_scheduler.web.limits import Limits

# Constraints that the schemas lack, such as min <= max, and large bodies also cause errors.
CONFIG = """
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415]
"""
ALL = [
    *("--exclude-path-regex", "stream"),  # these do not end
    *("--request-timeout", "60", "--suppress-health-check", "all"),  # on a busy machine
]
SAMPLE = [*ALL, "--phases", "fuzzing", "--max-examples", "3"]
SHOWN = 300  # characters of a line


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([*SAMPLE, "--generation-deterministic"], id="sample"),
        pytest.param([*ALL, "--max-examples", "40"], id="all", marks=pytest.mark.slow),
    ],
)
def test_schemathesis_finds_nothing(tmp_path: Path, options: list[str]) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with closing(Site(tmp_path, Limits(rate=1e6, burst=1e6, address_rate=1e6))) as site:
        for _ in range(3):
            site.submit()
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
        ended = subprocess.run(
            [
                *(*command, f"{site.url}/v1/openapi.json", "--no-color", "--warnings", "off"),
                *("-H", f"Authorization: Bearer {site.tokens['admin']}", *options),
            ],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    shown = "\n".join(line[:SHOWN] for line in ended.stdout.splitlines())
    assert ended.returncode == 0, shown
    assert "No issues found" in shown, shown
