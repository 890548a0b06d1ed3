# SPDX-License-Identifier: Apache-2.0
"""`ddl plan` and `ddl simulate` predict known results for simple clusters."""

import json
import sys
from pathlib import Path

import pytest

from ddl_launch.base.quantities import parse_bytes, parse_rate, parse_seconds
from ddl_launch.commands import methods, planning
from ddl_launch.commands.cli import main
from ddl_launch.commands.cluster import Cluster, read_cluster
from ddl_launch.commands.creation import predict
from ddl_launch.commands.model import read_model
from ddl_launch.commands.scaling import scale
from ddl_launch.commands.simulation import OPERATIONS, SimulationError, TooLongError, hops, simulate

pytestmark = pytest.mark.pure

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "clusters"
LAB = EXAMPLES / "lab.toml"
N = 4 << 20

HOST = """
[[level]]
name = "host"
kind = "shared"
count = {}
bandwidth = "8 GB/s"
latency = "1 us"
"""
WIRE = """
[[level]]
name = "{}"
kind = "wire"
count = {}
bandwidth = "100 MB/s"
latency = "10 us"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def make(folder: Path, ranks: object, *wires: int) -> Cluster:
    """Return a cluster with this many ranks on each host (None: no shared level), hosts, racks and
    aisles."""
    text = HOST.format(ranks) if ranks else ""
    text += "".join(WIRE.format(f"wire{i}", n) for i, n in enumerate(wires))
    return read_cluster(write(folder, text))


def test_one_message_takes_latency_and_bytes(tmp_path: Path) -> None:
    pair = make(tmp_path, None, 2)
    assert simulate(pair, "broadcast", 4000).seconds == pytest.approx(10e-6 + 4000 / 100e6)


def test_messages_share_a_wire(tmp_path: Path) -> None:
    three = make(tmp_path, None, 3)
    found = simulate(three, "allreduce", 4000, "one-shot")
    assert found.plan == "one-shot"
    assert found.seconds == pytest.approx(10e-6 + 2 * 4000 / 100e6)


def test_wires_of_a_host_are_shared_by_its_ranks(tmp_path: Path) -> None:
    few, many = make(tmp_path, 1, 2), make(tmp_path, 4, 2)
    times = [simulate(c, "allreduce", 4000, "one-shot").seconds for c in (few, many)]
    assert times[1] - 10e-6 > 15 * (times[0] - 10e-6)  # 16 messages instead of 1


def test_shared_memory_takes_passes(tmp_path: Path) -> None:
    """Direct, 2 ranks: publish a half, reduce a half, copy a half; each is a pass over memory."""
    pair = make(tmp_path, 2)
    found = simulate(pair, "allreduce", N)
    assert found.plan == "direct"
    assert found.seconds == pytest.approx(1.5 * N / 8e9, rel=0.01)


@pytest.mark.parametrize("hosts", [2, 3, 8])
@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_of_hierarchical_and_ring(tmp_path: Path, hosts: int, ranks: int) -> None:
    cluster = make(tmp_path, ranks, hosts)
    nbytes = 3 * N  # every part is whole
    p = hosts * ranks
    hierarchical = simulate(cluster, "allreduce", nbytes)
    assert hierarchical.plan == "hierarchical"
    assert hierarchical.sent[1] == 2 * nbytes * (hosts - 1)
    assert hierarchical.busiest[1] == pytest.approx(2 * nbytes * (1 - 1 / hosts), rel=2e-3)
    assert sum(hierarchical.sent) == 2 * nbytes * (p - 1)
    ring = simulate(cluster, "allreduce", nbytes, "ring")
    assert sum(ring.sent) == 2 * nbytes * (p - 1)
    assert ring.busiest[1] == pytest.approx(2 * nbytes * (1 - 1 / p), rel=2e-3)


def test_bytes_of_unequal_hosts(tmp_path: Path) -> None:
    cluster = make(tmp_path, [3, 1], 2)
    assert cluster.hosts == (3, 1)
    assert simulate(cluster, "allreduce", N).sent[1] == 2 * N


def test_bytes_of_racks_and_aisles(tmp_path: Path) -> None:
    cluster = make(tmp_path, 2, 2, 2, 2)
    assert cluster.size == 16
    sent = simulate(cluster, "allreduce", N).sent
    assert sent[3] == 2 * N  # between two aisles
    assert sent[2] == 2 * 2 * N  # in each of two aisles
    assert sent[1] == 4 * 2 * N


def test_wires_on_the_way_between_racks(tmp_path: Path) -> None:
    """Each host sends N within its rack, and half of its rack's total to the other one."""
    found = simulate(make(tmp_path, 2, 2, 2), "allreduce", N)
    assert found.busiest[2] == N
    assert found.busiest[1] == N + N // 2


def test_no_wire_is_quicker_than_its_rate(tmp_path: Path) -> None:
    cluster = make(tmp_path, 2, 4)
    found = simulate(cluster, "allreduce", N, busy_max=100_000)
    carried: dict[tuple[int, int, bool], float] = {}
    last: dict[tuple[int, int, bool], float] = {}
    for b in found.busy:
        wire = (b.level, b.group, b.inward)
        assert b.start >= last.get(wire, 0.0) - 1e-12  # one after the other
        last[wire] = b.end
        carried[wire] = carried.get(wire, 0.0) + (b.end - b.start) * 100e6
        assert b.end <= found.seconds
    assert len(carried) == 8
    assert max(carried.values()) == pytest.approx(found.busiest[1])
    assert found.seconds >= found.busiest[1] / 100e6


@pytest.mark.parametrize("operation", OPERATIONS)
def test_time_grows_with_bytes_and_never_depends_on_chance(tmp_path: Path, operation: str) -> None:
    cluster = make(tmp_path, 2, 3)
    sizes = [24 << 10, 240 << 10, 2400 << 10]
    times = [simulate(cluster, operation, n).seconds for n in sizes]
    assert 0 < times[0] < times[1] < times[2]
    assert times == [simulate(cluster, operation, n).seconds for n in sizes]


@pytest.mark.parametrize(
    ("ranks", "operation", "parts"),
    [(3, "ordered", 3), (3, "ordered:3", 3), (3, "ordered:8", 2 + 2 + 1), (6, "ordered:16", 10)],
)
def test_bytes_of_an_ordered_sum(tmp_path: Path, ranks: int, operation: str, parts: int) -> None:
    """Each rank sends its parts except its own share, and sends the others its share of the
    result."""
    size = 6 << 20
    found = simulate(make(tmp_path, None, ranks), operation, size)
    # Each host has one rank. With one part each, the hierarchical plan adds in this order.
    assert found.plan == ("hierarchical" if parts == ranks else "ordered")
    assert sum(found.sent) == (parts + ranks) * size * (ranks - 1) // ranks


@pytest.mark.parametrize(
    "operation", ["ordered:0", "ordered:4097", "ordered:x", "ring:3", "", ":4"]
)
def test_unknown_operations_are_refused(operation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(LAB), "--operation", operation]) == 2
    assert repr(operation) in capsys.readouterr().err


def test_hops(tmp_path: Path) -> None:
    cluster = make(tmp_path, 4, 4)
    assert hops(cluster, "allreduce", "one-shot") == 1
    assert hops(cluster, "allreduce", "hierarchical") == 4
    assert hops(cluster, "allreduce", "ring") == 2 * 15


def test_cores_are_shared(tmp_path: Path) -> None:
    """Two hosts are one machine with one core, which works for both ends of a message."""
    text = WIRE.format("wire", 2).replace("100 MB/s", "100 GB/s").replace("10 us", "0 us")
    cores = '[[cores]]\nnumber = 1\nhosts = {}\nmessage = "100 us"\nrate = "1 GB/s"\n'
    alone = read_cluster(write(tmp_path, text + cores.format(1)))
    together = read_cluster(write(tmp_path, text + cores.format(2)))
    n = 100_000  # one message in each direction, with half of the cost at each end
    times = [simulate(c, "allreduce", n, "one-shot").seconds for c in (alone, together)]
    assert times[0] == pytest.approx(200e-6, rel=0.02)
    assert times[1] == pytest.approx(400e-6, rel=0.02)


def test_a_thousand_ranks(tmp_path: Path) -> None:
    cluster = make(tmp_path, 4, 16, 16)
    found = simulate(cluster, "allreduce", 1 << 20)
    assert found.plan == "hierarchical"
    assert found.sent[2] == 2 * (1 << 20) * 15


def test_a_plan_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="plan direct: that plan cannot do it"):
        simulate(make(tmp_path, 2, 2), "allreduce", N, "direct")


def test_too_many_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make(tmp_path, 2, 2)
    with pytest.raises(TooLongError, match="plan hierarchical: .* too long") as caught:
        simulate(cluster, "allreduce", N, spans_max=10)
    assert caught.value.plan == "hierarchical"
    monkeypatch.setattr(planning, "_SPANS_MAX", 5)
    monkeypatch.setattr(planning, "SPANS_MAX", 10)
    found = list(planning.candidates(cluster, "allreduce", [N]))
    assert [(c.plan, c.hops, c.prediction) for c in found] == [
        ("hierarchical", 0, None),
        ("halving", 0, None),
        ("tree", 0, None),
        ("ring", 0, None),
        ("one-shot", 0, None),
    ]
    assert " - " in planning.as_table(cluster, "allreduce", found)
    assert (
        json.loads(planning.as_json(cluster, "allreduce", found))["candidates"][0]["sent"] is None
    )


@pytest.mark.parametrize("name", ["lab", "lab-unequal", "lab-4-hosts"])
def test_lab_is_predicted(name: str) -> None:
    cluster = read_cluster(EXAMPLES / f"{name}.toml")
    assert len(cluster.measured) >= 2
    for measured in cluster.measured:
        found = simulate(cluster, "allreduce", measured.bytes, measured.plan)
        assert found.seconds == pytest.approx(measured.seconds, rel=0.15)


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(LAB), "--bytes", "1KiB,64MiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    chosen = [line.split() for line in lines if " * " in line]
    assert [c[0] for c in chosen] == ["1", "64"] and chosen[1][3] == "hierarchical"
    assert chosen[1][-4:] == ["1", "N", "1", "N"]
    assert any(line.split()[0] == "ring" and "1.5 N" in line for line in lines if "ring" in line)


def test_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(LAB), "--bytes", "64MiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cluster"]["ranks"] == 4
    by_plan = {c["plan"]: c for c in found["candidates"]}
    assert [name for name, c in by_plan.items() if c["chosen"]] == ["hierarchical"]
    assert by_plan["hierarchical"]["busiest"]["network"] == 64 << 20
    assert by_plan["hierarchical"]["hops"] == 4


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_shown(operation: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "simulate"):
        assert main([command, str(LAB), "--operation", operation, "--bytes", "64KiB"]) == 0
        assert operation in capsys.readouterr().out


def test_simulate_shows_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(LAB), "--bytes", "64MiB"]) == 0
    out = capsys.readouterr().out
    assert "558 ms" in out and "841 ms" in out


@pytest.mark.parametrize("operation", ["allreduce", "reduce_scatter", "allgather"])
def test_packed_spans_have_fewer_bytes(operation: str) -> None:
    cluster = methods.ethernet(2, 2, 1.25e8)
    nbytes = 16 << 20
    plain = simulate(cluster, operation, nbytes)
    for wire, block in (("bf16", 256), ("int8", 129), ("int4", 65)):
        packed = simulate(cluster, operation, nbytes, wire=wire)
        assert packed.plan == "packed"
        sent = plain.busiest[1] * block / 512  # the last block of a span may be short
        assert packed.busiest[1] == pytest.approx(sent, rel=2e-3)
        assert packed.seconds == pytest.approx(plain.seconds * block / 512, rel=0.05)
    assert simulate(cluster, operation, 1024, wire="int8").plan != "packed"


METHODS = "--model-bytes 102MB --step-ms 250"


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    slow = f"plan {METHODS} --hosts 2 --rate 1Gbit/s"
    assert main(slow.split()) == 0
    told = capsys.readouterr().out
    assert "Ethernet: 2 ranks on 2 hosts\n" in told
    assert "\nf32                  985 ms   1.00         25%         860 ms       97.27 MiB" in told
    assert "\nUse int4: 3.55 times as fast as f32.\n" in told
    assert main([*slow.split(), "--local-steps", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["methods"]
    assert [each["name"] for each in found][4:] == ["PowerSGD, rank 4", "rounds of 20 steps"]
    assert found[0]["step"] == pytest.approx(0.985, rel=0.01)
    # Of the methods that pay, the one that changes least; f32 is none of them.
    assert main(f"plan {METHODS} --hosts 4 --rate 10Gbit/s".split()) == 0
    assert "\nUse bf16: 1.06 times as fast as f32.\n" in capsys.readouterr().out
    # Communication that the backward pass hides costs nothing.
    assert main(f"plan {METHODS} --hosts 2 --rate 100Gbit/s".split()) == 0
    assert "None pays: the fastest, " in capsys.readouterr().out
    assert main(["plan", str(LAB), *METHODS.split()]) == 0
    assert "lab, 2 hosts x 2 ranks: 4 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (METHODS, "give CLUSTER.toml, or --hosts and --rate"),
        (f"lab.toml {METHODS} --hosts 2 --rate 1Gbit/s", "give CLUSTER.toml, or --hosts and"),
        (
            "--model-bytes 1MB --hosts 2 --rate 1Gbit/s",
            "--model-bytes and --step-ms belong together",
        ),
        ("--model-bytes 1MB --step-ms 0", "--step-ms: '0' is not a number above 0"),
        (f"{METHODS} --hosts 2 --rate 5", "--rate: '5' is not a rate such as '100 Gbit/s'"),
    ],
)
def test_wrong_methods(arguments: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments.split()]) == 2
    assert problem in capsys.readouterr().err


def test_scaling(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(EXAMPLES / "power8.toml"), "--hosts", "1,4"]
    assert main([*arguments, "--model", str(EXAMPLES / "resnet50.toml")]) == 0
    assert "4      16" in capsys.readouterr().out


def test_overlap(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    gradient = '[[gradient]]\nbytes = 1000000\nbackward = "20 ms"\n'
    path.write_text('images = 1\nforward = "10 ms"\nbucket = "1 MB"\n' + 2 * gradient)
    model = read_model(path)
    assert [(b.bytes, b.ready) for b in model.buckets] == [
        (1000000, pytest.approx(0.03)),
        (1000000, pytest.approx(0.05)),
    ]
    assert model.step(lambda nbytes: 0.005) == pytest.approx(0.055)  # the first is hidden
    assert model.step(lambda nbytes: 0.030) == pytest.approx(0.090)  # they queue
    assert model.step_without_overlap(lambda nbytes: 0.005) == pytest.approx(0.060)
    (alone, pair) = scale(make(tmp_path, 1, 2), model, [1, 2])
    assert alone.efficiency == 1
    assert pair.without_overlap < pair.efficiency < 1
    path.write_text(path.read_text().replace('"1 MB"', '"2 MB"'))
    assert [b.bytes for b in read_model(path).buckets] == [2000000]


@pytest.mark.parametrize("name", ["resnet50", "resnet101"])
def test_models(name: str) -> None:
    model = read_model(EXAMPLES / f"{name}.toml")
    parameters = {"resnet50": 25_557_032, "resnet101": 44_549_160}[name]
    assert sum(b.bytes for b in model.buckets) == 4 * parameters


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "level: is missing"),
        ("level = 3", "level: must be a list of tables"),
        ("[[level]", "cluster.toml: "),
        (WIRE.format("a", 2).replace("wire", "rope"), "level[0].kind: 'rope' is not"),
        (WIRE.format("a", 2) + HOST.format(2), "level[1].kind: only the first"),
        (WIRE.format("a", 0), "level[0].count: 0 is not an integer >= 1"),
        (WIRE.format("a", "true"), "level[0].count: True is not an integer"),
        (HOST.format("[1, 2]") + WIRE.format("a", 3), "level[0].count: [1, 2] has the ranks of 2"),
        (WIRE.format("a", 2) * 4, "level: has more than 3 levels of wires"),
        (WIRE.format("a", 5000), "level: has 5000 ranks; the limit is 4096"),
        (
            WIRE.format("a", 2).replace("100 MB/s", "fast"),
            "level[0].bandwidth: 'fast' is not a rate",
        ),
        (WIRE.format("a", 2).replace("100 MB/s", "0 MB/s"), "level[0].bandwidth: '0 MB/s'"),
        (WIRE.format("a", 2).replace('"10 us"', "10"), "level[0].latency: 10 is not a time"),
        (WIRE.format("a", 2).replace("latency", "delay"), "level[0].latency: is missing"),
        (WIRE.format("a", 2) + "payload = 1.5", "level[0].payload: 1.5 is not a number"),
        (WIRE.format("a", 2) + "lanes = 4", "level[0].lanes: is unknown"),
        ("speed = 1\n" + WIRE.format("a", 2), "speed: is unknown"),
    ],
)
def test_wrong_clusters(
    tmp_path: Path, text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, text)
    assert main(["plan", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ddl: {path}: ") and problem in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["plan"], "ddl plan --help"),
        (["draw"], "draw"),
        (["plan", "nowhere.toml"], "nowhere.toml: No such file"),
        (["plan", str(LAB), "--bytes", "many"], "'many' is not a number of bytes"),
        (["plan", str(LAB), "--bytes", "2000 GiB"], "is above the limit of 1024 GiB"),
        (["simulate", str(LAB), "--hosts", "x", "--model", "m"], "'x' is not a list of integers"),
        (["simulate", str(LAB), "--model", str(LAB)], "lab.toml: images: is missing"),
        (
            ["simulate", str(LAB), "--model", str(EXAMPLES / "resnet50.toml"), "--hosts", "3"],
            "--hosts 3: ",
        ),
    ],
)
def test_wrong_usage(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["simulate", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    assert "cluster" in capsys.readouterr().out


def test_quantities() -> None:
    assert parse_bytes("64 MiB") == 64 << 20
    assert parse_bytes(12) == 12
    assert parse_rate("1 Gbit/s") == 125e6
    assert parse_seconds("2.5us") == pytest.approx(2.5e-6)


def test_creation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = [predict(make(tmp_path, n)) for n in (8, 128, 1024)]
    assert [m.descriptors for m in shared] == [15 + 2 * 7, 15 + 2 * 13, 15 + 2 * 19]
    wires = [predict(make(tmp_path, None, n)) for n in (8, 128, 1024)]
    assert [m.descriptors for m in wires] == [13 + 3 * 7, 13 + 13 + 14, 13 + 19 + 20]
    assert wires[2].rendezvous < 4 << 20  # a table for each rank would be 1.2 GB
    assert wires[2].rendezvous > 10 * wires[1].rendezvous / 2
    times = [(m.processor, m.creation, m.known, m.shrink) for m in shared]
    assert times == sorted(times)
    path = write(tmp_path, HOST.format(2) + WIRE.format("net", 4))
    assert main(["simulate", str(path), "--creation", "--hosts", "1,4"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line[:1].isdecimal()] == ["2", "8"]
    assert main(["simulate", str(path), "--creation", "--hosts", "5"]) == 2


MEASURED_SHARED = {"processor": 11.4e-3, "creation": 0.211, "descriptors": 41, "shrink": 0.42}
MEASURED_WIRES = {"processor": 10e-3, "descriptors": 40, "idle": 1.62e-3, "shrink": 0.71}


def test_creation_of_128(tmp_path: Path) -> None:
    """Within a third of the times measured on two cores (docs/scaling.md)."""
    cores = "[[cores]]\nnumber = 2\n"
    for text, measured in (
        (HOST.format(128) + cores, MEASURED_SHARED),
        (WIRE.format("net", 128) + cores + "hosts = 128\n", MEASURED_WIRES),
    ):
        found = predict(read_cluster(write(tmp_path, text)))
        for name, value in measured.items():
            assert getattr(found, name) == pytest.approx(value, rel=1 / 3), name


@pytest.mark.filterwarnings("default")  # of matplotlib
def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    model = ["--model", str(EXAMPLES / "resnet50.toml")]
    for name, more in (("wires.png", []), ("scaling.png", model)):
        picture = tmp_path / name
        assert main(["simulate", str(LAB), "--plot", str(picture), *more]) == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["simulate", str(LAB), "--plot", str(tmp_path / "no" / "a.png")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")  # of matplotlib
def test_plot_of_plans(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plans.png"
    question = ["plan", str(LAB), "--bytes", "64KiB", "--operation", "allgather"]
    assert main([*question, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_messages_of_a_plan() -> None:
    """The plot data has the senders, receivers and times: in a ring each rank sends to the next
    one."""
    cluster = read_cluster(LAB)
    found = simulate(cluster, "allreduce", 64 << 10, "ring", sent_max=1000)
    assert len(found.messages) == found.spans > 0
    assert {(m.receiver - m.sender) % cluster.size for m in found.messages} == {1}
    assert sum(m.bytes for m in found.messages) == sum(found.sent)
    assert all(0 <= m.start <= m.end <= found.seconds for m in found.messages)
    few = simulate(cluster, "allreduce", 64 << 10, "ring", sent_max=3)
    assert few.messages == found.messages[:3]


def test_plot_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["simulate", str(LAB), "--plot", "x.png"]) == 2
    assert "pip install 'libddl[plot]'" in capsys.readouterr().err
