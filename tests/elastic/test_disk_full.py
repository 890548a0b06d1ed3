# SPDX-License-Identifier: Apache-2.0
"""A job whose disk is full continues to train, reports it, and keeps the existing checkpoints."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddl_elastic.storage import checkpoint
from ddl_elastic.storage.checkpoint import Folder
from ddl_elastic.worker.observer import MOST

PROGRAM = Path(__file__).parent / "programs" / "train.py"
CASE = {"workers": 2, "checkpoint": "saved", "every": 5}
FIRST, ALL, MANY = 2, 6, 40  # passes over 150 samples, in batches of 24
STEPS = -(-150 * FIRST // 24)
# A separate file system, which is full when the second job begins.
FULL = """
mount -t tmpfs -o size=1m none saved && "$@" "$FIRST" || exit 1
dd if=/dev/zero of=saved/.filler bs=4096 2> /dev/null
"$@" "$SECOND" || exit 1
rm saved/.filler && cp -r saved kept
"""


@pytest.fixture(scope="module")
def undisturbed(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    case = json.dumps({"workers": 1, "passes": ALL})
    done = run_program([sys.executable, PROGRAM, case], cwd=tmp_path_factory.mktemp("alone"))
    done.expect_success()
    return str(json.loads(done.out)["hash"])


def check(runs: list[Any], folder: Path, reason: str, undisturbed: str) -> None:
    for done in runs:
        done.expect_success()
    first, second = (json.loads(line) for done in runs for line in done.out.splitlines())
    shown = runs[-1].err
    assert first["steps"] == STEPS
    assert (second["state"], second["hash"]) == ("done", undisturbed)
    assert f"resumed after {STEPS} steps" in shown
    told = re.findall(
        rf"rank 0 on {os.uname().nodename}: the checkpoint after (\d+) steps is abandoned, the"
        rf" older ones stay: .* (\d+) bytes cannot be written: {reason}: 'saved/\w+\.safetensors'",
        shown,
    )
    assert len(told) > 1
    assert shown.count("rank 0 on") == len(told)
    assert all(int(steps) > STEPS and int(size) > 10_000 for steps, size in told)
    storage = Folder(folder)
    newest = checkpoint.read_manifest(storage, checkpoint.manifests(storage)[0])
    assert newest.steps == STEPS
    checkpoint.read_state(storage, newest)


def may_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
def test_a_full_file_system(run_here: Any, tmp_path: Path, undisturbed: str) -> None:
    (tmp_path / "saved").mkdir()
    cases = {
        "FIRST": json.dumps({**CASE, "passes": FIRST}),
        "SECOND": json.dumps({**CASE, "passes": ALL}),
    }
    command = ["unshare", "-m", "sh", "-c", FULL, "sh", sys.executable, PROGRAM]
    done = run_here(command, env=cases, limit=200)
    check([done], tmp_path / "kept", "No space left on device", undisturbed)


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
def test_a_full_file_system_while_a_newcomer_observes(run_here: Any, tmp_path: Path) -> None:
    """The joining worker fills the disk when it has received the first part of the state, and waits
    until a write has failed: see programs/strikes.py. The others train meanwhile. Later checkpoints
    are whole."""
    (tmp_path / "saved").mkdir()
    alone = json.dumps({"workers": 1, "passes": MANY})
    joined = {"workers": "1:3", "start": 2, "passes": MANY, "resize": [[8, 3, "receiving"]]}
    case = json.dumps({**joined, "how": "full", "checkpoint": "saved", "every": 1})
    script = 'mount -t tmpfs -o size=1m none saved && "$@" && cp -r saved kept'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, PROGRAM, alone, case]
    done = run_here(command, limit=200).expect_success()
    undisturbed, report = map(json.loads, done.out.splitlines())
    assert (report["state"], report["hash"]) == ("done", undisturbed["hash"])
    assert not (tmp_path / "die in receiving").exists()
    (switch,) = [each["step"] for each in report["events"] if each["kind"] == "joined"]
    told = re.findall(r"the checkpoint after (\d+) steps is abandoned", done.err)
    steps = {int(each) for each in told}
    assert steps and all(switch - 1 <= each <= switch + 2 * MOST for each in steps), (switch, told)
    assert [each for each in report["events"] if each["kind"] == "died"] == []
    storage = Folder(tmp_path / "kept")
    newest = checkpoint.read_manifest(storage, checkpoint.manifests(storage)[0])
    assert newest.steps == report["steps"]
    checkpoint.read_state(storage, newest)


@pytest.mark.slow
def test_a_limit_of_files(run_here: Any, tmp_path: Path, undisturbed: str) -> None:
    first, second = (json.dumps({**CASE, "passes": passes}) for passes in (FIRST, ALL))
    runs = [run_here([sys.executable, PROGRAM, first])]
    limited = [sys.executable, "-c", LIMITED, sys.executable, PROGRAM, second]
    runs.append(run_here(limited, limit=200))
    check(runs, tmp_path / "saved", "File too large", undisturbed)


LIMITED = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, {resource.RLIM_INFINITY}))
os.execv(sys.argv[1], sys.argv[1:])
"""
