# SPDX-License-Identifier: Apache-2.0
"""The job that hangs on the page docs/debugging.md names the rank at fault, and its line."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environment
from snippets import blocks

PAGE = "docs/debugging.md"


@pytest.mark.usefixtures("torch_native")
def test_hang_is_located(tmp_path: Path) -> None:
    (program,) = (b for b in blocks(PAGE) if b.value("file") == "hang.py")
    (tmp_path / "hang.py").write_text(program.code)
    env = clean_environment({"DDL_DUMP_SIGNAL": "USR1", "DDL_STALL_WARN_MS": "1000"})
    command = [sys.executable, "-m", "ddl_launch", "-n", "2", "hang.py"]
    job = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    lines: list[str] = []
    for expected in ("not called by rank 1; rank 1 on ", 'hang.py", line 9 in <module>'):
        while expected not in "".join(lines):
            line = job.stderr.readline()
            assert line, lines
            lines.append(line)
        job.send_signal(signal.SIGUSR1)
    assert lines[-1].startswith("[1] ")
    job.kill()
    job.communicate(timeout=120)
