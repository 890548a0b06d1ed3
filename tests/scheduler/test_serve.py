# SPDX-License-Identifier: Apache-2.0
"""`ddl serve`: real jobs, which it starts, resizes, pauses and ends, and which outlive it."""

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment
from serving import (
    DDL,
    LIMIT,
    PROGRAM,
    SLOT_MEMORY,
    STEPS,
    Serving,
    holders,
    is_alive,
    kill,
    wait_for,
)

from ddl_scheduler.cli.top import print_once


def may_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    made = Serving(tmp_path_factory.mktemp("serving"))
    yield made
    made.close()


def test_a_job_that_nobody_disturbs(serving: Serving, alone: str) -> None:
    job = serving.submit(*STEPS, max=2)
    serving.wait(job, "done")
    assert serving.state(job) == alone
    result = serving.folder_of(job).result()
    assert (result["state"], result["report"]["steps"]) == ("done", 150)
    assert result["report"]["hash"] == alone
    assert len(serving.pids(job)) == 2
    wait_for(lambda: not serving.store.slots() and not serving.store.intents())
    assert serving.record(job).used > 0


@pytest.mark.slow
def test_scaled_paused_and_resumed(serving: Serving, alone: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = serving.submit(*STEPS, "--go", go, "--share", 0.01, "--every", 5, max=3, min=0)
    saved = serving.folder_of(job).checkpoints / "0"
    wait_for(lambda: list(saved.glob("steps-*.json")))
    assert len(serving.pids(job)) == 3
    serving.move(job, "paused")
    wait_for(lambda: not serving.store.intents())
    assert not any(map(is_alive, serving.pids(job)))
    # The process that ran the job writes this when its workers have ended.
    wait_for(lambda: serving.folder_of(job).result()["state"] == "paused")
    result = serving.folder_of(job).result()
    # Its state was written when it was asked to pause, so no step is computed twice.
    steps = result["report"]["steps"]
    assert steps and (saved / f"steps-{steps:012}.json").exists()
    serving.move(job, "waiting")
    serving.wait_for_size(job, 3)
    go.touch()
    serving.wait(job, "done")
    assert serving.state(job) == alone
    assert len(serving.pids(job)) == 6


def test_a_higher_tier_takes_slots_and_a_worker_dies(
    serving: Serving, alone: str, tmp_path: Path
) -> None:
    go, go_urgent = tmp_path / "go", tmp_path / "go urgent"
    job = serving.submit(*STEPS, "--go", go, "--share", 0.1)
    serving.wait_for_size(job, 4)
    wait_for(lambda: len(serving.pids(job)) == 4)
    urgent = serving.submit(*STEPS, "--go", go_urgent, min=3, tier=1)
    serving.wait_for_size(job, 1)
    serving.wait_for_size(urgent, 3)
    before = serving.pids(job)
    wait_for(lambda: sum(map(is_alive, before)) == 1)
    assert len(serving.pids(job)) == 4
    wait_for(lambda: len(serving.pids(urgent)) == 3)
    kill(serving.pids(urgent)[1])
    wait_for(lambda: len(serving.pids(urgent)) == 4)
    go_urgent.touch()
    serving.wait(urgent, "done")
    serving.wait_for_size(job, 4)
    wait_for(lambda: len(serving.pids(job)) == 7)
    go.touch()
    serving.wait(job, "done")
    assert sum(map(is_alive, before)) == 0 and serving.pids(job)[:4] == before
    assert serving.state(job) == serving.state(urgent) == alone
    report = serving.folder_of(urgent).result()["report"]
    assert [e["cause"] for e in report["events"] if e["kind"] == "died"] == ["SIGKILL"]


def test_the_service_is_killed_and_comes_back(serving: Serving, alone: str, tmp_path: Path) -> None:
    go, go_quick = tmp_path / "go", tmp_path / "go quick"
    job = serving.submit(*STEPS, "--go", go, max=2)
    wait_for(lambda: len(serving.pids(job)) == 2)
    quick = serving.submit(*STEPS, "--go", go_quick, max=1)
    wait_for(lambda: serving.pids(quick))
    serving.kill()
    go_quick.touch()
    wait_for(lambda: serving.folder_of(quick).result().get("state") == "done")
    assert serving.record(quick).state == "running"
    serving.start()
    serving.wait(quick, "done")
    go.touch()
    serving.wait(job, "done")
    assert serving.state(job) == serving.state(quick) == alone
    assert len(serving.pids(job)) == 2 and len(serving.pids(quick)) == 1


def test_a_second_service_is_refused(serving: Serving) -> None:
    """Otherwise it would cut the first service off from its jobs."""
    order = [*DDL, "serve", "--store", serving.path, "--listen", "0"]
    done = subprocess.run(order, cwd=serving.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"another ddl serve uses it, process {serving.process.pid}:" in done.stderr


def test_a_connection_that_is_cut_is_made_again(serving: Serving, tmp_path: Path) -> None:
    job = serving.submit(*STEPS, "--go", tmp_path / "never", max=1)
    wait_for(lambda: serving.pids(job))
    serving.folder_of(job).connect().close()
    serving.move(job, "cancelled")
    wait_for(lambda: not any(map(is_alive, serving.pids(job))))


@pytest.mark.slow
def test_all_processes_of_a_job_are_killed(serving: Serving, alone: str, tmp_path: Path) -> None:
    """The job resumes from its newest checkpoint."""
    go = tmp_path / "go"
    job = serving.submit(*STEPS, "--go", go, "--share", 0.01, "--every", 5, max=1)
    saved = serving.folder_of(job).checkpoints / "0"
    wait_for(lambda: list(saved.glob("steps-*.json")))
    for pid in holders(serving.folder_of(job).path / "lock"):
        kill(pid)
    wait_for(lambda: len(serving.pids(job)) == 2)
    go.touch()
    serving.wait(job, "done")
    assert serving.state(job) == alone


@pytest.mark.slow
def test_a_job_that_gains_nothing_from_slots(serving: Serving, tmp_path: Path) -> None:
    """The steps of a job wait for something else. It is measured with two sizes, and leaves the
    other slots to a job that becomes faster."""
    go = tmp_path / "go"
    limited = serving.submit("--go", go, "--share", 0, "--step", 0.1, "--steps", 2000, max=4)
    measured = serving.folder_of(limited)
    serving.wait_for_size(limited, 4)
    wait_for((measured.checkpoints / "0" / f"steps-{40:012}.json").exists)
    other = serving.submit("--go", go, "--steps", 1000, max=4)
    serving.wait_for_size(limited, 1)
    serving.wait_for_size(other, 3)
    saved = measured.checkpoints / "0"
    step = max(int(path.stem[6:]) for path in saved.glob("steps-*.json"))
    # The new size is measured by now.
    wait_for((saved / f"steps-{step + 40:012}.json").exists)
    for job in (limited, other):
        serving.move(job, "cancelled")
    wait_for(lambda: not serving.store.intents())
    sizes = {size: seconds for size, _, seconds, _ in measured.result()["measured"]}
    assert len(sizes) > 1 and sizes[1] < 2 * min(sizes.values())


@pytest.mark.slow
def test_a_deadline(serving: Serving, tmp_path: Path) -> None:
    """With two of four slots, its 2000 steps would take 600 s. A deadline that no plan can meet
    changes nothing."""
    go, now = tmp_path / "go", time.time()
    other = serving.submit("--go", go, "--steps", 2000)
    hurried = serving.submit("--go", go, "--steps", 2000, deadline=now + 520)
    serving.wait_for_size(hurried, 3)
    serving.wait_for_size(other, 1)
    hopeless = serving.submit("--go", go, "--steps", 2000, deadline=now + 60)
    serving.move(hurried, "cancelled")
    serving.wait_for_size(hopeless, 2)
    saved = serving.folder_of(hopeless).checkpoints / "0"
    wait_for((saved / f"steps-{40:012}.json").exists)  # its speed is known
    assert len(serving.store.slots()[hopeless]) == len(serving.store.slots()[other]) == 2
    for job in (other, hopeless):
        serving.move(job, "cancelled")
    wait_for(lambda: not serving.store.intents())


@pytest.mark.slow
def test_memory_limits_the_sizes(serving: Serving) -> None:
    """A worker with 12 shares keeps four partial gradients and the result; one with six, three."""
    gradient = SLOT_MEMORY // 10
    memory = {"fixed": SLOT_MEMORY - 4 * gradient, "gradient": gradient}
    never = serving.submit(memory=memory, max=1)
    job = serving.submit(memory=memory, max=2)
    serving.wait(job, "done")
    assert len(serving.pids(job)) == 2
    assert serving.record(never).state == "waiting"
    serving.move(never, "cancelled")


KILLS = Path(__file__).parent / "programs" / "serve_kills.py"


@pytest.mark.slow
def test_the_service_is_killed_at_some_points(run_here: Any, tmp_path: Path) -> None:
    done = run_here([sys.executable, KILLS, tmp_path, "7", "16", "27", "36"], limit=240)
    assert done.expect_success().out == "4 points\n"


@pytest.mark.slow
def test_the_service_is_killed_at_every_point(run_here: Any, tmp_path: Path) -> None:
    done = run_here([sys.executable, KILLS, tmp_path], limit=1800)
    assert int(done.expect_success().out.split()[0]) > 50


def test_cancelled(serving: Serving, tmp_path: Path) -> None:
    job = serving.submit("--go", tmp_path / "never", max=2)
    wait_for(lambda: len(serving.pids(job)) == 2)
    serving.move(job, "cancelled")
    wait_for(lambda: not serving.store.intents())
    assert not any(map(is_alive, serving.pids(job)))
    assert serving.record(job).state == "cancelled"


def test_failures_say_why(serving: Serving, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import torch\nraise OSError('no such sample')\n")
    plain = tmp_path / "plain.py"
    plain.write_text("print('done')\n")
    jobs = {
        serving.submit(command=[str(plain)], max=2): "rank 0 on .*/plain.py made no elastic job",
        serving.submit(command=["missing.py"]): "missing.py: the program does not exist",
        serving.submit(command=[]): "its specification is invalid: command is",
        serving.submit(command=[str(wrong)], max=1): "rank 0 on .* OSError: no such sample",
        serving.submit(folder="/does/not/exist"): "the folder /does/not/exist on .* No such file",
    }
    for job, why in jobs.items():
        serving.wait(job, "failed")
        texts = [text for _, _, of, text in serving.store.events() if of == job]
        assert any(text.startswith("failed: ") for text in texts)
        assert re.search(why, " ".join(texts)), (why, texts)


@pytest.mark.slow
def test_failed_job_begins_again_from_its_checkpoint(
    serving: Serving, alone: str, tmp_path: Path
) -> None:
    bad, program = tmp_path / "bad", tmp_path / "fails.py"
    bad.touch()
    program.write_text(
        f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(PROGRAM.parent)!r})
import served
import ddl_torch.elastic as elastic
steps = elastic.Job.steps
def fail(self, *arguments, **options):
    for step in steps(self, *arguments, **options):
        if step.number == 60 and Path({str(bad)!r}).exists():
            raise OSError("no such sample")
        yield step
elastic.Job.steps = fail
served.main()
"""
    )
    job = serving.submit(command=[str(program), *map(str, STEPS)], max=2)
    serving.wait(job, "failed")
    assert serving.folder_of(job).has_checkpoint()
    bad.unlink()
    folder = serving.folder_of(job)
    folder.result_write({**folder.result(), "state": "resumed"})  # like the REST interface
    serving.move(job, "waiting")
    serving.wait(job, "done")
    assert serving.state(job) == alone
    assert len(serving.pids(job)) >= 4  # if one fails before the other, it may be replaced


FULL = """
mount -t tmpfs -o size=3m none small || exit 1
"$1" -c 'import pathlib, ddl_scheduler.base.store as s
s.Store(pathlib.Path("small/jobs.db")).close()' || exit 1
"$@" token --store small/jobs.db default admin > token || exit 1
exec "$@" serve --store small/jobs.db --slots 1 --listen 0
"""


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
def test_service_survives_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small").mkdir()
    log = tmp_path / "serve.log"
    with log.open("ab") as file:
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", FULL, "sh", *DDL],
            cwd=tmp_path,
            env=clean_environment({}),
            stderr=file,
            stdout=file,
        )
    try:
        found = wait_for(lambda: re.search(r"listening on (http://\S+)", log.read_text()))
        small = Path(f"/proc/{process.pid}/root{tmp_path}/small")
        token = (tmp_path / "token").read_text().strip()

        def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(found[1] + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        def ready() -> int:
            try:
                with urllib.request.urlopen(f"{found[1]}/readyz", timeout=60) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                assert error.read() == b"the store cannot be written\n"
                return error.code

        job = {"command": ["missing.py"], "min": 2}  # waits for a second slot
        assert ask("POST", "/v1/jobs", job)[0] == 201
        assert ask("GET", "/v1/overview")[1]["problem"] is None
        assert ready() == 200
        with suppress(OSError), (small / "filler").open("wb", 0) as filler:
            while True:
                filler.write(b"x" * 4096)
        statuses = [ask("POST", "/v1/jobs", job) for _ in range(20)]
        assert {201, 507} >= {status for status, _ in statuses}
        assert "the store cannot be written now" in statuses[-1][1]["error"]["message"]
        wait_for(lambda: ask("GET", "/v1/overview")[1]["problem"], "the problem is shown")
        print_once(ask("GET", "/v1/overview")[1])
        assert "the service cannot write: " in capsys.readouterr().out
        wait_for(lambda: ready() == 503, "the probe reports it")
        (small / "filler").unlink()
        wait_for(lambda: ready() == 200, "ready again")
        wait_for(lambda: not ask("GET", "/v1/overview")[1]["problem"], "there is none any more")
        status, made = ask("POST", "/v1/jobs", {"command": ["missing.py"]})
        assert status == 201
        wait_for(lambda: ask("GET", f"/v1/jobs/{made['id']}")[1]["state"] == "failed")
        assert process.poll() is None
        assert "the service cannot write: " in log.read_text()
    finally:
        process.terminate()
        assert process.wait(LIMIT) == 0, log.read_text()


def test_wrong_usage(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [*DDL, "serve", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stderr

    assert run("--store", "a.db", "--slots", "0") == (2, "ddl: --slots is 0; must be at least 1\n")
    code, told = run("--store", "missing/a.db")
    assert code == 1 and "ddl: --store missing/a.db: [Errno 2] No such file" in told


@pytest.mark.parametrize(
    "package",
    [
        "starlette",
        *(pytest.param(o, marks=pytest.mark.slow) for o in ("uvicorn", "jinja2", "plotly")),
    ],
)
def test_serve_without_a_package_names_the_remedy(package: str, tmp_path: Path) -> None:
    """Without its interface no client could reach the service, so it must not run on."""
    text = f"raise ModuleNotFoundError('there is no {package}')\n"
    (tmp_path / f"{package}.py").write_text(text)
    ended = subprocess.run(
        [*DDL, "serve", "--store", tmp_path / "jobs.db", "--listen", "0"],
        env={**clean_environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    remedy = f"ddl: ddl serve: there is no {package}; pip install 'libddl[scheduler]'\n"
    assert (ended.returncode, ended.stderr) == (2, remedy)


class AgeingServing(Serving):
    options = ("--ageing", "100")


def test_a_job_that_has_waited_long_comes_first(tmp_path: Path) -> None:
    with closing(AgeingServing(tmp_path, slots=1)) as serving:
        serving.kill()
        words = [str(PROGRAM), *map(str, STEPS), "--go", str(tmp_path / "go")]
        spec = {"command": words, "logical": 12, "folder": str(tmp_path)}
        now = time.time()
        high = serving.store.job_submit("t", "high", {**spec, "tier": 1}, now)
        low = serving.store.job_submit("t", "low", spec, now - 1000)
        serving.store.plan_write({}, now)  # it counts how long they have waited
        serving.start()
        wait_for(serving.store.slots)
        assert list(serving.store.slots()) == [low]
        assert serving.record(high).state == "waiting"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_ageing_takes_time(seconds: str, tmp_path: Path) -> None:
    order = [*DDL, "serve", "--store", tmp_path / "jobs.db", f"--ageing={seconds}"]
    ended = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and "must be above 0 seconds" in ended.stderr
