# SPDX-License-Identifier: Apache-2.0
"""The input and output of ddlrun: hosts, ranks, allocations, modes, command lines, batch jobs."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import Run

from ddl_launch import foreign_options
from ddl_launch.arguments import make_parser, parse
from ddl_launch.base.command_line import find_similar
from ddl_launch.errors import LaunchError
from ddl_launch.hosts.allocation import expand_counts, expand_nodes, find_allocation
from ddl_launch.hosts.launchers import Launcher, LaunchRequest, start
from ddl_launch.hosts.layout import Host, Layout, lay_out, parse_hosts, read_hostfile, read_rankfile
from ddl_launch.hosts.topology import describe, library_options, mode_option
from ddl_launch.jobs.console import Console
from ddl_launch.rank import placement
from ddl_launch.rank.frames import HELLO, Frames, frame, open_proven, proven

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str) -> Path:
    Path("file").write_text(text)
    return Path("file")


def hosts_of(env: Mapping[str, str]) -> list[Host] | None:
    found = find_allocation(env)
    return list(found.hosts) if found else None


def placed(hosts: str, ranks: int | None = None, per_host: int | None = None) -> str:
    return lay_out(parse_hosts(hosts, "-H"), ranks, per_host).text


def shared(nodes: list[list[int]], size: int, binding: str) -> list[list[int]]:
    return [placement.share(nodes, rank, size, binding) for rank in range(size)]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
LSF = {"LSB_JOBID": "9"}
TWO_NODES = [[0, 1, 2, 3], [4, 5, 6, 7]]
MPIJOB = {"OMPI_MCA_orte_default_hostfile": str(GOLDEN / "mpijob_hostfile")}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: parse_hosts("h1", "-H"), [Host("h1")]),
        (lambda: parse_hosts("h1:2,h2:3", "-H"), [Host("h1", 2), Host("h2", 3)]),
        (
            lambda: parse_hosts("n-1.rack.lan,10.0.0.7:4", "-H"),
            [Host("n-1.rack.lan"), Host("10.0.0.7", 4)],
        ),
        (lambda: parse_hosts("h1,h2,h1", "-H"), [Host("h1", 2), Host("h2")]),
        (
            lambda: read_hostfile(
                written("# two forms\nh1 slots=2\n\nh2:3   # here\nh3 slots=1 max_slots=4\nh4\nh4")
            ),
            [Host("h1", 2), Host("h2", 3), Host("h3", 1), Host("h4", 2)],
        ),
        (lambda: placed("a:2,b:1"), "a:0,1;b:2"),
        (lambda: placed("a:2,b:2", 3), "a:0,1;b:2"),
        (lambda: placed("a,b"), "a:0;b:1"),
        (lambda: placed("a,b", 4), "a:0,1;b:2,3"),
        (lambda: placed("a,b:3", 5), "a:0,1;b:2,3,4"),
        (lambda: placed("a,b", None, 2), "a:0,1;b:2,3"),
        (lambda: placed("a:4,b:4", None, 2), "a:0,1;b:2,3"),
        (lambda: expand_nodes("n1"), ["n1"]),
        (lambda: expand_nodes("n[07-09,12],gpu1"), ["n07", "n08", "n09", "n12", "gpu1"]),
        (lambda: expand_nodes("r[1-2]n[3,5]"), ["r1n3", "r1n5", "r2n3", "r2n5"]),
        (lambda: expand_nodes("a,b-1,c"), ["a", "b-1", "c"]),
        (lambda: expand_nodes("n[1-2]-ib"), ["n1-ib", "n2-ib"]),
        (lambda: expand_counts("2(x3),1"), [2, 2, 2, 1]),
        (lambda: hosts_of(SLURM), [Host("n1"), Host("n2")]),
        (
            lambda: hosts_of({**SLURM, "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_NTASKS": "8"}),
            [Host("n1", 4), Host("n2", 4)],
        ),
        (lambda: hosts_of({"SLURM_JOB_ID": "7"}), None),
        # IBM Spectrum LSF 10.1, "Environment variables set for job execution", LSB_MCPU_HOSTS.
        (
            lambda: hosts_of({**LSF, "LSB_MCPU_HOSTS": "hostA 20 hostB 10"}),
            [Host("hostA", 20), Host("hostB", 10)],
        ),
        (lambda: hosts_of({"LSB_MCPU_HOSTS": "hostA 20"}), None),
        # PBS Professional, User's Guide, "The Job's Node File": the example of
        # -l select=3:ncpus=2:mpiprocs=2, where each host is listed twice.
        (
            lambda: hosts_of({"PBS_JOBID": "1.s", "PBS_NODEFILE": str(GOLDEN / "pbs_nodefile")}),
            [Host("VnodeA", 2), Host("VnodeB", 2), Host("VnodeC", 2)],
        ),
        # Kubeflow MPI Operator, v2beta1: the hostfile that it mounts at /etc/mpi/hostfile.
        (
            lambda: hosts_of({"K_MPI_JOB_ROLE": "launcher", **MPIJOB}),
            [Host("pi-worker-0.pi.default.svc", 2), Host("pi-worker-1.pi.default.svc", 2)],
        ),
        (lambda: mode_option(None, 4)[0], ""),
        (lambda: mode_option("r", 4)[0], "-mode r:4"),
        (lambda: mode_option("r:4", 4)[0], "-mode r:4"),
        (lambda: mode_option("d:2x3", 6)[0], "-mode d:2x3"),
        (lambda: mode_option("p", 6)[0], "-mode p:6"),
        (lambda: mode_option("p:6x2x1x1", 12)[0], "-mode p:6x2x1x1"),
        (lambda: mode_option("t:8", 8)[0], "-mode t:8"),
        (lambda: mode_option("h", 4)[0], "-mode h:4"),
        (lambda: mode_option("b", 6)[0], ""),
        (lambda: mode_option("b:4x8x2", 64)[0], "-mode d:4x8x2"),
        (lambda: describe(4, None, 2, None), "2x2"),
        (lambda: describe(4, 2, 2, 1), "2x2"),
        (lambda: describe(144, 18, 4, 2), "18x4;18x4"),
        (lambda: describe(4, 4, None, None), ""),
        (lambda: describe(4, None, 1, 2), "2x1;2x1"),
        (lambda: library_options(["-mode r:4 -dbg_level 2"]), ("r:4", "", {"DDL_LOG": "debug"})),
        (lambda: library_options(["-dbg_level 1"]), (None, "", {"DDL_LOG": "plan"})),  # as in C
        (lambda: library_options(["-dump_iter 100"]), (None, "-dump_iter 100", {})),
        (lambda: library_options(["-dev_sync 1"]), (None, "-dev_sync 1", {})),
        (lambda: library_options(["-rebind_iter 10"]), (None, "-rebind_iter 10", {})),
        (lambda: shared(TWO_NODES, 2, "numa"), TWO_NODES),
        (lambda: shared(TWO_NODES, 1, "numa"), [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (lambda: shared(TWO_NODES, 3, "numa"), [TWO_NODES[0], TWO_NODES[0], TWO_NODES[1]]),
        (lambda: shared(TWO_NODES, 4, "core"), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (lambda: shared([[0, 1, 2], [4, 5, 6]], 4, "core"), [[0], [1, 2], [4], [5, 6]]),
        (lambda: shared([[0, 1]], 3, "core"), [[0, 1]] * 3),
        (lambda: shared([[0, 1], [2, 3], [4], [5]], 2, "core"), [[0, 1, 2, 3], [4, 5]]),
        (lambda: shared([[0, 1], [2, 3]], 4, "none"), [[0, 1, 2, 3]] * 4),
        (lambda: placement.format_cores([0, 1, 2, 5, 7, 8]), "0-2,5,7-8"),
        (lambda: placement.parse_cores("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]),
        (lambda: placement.format_cores([]), ""),
        (lambda: [placement.threads(*each) for each in ((8, 2), (2.5, 2), (1, 4))], [4, 1, 1]),
        (lambda: placement.thread_variables({"OMP_NUM_THREADS": "3"}, 2), {}),
        (
            lambda: placement.thread_variables({"MKL_NUM_THREADS": "3"}, 2),
            dict.fromkeys(
                ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), "2"
            ),
        ),
        (
            lambda: parse(["-n", "1", "-x", "FOO.BAR", "-x", "a-b=c=d", "true"]).x,
            [("FOO.BAR", None), ("a-b", "c=d")],
        ),
    ],
)
def test_what_is_read_from_options_and_allocations(
    call: Callable[[], object], expected: object
) -> None:
    assert call() == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda text=text: parse_hosts(text, "-H"), "is not of the form HOST or HOST:RANKS")
            for text in ("", "h1,,h2", "h1:0", "h1:x", "h1:2:3", "-x", "h 1", "h1;rm")
        ),
        (lambda: read_hostfile(written("")), "the file lists no host"),
        (lambda: read_hostfile(written("h1 slots=two")), "line 1: 'h1 slots=two' is not of"),
        (lambda: read_hostfile(written("h1\nh2 fast")), "line 2"),
        (lambda: read_hostfile(Path("/nowhere")), "No such file"),
        (lambda: read_rankfile(written("rank 0=h1\nrank 0=h2")), "line 2: 'rank 0=h2' is not of"),
        (lambda: read_rankfile(written("rank 1=h1")), "must be 0, 1 and so on, without gaps"),
        (
            lambda: read_rankfile(written("rank 0=h1 slot=0:1-3")),
            "slot=0:1-3: write the numbers of the host's cores",
        ),
        (lambda: read_rankfile(written("0 h1")), "is not of the form rank N=HOST"),
        (lambda: read_rankfile(written("")), "without gaps"),
        (lambda: placed("a,b", 3), "-n 3 cannot be divided equally among 2 hosts"),
        (lambda: placed("a,b", 1), "-n 1 cannot be divided equally"),
        (lambda: placed("a:2,b:2", 5), r"-n 5: the hosts have only 4 slots \(a:2, b:2\)"),
        (lambda: placed("a:2,b:4", None, 4), "-accelerators 4: a has only 2 slots"),
        *(
            (lambda wrong=wrong: parse(["-n", "1", "-x", wrong, "true"]), "is not of the form VAR")
            for wrong in ("=x", "A B=1", "")
        ),
        (lambda: find_allocation({**LSF, "LSB_MCPU_HOSTS": "hostA many"}), "LSB_MCPU_HOSTS"),
        (lambda: find_allocation({"PBS_JOBID": "9", "PBS_NODEFILE": "/nowhere"}), "PBS_NODEFILE"),
        (lambda: mode_option("r:5", 4), "-mode r:5 is for 5 ranks, but there are 4"),
        (lambda: mode_option("p:2x3", 4), "-mode p:2x3 is for 6 ranks, but there are 4"),
        (lambda: mode_option("m:2x2", 4), "libddl has no mode m"),
        (lambda: mode_option("c", 4), "libddl has no mode c"),
        (lambda: mode_option("d", 4), "requires numbers"),
        (lambda: mode_option("x:4", 4), "-mode x:4: expected A or A:XxY"),
        (lambda: mode_option("d:2x2x1x1x1", 4), "up to four numbers"),
        (lambda: mode_option("d:2x", 4), "expected A or"),
        (lambda: library_options(["-dump_iter often"]), "-ddlarg -dump_iter often: expected"),
        (lambda: library_options(["-dbg_level 9"]), "-ddlarg -dbg_level 9: expected"),
    ],
)
def test_wrong_options_and_allocations(call: Callable[[], object], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        call()


def test_allocation_of_kubeflow_trainer() -> None:
    """Kubeflow Trainer v2 sets the variable of the hostfile, but no role. The file alone means
    nothing."""
    assert find_allocation(MPIJOB) is None
    found = find_allocation({**MPIJOB, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert found and found.scheduler == "k8s"
    assert [host.ranks for host in found.hosts] == [2, 2]
    assert find_allocation({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None


def test_launch_node_of_lsf_gets_no_rank(tmp_path: Path) -> None:
    """On clusters with launch nodes, which have jsrun."""
    env = {**LSF, "LSB_MCPU_HOSTS": "batch5 1 h1 42 h2 42", "PATH": str(tmp_path)}
    assert (hosts_of(env) or [])[0] == Host("batch5", 1)
    (tmp_path / "jsrun").touch(0o755)
    assert hosts_of(env) == [Host("h1", 42), Host("h2", 42)]


def test_cores_respect_affinity() -> None:
    text = "from ddl_launch.rank import placement; print(placement.look()[0])"
    core = max(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(core), sys.executable, "-c", text]
    ended = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert ended.stdout == f"[[{core}]]\n", ended.stderr


def test_threads_respect_cgroups() -> None:
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    root, values = first, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}
    if not first.is_dir():
        root, values = second, {"cpu.max": "150000 100000"}
    group = root / f"ddl-test-{os.getpid()}"
    text = "from ddl_launch.rank import placement; print(placement.look()[1])"
    try:
        group.mkdir()
        for name, value in values.items():
            (group / name).write_text(value)
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        enter = f'echo $$ >{group}/cgroup.procs && exec "$@"'
        command = ["sh", "-c", enter, "sh", sys.executable, "-c", text]
        ended = subprocess.run(command, cwd="/", capture_output=True, text=True)
    finally:
        group.rmdir()
    assert ended.stdout == f"{min(1.5, len(os.sched_getaffinity(0)))}\n", ended.stderr


BLOCKS = Layout(("a", "a", "b"))
MIXED = Layout(("a", "b", "a"))
AS_ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
COMMANDS = {
    "openmpi5": (
        Launcher("openmpi", "mpirun", (5, 0, 1)),
        BLOCKS,
        [
            *("--prtemca", "plm_ssh_agent", "rsh", "--hostfile", "d/hosts", "-n", "3"),
            *("--map-by", "slot", "--bind-to", "none", "-x", "A", "-x", "B", "--more"),
        ],
        "a slots=2\nb slots=1\n",
    ),
    "openmpi4": (
        Launcher("openmpi", "mpirun", (4, 1, 4)),
        MIXED,
        [
            *("--mca", "plm_rsh_agent", "rsh", "--hostfile", "d/hosts", "-n", "3", "--map-by"),
            *("seq", "--bind-to", "none", "-x", "A", "-x", "B", "--more"),
        ],
        "a\nb\na\n",
    ),
    "mpich": (
        Launcher("mpich", "mpirun", (4, 2)),
        MIXED,
        [
            *("-launcher", "ssh", "-launcher-exec", "rsh", "-f", "d/hosts", "-rankmap", "0,1,0"),
            *("--more", "-n", "3"),
        ],
        "a:2\nb:1\n",
    ),
    "intelmpi": (
        Launcher("intelmpi", "mpirun", (2021, 18)),
        MIXED,
        [
            *("-bootstrap", "ssh", "-bootstrap-exec", "rsh", "-machinefile", "d/hosts"),
            *("-genvlist", "A,B,I_MPI_PIN", "--more", "-n", "3"),
        ],
        "a:1\nb:1\na:1\n",
    ),
    "srun": (
        Launcher("srun", "srun", (22, 5)),
        BLOCKS,
        [
            *("--nodes", "2", "--ntasks", "3", "--distribution", "arbitrary", "--nodelist"),
            *("d/hosts", "--overcommit", "--cpu-bind=none", "--kill-on-bad-exit=1", "--export"),
            *("ALL", "--more"),
        ],
        "a\na\nb\n",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_lines(name: str) -> None:
    launcher, layout, arguments, hosts = COMMANDS[name]
    begin = start(LaunchRequest(launcher, layout, ["A", "B"], "rsh", ["--more"], Path("d")))
    root = AS_ROOT if launcher.kind == "openmpi" else []
    assert begin.command == [launcher.program, *root, *arguments]
    assert begin.files == {"hosts": hosts}


def test_frames_in_pieces() -> None:
    stream = frame(b"O", b"abc") + frame(b"E") + frame(b"X", b"1 2 3")
    frames = Frames()
    found = [one for i in range(len(stream)) for one in frames.feed(stream[i : i + 1])]
    assert found == [(b"O", b"abc"), (b"E", b""), (b"X", b"1 2 3")]
    with pytest.raises(ValueError, match="a frame of"):
        Frames().feed(b"O\xff\xff\xff\xff")


def test_frames_without_the_secret_are_refused() -> None:
    ((kind, data),) = Frames().feed(proven(HELLO, b"text", b"nonce", "secret"))
    assert open_proven(kind, data, b"nonce", "secret") == b"text"
    for nonce, secret in ((b"other", "secret"), (b"nonce", "other")):
        with pytest.raises(ValueError, match="secret"):
            open_proven(kind, data, nonce, secret)


def test_each_host_has_a_color_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()
    assert console.stream(3, "[3 h2] ", console.out, 1).prefix == b"[3 h2] "
    monkeypatch.setattr(console, "draws_on", lambda _: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = console.stream(3, "[3 h2] ", console.out, 1)
    assert (stream.prefix, stream.mark) == (b"\x1b[33m[3 h2] \x1b[0m", b"[3 h2] ")
    assert console.stream(3, "", console.out, 1).prefix == b""
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.stream(3, "[3 h2] ", console.out, 1).prefix == b"[3 h2] "


@pytest.mark.parametrize("kind", ["slurm", "lsf", "pbs", "k8s"])
def test_batch_jobs_are_as_documented(run_here: Run, kind: str, tmp_path: Path) -> None:
    """Each golden file names the documentation from which it was written."""
    (tmp_path / "train.py").touch()
    options = ["-nodes", "2", "-accelerators", "4", "-mode", "d:4x2"]
    more = ["--image", "registry/train:1"] if kind == "k8s" else ["--submitarg", _LIMITS[kind]]
    command = [sys.executable, "-m", "ddl_launch", "--submit", kind, "--dry-run", *options]
    ended = run_here([*command, *more, "train.py", "--epochs", "3"])
    assert (ended.code, ended.err) == (0, "")
    golden = [
        line for line in (GOLDEN / kind).read_text().splitlines() if not line.startswith("# Source")
    ]
    assert ended.out.replace(sys.executable, "PYTHON").splitlines() == golden
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


_LIMITS = {"slurm": "--time=1:00:00", "lsf": "-W 60", "pbs": "-l walltime=1:00:00"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "4"], "give the number of hosts, and of ranks on each"),
        (["-nodes", "2", "-accelerators", "2", "-n", "5"], "-n 5 contradicts 2 hosts of 2 ranks"),
        (["-nodes", "2", "-accelerators", "2", "-H", "a"], "the scheduler chooses the hosts"),
        (["-nodes", "2", "-accelerators", "2", "--image", "x"], "--image is not supported"),
        (["-nodes", "2", "-accelerators", "2"], "qsub is not in PATH"),
    ],
)
def test_wrong_submissions(run_here: Run, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "ddl_launch", "--submit", "pbs", *arguments, "/bin/true"]
    ended = run_here(command)
    assert ended.code in (2, 127)
    (line,) = ended.err.splitlines()
    assert message in line


def test_unlike_option_gets_no_suggestion() -> None:
    with pytest.raises(LaunchError) as caught:
        parse(["-n", "2", "--frobnicate", "train.py"])
    assert "unrecognized arguments: --frobnicate" in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["-np", "4"], "n", 4),
        (["--num-proc", "4"], "n", 4),
        (["--nproc-per-node", "4"], "accelerators", 4),
        (["--nproc_per_node=4"], "accelerators", 4),
        (["--nnodes", "1", "-n", "2"], "nnodes", 1),
        (["--hosts", "h1:2,h2:2"], "host", "h1:2,h2:2"),
        (["-H", "h1:2,h2:2"], "host", "h1:2,h2:2"),
        (["--hostfile", "hosts"], "hostfile", Path("hosts")),
        (["--start-timeout", "60"], "start_timeout", 60.0),
        (["--start_timeout=60"], "start_timeout", 60.0),
        (["--verbose"], "verbose", True),
        (["--output-filename", "logs"], "output_dir", Path("logs")),
        (["--timeline-filename", "trace.json"], "timeline_filename", "trace.json"),
    ],
)
def test_option_of_another_launcher_is_accepted(words: list[str], name: str, value: object) -> None:
    arguments = parse([*words, "train.py", "--nproc_per_node", "7"])
    assert getattr(arguments, name) == value
    assert arguments.command == ["train.py", "--nproc_per_node", "7"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--output-dri", "logs"], r"did you mean --output-dir\?"),
        (["--output_dirs=logs"], r"did you mean --output-dir\?"),
        (["-hostfiel", "logs"], r"did you mean -hostfile\?"),
        (["--dryrun"], r"did you mean --dry-run\?"),
        (["--no-perfix"], r"did you mean --no-prefix\?"),
        (["--acelerators", "4"], r"did you mean -accelerators\?"),
        (["--node-rank", "1"], "start ddlrun once"),
        (["--node_rank=1"], "start ddlrun once"),
        (["--rdzv-backend", "c10d"], "leave it out: ddlrun connects the ranks"),
        (["--rdzv_endpoint=h1:29400"], "leave it out: ddlrun connects the ranks"),
        (["--master-addr", "h1"], "leave it out: ddlrun connects the ranks"),
        (["--master_port=29500"], "leave it out: ddlrun connects the ranks"),
        (["-m", "train.main"], "ddlrun -n N python -m train.main"),
        (["--max-restarts", "3"], "ddl elastic run"),
        (["--min-np", "2"], "ddl elastic run"),
        (["--autotune"], "-mode p"),
        (["--log-level", "INFO"], "DDL_LOG"),
        (["--stall-check-warning-time-seconds", "30"], "DDL_STALL_WARN_MS=30000 "),
        (["--network-interfaces=ib0"], "DDL_INTERFACES=ib0 "),
        (["-p", "2222"], "Port 2222 into"),
        (["-cb"], "ddl doctor"),
        (["--num-nccl-streams", "2"], "leave it out"),
        (["--no-autotune"], "-mode p"),
        (["--slots", "4"], "ddl elastic run"),
        (["--bind-to", "core"], "--bind core"),
    ],
)
def test_misspelt_or_foreign_option_is_answered(words: list[str], answer: str) -> None:
    with pytest.raises(LaunchError, match=answer) as caught:
        parse(["-n", "2", *words, "train.py"])
    assert words[0].partition("=")[0] in str(caught.value)


def test_answers_of_other_launchers_hide_no_own_option() -> None:
    known = make_parser()._option_string_actions
    assert not [name for name in foreign_options._INSTEAD if find_similar(name, known) == name]
    assert all(name in known for name in foreign_options._SAME.values())


def test_documented_options_of_horovodrun_are_known() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "coming-from.md").read_text()
    rows = page.partition("### horovodrun")[2].partition("###")[0]
    accepted = answered = 0
    for given, ours in re.findall(r"^\| (`.*`) \| (.*) \|$", rows, re.MULTILINE)[1:]:
        for words in (text.split() for text in re.findall("`([^`]+)`", given)):
            same = ours.startswith("the same")
            assert same == (not foreign_options.find_replacement(words[0])), words
            if same:
                assert parse([*words, "train.py"]).command == ["train.py"]
            accepted, answered = accepted + same, answered + (not same)
    assert accepted > 8 and answered > 12
