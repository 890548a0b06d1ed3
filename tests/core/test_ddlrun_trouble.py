# SPDX-License-Identifier: Apache-2.0
"""ddlrun with a full disk, closed streams, nohup, a rank that does not end, lost reports, and
existing files."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Finished, Run, clean_environment, popen

from ddl_launch import submit
from ddl_launch.errors import LaunchError
from ddl_launch.jobs import remote_job, root_cause
from ddl_launch.jobs.failure import Failure
from ddl_launch.jobs.root_cause import RankState

LAUNCH = [sys.executable, "-m", "ddl_launch"]


def test_nohup_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time; print('ready', flush=True); time.sleep(60)")
    with popen(["nohup", *LAUNCH, "-n", "2", program], cwd=tmp_path) as process:
        assert process.stdout
        lines = sorted(process.stdout.readline() for _ in range(2))
        assert lines == ["[0] ready\n", "[1] ready\n"]
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("appended", "is_noted"), [(b"\0libmpi.so.40\0", True), (b"", False)], ids=["mpi", "other"]
)
def test_program_that_uses_mpi_is_noted(
    tmp_path: Path, run_here: Run, appended: bytes, is_noted: bool
) -> None:
    program = tmp_path / "program"
    program.write_bytes(Path("/bin/true").read_bytes() + appended)
    program.chmod(0o755)
    ended = run_here([*LAUNCH, "-n", "2", program]).expect_success()
    assert ("uses libmpi.so.40, but ddlrun starts the ranks" in ended.err) == is_noted


def test_a_full_disk_ends_ranks_as_any_failure(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os, signal, sys, time
def save(*_):
    open("saved " + os.environ["DDL_RANK"], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("ready " + os.environ["DDL_RANK"], "w").close()
while not (os.path.exists("ready 0") and os.path.exists("ready 1")):
    time.sleep(0.01)
while True:
    print("again", flush=True)
    time.sleep(0.05)
""")
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*LAUNCH, "-n", "2", program],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    assert "cannot write output: No space left on device; ending all ranks" in ended.stderr
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved 0", "saved 1"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams(run_here: Run, tmp_path: Path, closed: str) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('said'); raise SystemExit(3)")
    command = f"{shlex.join([*LAUNCH, '-n', '1', str(program)])} {closed}"
    ended = run_here(["sh", "-c", command])
    assert ended.code == 3, ended.err


@pytest.mark.parametrize("removed", [False, True])
def test_folder_of_output(tmp_path: Path, removed: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import shutil, sys; {removed} and shutil.rmtree(sys.argv[1]); 1 / 0")
    folder = os.fsencode(tmp_path) + b"/r\\xe9sultats"
    ended = subprocess.run(
        [*LAUNCH, "-n", "1", "--output-dir", folder, program, folder],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert b"rank 0 on " in ended.stderr and b"Traceback" not in ended.stderr, ended.stderr


def test_a_rank_that_cannot_be_killed(run_here: Run, tmp_path: Path) -> None:
    """The rank is like a process that waits in the kernel, because ddlrun sends no SIGKILL here."""
    program, launch = tmp_path / "program.py", tmp_path / "launch.py"
    program.write_text("""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(2)
if os.environ["DDL_RANK"] == "0":
    raise SystemExit(5)
time.sleep(60)
""")
    launch.write_text("""
import signal, sys
from ddl_launch import cli
from ddl_launch.jobs import local_job, supervisor
send = local_job.LocalJob._send_signal
local_job.LocalJob._send_signal = lambda self, n: None if n == signal.SIGKILL else send(self, n)
supervisor._LEAVE = 0.5
sys.exit(cli.main(sys.argv[1:]))
""")
    command = [sys.executable, launch, "-n", "2", "--grace", "0.5", program]
    ended = run_here(command)
    assert ended.code == 5
    assert "rank 1 on " in ended.err and "cannot be killed; it keeps running" in ended.err


def test_lost_reports_name_nobody() -> None:
    """Many ranks report at once, and the queue for reports is short: rank 1 has joined, but the
    reports of rank 0, which continues, and of rank 2, which has ended, are lost."""
    ended = Failure(2, 100, 0, by_signal=False)
    ranks = {
        0: RankState(waits=True, joinings=1),
        1: RankState(joinings=1, joined=1),
        2: RankState(ended, 1.0, waits=True, joinings=1),
    }
    assert root_cause.find_absent(ranks) is None
    ranks[1].joined = 0
    absent = root_cause.find_absent(ranks)
    assert absent is not None and absent.rank == 2


def test_a_colon_is_refused() -> None:
    with pytest.raises(
        LaunchError,
        match='an argument of the program is ":", with which mpirun and srun separate programs',
    ):
        remote_job._wrapped(["train.py", ":", "more"])


@pytest.fixture
def submitted(tmp_path: Path) -> list[str]:
    """Return the command that submits to a stand-in for qsub, which accepts everything."""
    stand_in = tmp_path / "bin" / "qsub"
    stand_in.parent.mkdir()
    stand_in.write_text("#!/bin/sh\necho 1.server\n")
    stand_in.chmod(0o755)
    return [*LAUNCH, "--submit", "pbs", "-nodes", "2", "-accelerators", "2", "/bin/true"]


def test_files_of_the_user_are_kept(run_here: Run, submitted: list[str], tmp_path: Path) -> None:
    """A file that ddlrun has written and that nobody has changed is written again."""

    def run(*options: str) -> Finished:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = [*submitted[:5], *options, *submitted[5:]]
        return run_here(command, env={"PATH": path})

    script = tmp_path / "true.pbs"
    assert run().code == run("--submitarg", "-l walltime=1").code == 0
    assert "walltime=1" in script.read_text() and script.read_text().startswith("#!/bin/sh\n")
    script.write_text(script.read_text() + "# changed\n")
    refused = run()
    assert refused.code == 2
    assert "true.pbs already exists, and was changed" in refused.err
    assert script.read_text().endswith("# changed\n")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "job.pbs").mkdir()
    with pytest.raises(IsADirectoryError):
        submit._write(tmp_path / "job.pbs", "#!/bin/sh\n")
