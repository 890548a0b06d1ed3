# SPDX-License-Identifier: Apache-2.0
"""`ddl trace`: ranks of which one was lost, and files that are not traces."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from ddl_core import Comm
from ddl_launch import timeline
from ddl_launch.commands.cli import main

KILLED = """
import os, signal, sys, time
import numpy as np
import ddl_core
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ddlrun would end the others first
comm = ddl_core.init(ddl_core.Config(timeout=20, operation_timeout=20))
if comm.rank == 0:
    time.sleep(1)
comm.barrier()
if comm.rank == 1:
    for _ in range(2):  # the others have passed the barrier
        comm.recv(np.empty(1))
    os.kill(os.getpid(), signal.SIGKILL)
comm.send(np.empty(1), 1)
try:
    comm.allreduce(np.ones(10))
except ddl_core.errors.PeerLost:
    pass
"""


def test_what_survivors_leave(
    ddlrun: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    ended = ddlrun(3, textwrap.dedent(KILLED), env={"DDL_TRACE_DIR": str(folder)})
    assert len(list(folder.iterdir())) == 2, ended.err
    output = tmp_path / "all.json"
    assert main(["trace", str(folder), "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert "2 of at least 3 ranks" in said
    assert "no file of rank 1: killed" in said
    assert len(re.findall(r"all-reduce\(f64, 10, sum\) +2 ", said)) == 2
    assert said.count("a member died or left") == 2
    slowest = said.split("slowest")[1].splitlines()[1]
    assert re.match(r"barrier .*rank 2 on .* [\d.]+ m?s", slowest), slowest
    events = json.loads(output.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names.keys() == {0, 2} and names[2].startswith("rank 2 on ")
    barriers = [e for e in events if e["name"] == "barrier"]
    assert [e["pid"] for e in barriers] == [0, 2]
    early, late = barriers[1], barriers[0]
    assert early["dur"] > 100e3
    # They overlap, on one clock. The later one's was read after it had sent what the earlier one
    # waited for: where others want the core, that one may have ended by then.
    assert early["ts"] + 100e3 < late["ts"] < early["ts"] + early["dur"] + 500e3


def event(number: int, status: str = "ok", tid: int = 0) -> dict[str, Any]:
    more = {"number": number, "sequence": number, "queued_us": 0.0, "status": status}
    head = {"name": f"op{number}", "cat": "by order", "ph": "X", "pid": 0, "tid": tid}
    return {**head, "ts": 1e6 + number, "dur": 3e3, "args": more}


def write(path: Path, rank: int, *events: dict[str, Any]) -> str:
    name = {"name": f"rank {rank} on a"}
    head = {"name": "process_name", "ph": "M", "pid": rank, "args": name}
    path.write_text(json.dumps({"traceEvents": [head, *events]}))
    return str(path)


def test_summary_names_late_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = "an operation ran past its time limit"
    a = write(tmp_path / "a", 0, event(1), event(2, ended))
    b = write(tmp_path / "b", 1, event(1))
    c = write(tmp_path / "c", 2)
    assert main(["trace", a, b, c, "--size", "5"]) == 0
    said = capsys.readouterr().out
    assert "waited for in op2 as operation 2: rank 1 on a, rank 2 on a" in said
    assert "3 of 5 ranks" in said and "no file of ranks 3, 4" in said
    assert "rank 2 on a  none" in said


def test_summary_names_slow_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = [{**event(n), "ts": 1e6 + n + 5e5} for n in (1, 2)]
    a = write(tmp_path / "a", 0, event(1), event(2), event(3))
    b = write(tmp_path / "b", 1, *later)
    assert main(["trace", a, b]) == 0
    said = capsys.readouterr().out
    assert re.search(r"rank 0 on a +0 +0 us\nrank 1 on a +2 +1 s", said), said


def test_two_comms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (tmp_path / f"ddl-{comm * 16}-rank0.json" for comm in "12")
    write(first, 0, event(1))
    write(second, 0, event(1))
    output = tmp_path / "all.json"
    assert main(["trace", str(tmp_path), "-o", str(output)]) == 0
    assert capsys.readouterr().out.count("1 of at least 1 ranks") == 2
    events = json.loads(output.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {i: f"rank 0 on a, comm {c * 16}" for i, c in enumerate("12")}


def test_trace_of_a_live_comm(
    pair: tuple[Comm, Comm], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, comm in zip(paths, pair, strict=True):
        path.write_text(json.dumps(comm.trace()))
    assert main(["trace", *map(str, paths)]) == 0
    assert "2 of at least 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON, or is truncated"),
        ('{"traceEvents": [\n{"na', "is not JSON, or is truncated"),
        ("[]", "is not a trace of one rank of libddl"),
        ('{"traceEvents": []}', "is not a trace of one rank"),
        ('{"traceEvents": [{"ph": "X"}]}', "is not a trace of one rank"),
        (b"\xff\xfe", "decode"),
    ],
)
def test_wrong_files(
    tmp_path: Path, text: str | bytes, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["trace", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ddl: {path}: ") and problem in said and said.count("\n") == 1


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, again = (write(tmp_path / name, 0, event(1)) for name in "ab")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, problem in (
        ([a, again], f"{again} and {a} are both traces of rank 0"),
        ([str(tmp_path / "no")], "no: No such file"),
        ([str(empty)], "the folder contains no file ddl-COMM-rankN.json"),
        ([a, "-o", str(tmp_path / "no" / "b")], "No such file"),
        ([a, "--size", "0"], "'0' is not an integer >= 1"),
    ):
        assert main(["trace", *arguments]) == 2
        assert problem in capsys.readouterr().err


def test_page_marks_who_blocks(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    first = write(
        tmp_path / "0.json", 0, event(0), event(1, "an operation ran past its time limit")
    )
    second = write(tmp_path / "1.json", 1, event(0))
    page = tmp_path / "all.html"
    assert main(["trace", first, second, "--html", str(page)]) == 0
    text = page.read_text()
    assert "waited for in op1 as operation 1: rank 1 on a" in text
    assert text.count("the others wait for this rank") == 1
    assert "no file: killed" not in text
    assert main(["trace", first, second, "--size", "4", "--html", str(page)]) == 0
    assert page.read_text().count("no file: killed, or not among those given") == 2
    outside = re.findall(r"<(?:script|link)[^>]+(?:src|href)=", text)
    assert outside == [], "the page needs nothing else"


TIMELINE = """
import os, signal, sys
import numpy as np
import ddl_core
comm = ddl_core.init()
for _ in range(100):
    comm.allreduce(np.ones(100))
if len(sys.argv) > 1 and comm.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
comm.barrier()
ddl_core.finalize()
"""


def test_timeline_has_all_ranks(ddlrun: Run, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for _ in range(2):  # the second run replaces the files of the first
        ended = ddlrun(2, TIMELINE, options=["--timeline", str(folder)]).expect_success()
        assert f"operations to {folder}/timeline.json; open it at ui.perfetto.dev" in ended.err
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {pid: name[:6] for pid, name in names.items()} == {0: "rank 0", 1: "rank 1"}
    sums = [e["pid"] for e in events if e["name"] == "all-reduce(f64, 100, sum)"]
    assert [sums.count(rank) for rank in (0, 1)] == [100, 100]


def test_timeline_without_a_common_folder_says_what_is_missing(tmp_path: Path) -> None:
    """On another host, the ranks have written to its own folder."""
    for rank in (0, 1):
        write(tmp_path / f"ddl-0123456789abcdef-rank{rank}.json", rank, event(0))
    assert "only" not in timeline.join(tmp_path, 2)
    message = timeline.join(tmp_path, 4)
    assert "It has only 2 of 4 ranks" in message
    assert f"ddl trace {tmp_path} -o {tmp_path}/timeline.json" in message


def test_timeline_of_a_killed_rank_is_read(ddlrun: Run, tmp_path: Path) -> None:
    ended = ddlrun(2, TIMELINE, "die", options=["--timeline", str(tmp_path)])
    assert ended.code == 137
    (file,) = tmp_path.glob("ddl-*-rank1.json")
    text = file.read_text()
    cut = text.index(',\n{"name": "all-reduce') + 20  # in the middle of an event
    file.write_text(text[:cut])
    assert main(["trace", str(file), "-o", str(tmp_path / "all.json")]) == 0


def test_timeline_needs_two_ranks(ddlrun: Run, tmp_path: Path) -> None:
    ended = ddlrun(1, TIMELINE, options=["--timeline", str(tmp_path)]).expect_success()
    assert "no timeline: " in ended.err
