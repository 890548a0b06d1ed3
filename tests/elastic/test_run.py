# SPDX-License-Identifier: Apache-2.0
"""`ddl elastic run`: programs with their own loops, whose workers die, hang and fail."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waits import final_state

from ddl_elastic.coordinator.progress import Progress
from ddl_elastic.engines import program

PROGRAM = Path(__file__).parent / "programs" / "own_loop.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run"]
LIMIT = 240  # seconds, on a busy machine


@pytest.fixture
def run(run_program: Any, tmp_path: Path) -> Any:
    def run_words(*words: object, env: Any = None) -> tuple[Any, dict[str, Any]]:
        report = tmp_path / "report.json"
        command = [*DDL, "--no-replace", "--report", report, *map(str, words)]
        done = run_program(command, cwd=tmp_path, env=env, limit=LIMIT)
        return done, json.loads(report.read_text())

    return run_words


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("alone")
    done = run_program([*DDL, "-n", "1", PROGRAM], cwd=folder, limit=LIMIT).expect_success()
    return final_state(done.out)


def test_a_killed_worker(run: Any, alone: str) -> None:
    done, report = run("-n", 3, PROGRAM, "--strike", "kill", "--members", 0)
    assert done.code == 0, done.err
    assert final_state(done.out) == alone == report["hash"]
    assert (report["state"], report["steps"], report["steps_total"]) == ("done", 32, 32)
    assert [e["cause"] for e in report["events"] if e["kind"] == "died"] == ["SIGKILL"]
    assert [e["died"] for e in report["events"] if e["kind"] == "recovered"] == [[0]]
    assert re.search(
        r"rank 0 on \S+ \(pid \d+\) died \(SIGKILL\); \d of 12 shares recomputed; step", done.err
    )
    assert report["samples_per_second"] > 0 and report["seconds_per_step"] > 0
    # The two survivors report all their shares: all except those that rank 0 computed in its five
    # steps.
    assert sum(report["workers"][rank]["shares"] for rank in "12") == 32 * 12 - 5 * 4


@pytest.mark.slow
def test_a_worker_that_comes_after_the_training(run_here: Any, alone: str, tmp_path: Path) -> None:
    program = PROGRAM.with_name("lingering.py")
    command = [*DDL, "-n", "2", program, "--strike", "kill", "--members", "1"]
    done = run_here(command, limit=LIMIT).expect_success()
    assert final_state(done.out) == alone
    assert len([*tmp_path.glob("here-*")]) == 3


@pytest.mark.slow
def test_a_timeline(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    done, report = run("-n", 3, "--no-replace", "--trace", path, PROGRAM, "--strike", "kill")
    assert done.code == 0, done.err
    events = json.loads(path.read_text())["traceEvents"]
    (recovery,) = (e for e in events if e["ph"] == "X" and e["pid"] == -1)
    (told,) = (e for e in report["events"] if e["kind"] == "recovered")
    assert recovery["name"] == f"recovery in step {told['step']}"
    assert recovery["dur"] == pytest.approx(told["seconds"] * 1e6)
    assert [e["name"] for e in events if e["ph"] == "i"] == ["rank 1 died (SIGKILL)"]
    rows = {e["pid"] for e in events if e["ph"] == "X"}
    # The job, two survivors before, and after; a shrink may take a second attempt.
    assert len(rows) >= 1 + 2 + 2
    sums = [e for e in events if "ordered" in e["name"]]
    assert len(sums) > 2 * 32
    before = [e for e in sums if e["ts"] < recovery["ts"]]
    assert before and len(before) < len(sums)


def test_workers_that_read_other_checkpoints(run: Any) -> None:
    """Otherwise they would train from different states."""
    done, _ = run("-n", 1, PROGRAM, "--checkpoint", "saved")
    assert done.code == 0, done.err
    done, report = run("-n", 2, PROGRAM, "--checkpoint", "saved", "--passes", 10, "--blind", 1)
    assert done.code != 0 and report["state"] == "failed"
    assert re.search(
        r"rank 1 on \S+ continues from no checkpoint, and rank 0 on \S+ from the checkpoint after"
        r" 32 steps \(\w{16}\)",
        done.err,
    ), done.err


def test_workers_without_a_common_folder_are_refused(run: Any) -> None:
    """Otherwise no checkpoint is ever complete, and the job succeeds without one."""
    done, report = run("-n", 2, PROGRAM, "--checkpoint", "saved", "--apart", 1)
    assert done.code != 0 and report["state"] == "failed"
    assert re.search(r"rank 1 does not find the checkpoint files that rank 0 writes", done.err)
    assert "All hosts need the same folder" in done.err
    assert report["steps"] == 0


def test_workers_without_checkpoints_beside_others(run: Any) -> None:
    done, _ = run("-n", 2, PROGRAM, "--checkpoint", "saved", "--apart", 1, "--unsaved")
    assert done.code != 0
    assert re.search(r"rank \d on \S+: steps between checkpoints is (None|20), and", done.err)


def test_a_joining_worker_with_another_folder_is_refused(run_program: Any, tmp_path: Path) -> None:
    words = ("--checkpoint", "saved", "--apart", 2, "--strike", "kill", "--passes", 40)
    command = [*DDL, "-n", 2, "--report", "report.json", PROGRAM, *words]
    done = run_program([*map(str, command)], cwd=tmp_path, limit=LIMIT).expect_success()
    assert "cannot join: it does not find the job's checkpoint files" in done.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"] == report["steps_total"]
    assert "abandoned" not in done.out


@pytest.mark.parametrize("how", ["gil", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_worker_that_hangs_is_killed(run: Any, alone: str, how: str) -> None:
    done, report = run("-n", 3, PROGRAM, "--strike", how, "--watchdog", 3)
    assert done.code == 0, done.err
    assert final_state(done.out) == alone
    (died,) = (e for e in report["events"] if e["kind"] == "died")
    assert died["member"] == 1
    assert "hung: the other workers expelled it" in died["cause"]
    assert "(hung: the other workers" in done.err


@pytest.mark.slow
def test_all_but_one_over_tcp(run: Any, alone: str) -> None:
    """The fork server is the workers' witness."""
    words = ("-n", 3, PROGRAM, "--strike", "kill", "--members", "0,1")
    done, _ = run(*words, env={"DDL_LINKS": "tcp"})
    assert done.code == 0, done.err
    assert final_state(done.out) == alone


@pytest.mark.slow
@pytest.mark.parametrize(("how", "name"), [("kill", "SIGKILL"), ("segv", "SIGSEGV")])
def test_a_job_all_of_whose_workers_die(run: Any, how: str, name: str) -> None:
    done, report = run("-n", 2, PROGRAM, "--strike", how, "--members", "0,1")
    assert (done.code, report["state"]) == (128 + getattr(signal, name), "failed")
    assert "no worker is left, so the job has failed; if it has a checkpoint" in done.err
    assert re.search(rf"rank 1 on \S+ has ended: {name}\n", done.err)


@pytest.mark.slow
def test_a_program_that_trains_twice(run: Any, alone: str) -> None:
    done, report = run("-n", 2, PROGRAM, "--times", 2)
    assert done.code == 0, done.err
    assert re.findall(r"state (\w+)", done.out) == [alone] * 2
    assert report["hash"] == alone


@pytest.mark.slow
def test_a_program_that_trains_twice_without_agents(run_here: Any, alone: str) -> None:
    command = [sys.executable, "-m", "ddl_launch", "-n", "2", PROGRAM, "--times", "2", "--open"]
    done = run_here(command, limit=LIMIT).expect_success()
    assert re.findall(r"state (\w+)", done.out) == [alone] * 2


def test_an_error_of_the_program(run: Any, tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text("def main():\n    raise OSError('no such sample')\n\n\nmain()\n")
    done, report = run("-n", 2, program)
    assert done.code == 1
    assert report["state"] == "failed"
    lines = [line for line in done.out.splitlines() if line.startswith("[1] ")]
    assert lines == [
        "[1] Traceback (most recent call last):",
        f'[1]   File "{program}", line 5, in <module>',
        "[1]     main()",
        f'[1]   File "{program}", line 2, in main',
        "[1]     raise OSError('no such sample')",
        "[1] OSError: no such sample",
    ]
    assert re.search(
        r"rank 1 on \S+( \(pid \d+\))? died \(OSError: no such sample\) before", done.err
    )


@pytest.mark.slow
def test_a_schedule_that_nothing_saves(run: Any) -> None:
    done, report = run("-n", 2, PROGRAM, "--no-also")
    assert (done.code, report["steps"]) == (1, 0)
    assert 'pass also={"schedule": schedule}' in done.out


@pytest.mark.slow
def test_final_states_that_differ(run: Any) -> None:
    done, report = run("-n", 2, PROGRAM, "--differ", "--passes", 1)
    assert (done.code, report["state"]) == (1, "failed")
    names = r"rank 0 on \S+ \w{64}, rank 1 on \S+ \w{64}"
    part = "the first part that differs is the optimizer's settings"
    assert re.search(f"final states differ: {names}; {part}. Is an object with a state", done.err)


@pytest.mark.slow
def test_data_of_other_lengths(run: Any) -> None:
    done, report = run("-n", 2, PROGRAM, "--uneven")
    assert (done.code, report["steps"]) == (1, 0)
    assert re.search(r"rank 1 on \S+: len\(data\) is 141, and 140 on rank 0 on", done.out)


def test_a_worker_without_a_share_and_one_that_is_refused(run: Any) -> None:
    done, report = run("-n", 3, PROGRAM, "--logical", 2, "--refused", 2, "--passes", 1)
    assert done.code == 0, done.err
    assert done.err.count("a step has logical=2 shares, so at most 2 workers compute") == 1
    assert done.err.count("2 of the 3 workers have trained to the end") == 1
    assert [each["kind"] for each in report["events"]].count("idle") == 1


def test_as_python_runs_it(run: Any, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    program = tmp_path / "plain.py"
    program.write_text(
        "import atexit, os, pickle, signal, sys, threading\n"
        "import beside\n"
        "class Own: pass\n"
        "atexit.register(print, 'at the end', end='')\n"
        "assert threading.current_thread() is threading.main_thread()\n"
        "assert type(pickle.loads(pickle.dumps(Own()))) is Own\n"
        "print(__name__, sys.argv[1:], os.getcwd(), beside.NAME)\n"
        "sys.exit(5)\n"
    )
    done, _ = run("-n", 1, "--quiet", program, "--lr", "0.1", "-n", "9")
    assert (done.code, done.err) == (5, "")
    words = "['--lr', '0.1', '-n', '9']"
    assert done.out.splitlines() == [f"[0] __main__ {words} {tmp_path} beside", "[0] at the end"]


@pytest.mark.parametrize("last", ["", "sys.exit()\n"])
def test_program_without_a_job_fails(run: Any, tmp_path: Path, last: str) -> None:
    program = tmp_path / "plain.py"
    program.write_text("import ddl_core, sys\nprint(ddl_core.init().rank, 'done')\n" + last)
    done, report = run("-n", 2, "--preload", "json", program)
    assert (done.code, report["state"]) == (1, "failed")
    for worker in (0, 1):
        assert f"[{worker}] 0 done\n[{worker}] {program} made no elastic job" in done.out
    assert done.err.count("made no elastic job, so each worker ran it alone; make an") == 2


def test_option_after_the_program_is_explained(run: Any, tmp_path: Path) -> None:
    program = tmp_path / "strict.py"
    program.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done, _ = run("--preload", "json", program, "-n", "4")
    assert done.code == 2
    assert done.err.splitlines()[-1] == (
        "ddl: ddl elastic run passed -n to the program, because it stands after the program: write"
        " options of ddl elastic run before the program"
    )


@pytest.mark.slow
def test_job_of_a_forked_child_counts(run: Any, tmp_path: Path) -> None:
    program = tmp_path / "forking.py"
    program.write_text(
        "import multiprocessing, runpy, sys\n"
        f"sys.argv = [{str(PROGRAM)!r}, '--passes', '1']\n"
        "run = lambda: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "child = multiprocessing.get_context('fork').Process(target=run)\n"
        "child.start()\nchild.join()\n"
    )
    done, report = run("-n", 2, program)
    assert (done.code, report["state"]) == (0, "done"), done.out


def test_elastic_commands_do_not_import_the_scheduler() -> None:
    program = (
        "import sys, ddl_elastic, ddl_elastic.cli.commands\n"
        "sys.exit(any(name.startswith('ddl_scheduler') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT)


def test_elastic_program_may_exit_before_its_job(run: Any, tmp_path: Path) -> None:
    program = tmp_path / "helping.py"
    program.write_text(
        "import argparse, ddl_elastic\n"
        "argparse.ArgumentParser().parse_args()\n"
        "print('made no job')\n"
    )
    done, _ = run("-n", 2, "--preload", "json", "--quiet", program, "--help")
    assert (done.code, done.err) == (0, "") and "[1] usage: helping.py" in done.out
    done, _ = run("-n", 2, "--preload", "json", program)
    assert done.code == 1 and "helping.py made no elastic job" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.py"], "missing.py: there is no such program"),
        (["-n", "3:2", PROGRAM], "workers is '3:2'"),
        (["--threads", "0", PROGRAM], "threads is 0"),
        (["--preload", "there.is.none", PROGRAM], "--preload there.is.none: No module"),
    ],
)
def test_wrong_usage(run_here: Any, words: list[Any], message: str) -> None:
    done = run_here([*DDL, *words], limit=LIMIT)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"ddl: {message}")


def test_missing_bar_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    Progress()
    assert "no progress bar: tqdm is missing; pip install" in capsys.readouterr().err


def test_frameworks_that_a_program_names() -> None:
    assert program.named("import torch.nn") == ["torch"]
    assert program.named("import ddl_jax.elastic as elastic") == ["jax"]
    assert program.named("import jax\nimport torch") == ["torch", "jax"]
    assert program.named("from mine import main") == ["torch"]
    assert program.named('os.environ["XLA_FLAGS"] = ""\nimport jax') == ["torch"]


@pytest.mark.slow
def test_a_program_without_a_loop(run_here: Any, run: Any) -> None:
    example = Path(__file__).parents[2] / "examples" / "elastic_digits.py"
    command = [sys.executable, example, "--passes", "1", "--workers", "1"]
    alone = run_here(command, limit=LIMIT).expect_success()
    done, report = run("-n", 2, example, "--passes", "1")
    assert done.code == 0, done.err
    (line,) = done.out.splitlines()
    assert re.fullmatch(r"\[\d\] accuracy .* 2 workers, 0 shares recomputed .*", line)
    assert line.split("state ")[1] == alone.out.split("state ")[1].strip()
    assert report["hash"].startswith(line.split("state ")[1])
