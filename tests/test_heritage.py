# SPDX-License-Identifier: Apache-2.0
"""The exit codes of heritage.py, with frameworks that cannot be installed."""

from __future__ import annotations

from pathlib import Path

import heritage
import pytest

pytestmark = pytest.mark.pure


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The result of a framework: passed, failed, or the missing program."""
    given: dict[str, str] = {}

    def run(*command: str | Path, cwd: Path = heritage.ROOT) -> bool:
        if "wheel" in command:
            Path(command[-1], "libddl.whl").touch()
            return True
        return given[command[command.index("-k") + 1]] == "passed"

    def which(program: str) -> str | None:
        return None if program in given.values() else f"/usr/bin/{program}"

    monkeypatch.setattr(heritage, "run", run)
    monkeypatch.setattr(heritage, "prepare", lambda *_: True)
    monkeypatch.setattr(heritage.shutil, "which", which)
    return given


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"mlx": "passed", "paddle": "passed"}, 0),
        ({"mlx": "passed", "caffe": "protoc"}, 77),
        ({"mlx": "failed", "caffe": "protoc"}, 1),
    ],
)
def test_exit_code_tells_what_was_skipped(
    outcomes: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    given: dict[str, str],
    code: int,
) -> None:
    outcomes.update(given)
    assert heritage.main(list(given)) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert (last == "1 of 2 frameworks were not tested: caffe") == (code == 77)
