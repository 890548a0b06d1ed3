# SPDX-License-Identifier: Apache-2.0
"""`ddl plan --model-bytes`: predicts a training step for each method of sending fewer bytes, and
reports if no method makes it faster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from ddl_launch.base.quantities import show_bytes, show_seconds
from ddl_launch.commands.cluster import Cluster, Cores, Level
from ddl_launch.commands.model import Bucket, Model
from ddl_launch.commands.simulation import WIRES, simulate
from ddl_launch.commands.tables import show, show_cluster

PAYS = 1.05  # a method that is less than 5 % faster than f32 does not pay
ALIKE = 1.1  # of two methods that are this near, the one that changes less is better
_BUCKET = 25 << 20  # the default of DistributedDataParallel
_FORWARD = 1 / 3  # of the computation; the backward pass computes twice as much
_RANK, _WIDTH = 4, 1024  # of PowerSGD; the assumed width of the gradients' matrices
_PASSES = 4  # over a gradient: two products, the decoding, and what is lost
_HEADERS = 0.949  # payload of Ethernet, IPv4 and TCP with time stamps: 1448 of 1526 bytes


@dataclass(frozen=True)
class PredictedStep:
    """The predicted step of one method. Times are in seconds."""

    name: str
    step: float
    communication: float  # of one step, by itself
    sent: float  # bytes on the busiest wire in one direction, for one step
    efficiency: float  # the speed of a rank relative to a rank without communication


def ethernet(hosts: int, ranks: int, rate: float) -> Cluster:
    """Return `hosts` hosts with `ranks` ranks each, on Ethernet of `rate` bytes per second.

    Memory and cores are the same as in examples/clusters/lab.toml, but each rank has its own core.
    """
    memory = 15.9e9
    shared = Level("host", memory, 0.26e-6) if ranks > 1 else None
    wire = Level("network", rate * _HEADERS, 20e-6)
    cores = Cores(message=6.5e-6, byte=1 / 3.3e9)
    return Cluster("Ethernet", (ranks,) * hosts, (hosts,), memory, shared, (wire,), cores, ())


def predict(cluster: Cluster, nbytes: int, seconds: float, local_steps: int) -> list[PredictedStep]:
    """Predict a step with gradients of `nbytes` in f32 and `seconds` of computation.

    Gradients are reduced bucket by bucket during the backward pass. Raises SimulationError.
    """

    def of(name: str, reduce: Callable[[int], tuple[float, float]]) -> PredictedStep:
        step = model.step(lambda size: reduce(size)[0])
        each = [reduce(bucket.bytes) for bucket in model.buckets]
        communication, sent = sum(time for time, _ in each), sum(sent for _, sent in each)
        return PredictedStep(name, step, communication, sent, seconds / step)

    def ask(size: int, wire: str = "f32", operation: str = "allreduce") -> tuple[float, float]:
        found = simulate(cluster, operation, max(size, 4), wire=wire)
        return found.seconds, max(found.busiest[1:], default=0)

    def power_sgd(size: int) -> tuple[float, float]:
        time, sent = ask(size * _RANK // _WIDTH)
        return 2 * time + _PASSES * size / cluster.memory, 2 * sent

    model = _model(nbytes, seconds)
    found = [of(wire, partial(ask, wire=wire)) for wire in WIRES]
    found.append(of(f"PowerSGD, rank {_RANK}", power_sgd))
    whole, sent = ask(nbytes, operation="ordered")
    communication = whole / local_steps
    step = seconds + communication
    name = f"rounds of {local_steps} steps"
    found.append(PredictedStep(name, step, communication, sent / local_steps, seconds / step))
    return found


def _model(nbytes: int, seconds: float) -> Model:
    number = -(-nbytes // _BUCKET)
    ends = [seconds * (_FORWARD + (1 - _FORWARD) * (i + 1) / number) for i in range(number)]
    buckets = tuple(Bucket(nbytes // number, end) for end in ends)
    return Model("", 1, seconds, buckets, ())


def verdict(found: Sequence[PredictedStep]) -> str:
    """Return a text that names the fastest method, or states that no method makes a step faster."""
    plain = found[0]
    best = min(found, key=lambda method: method.step)
    gain = plain.step / best.step
    if gain < PAYS:
        return f"None pays: the fastest, {best.name}, would be {gain:.2f} times as fast as f32."
    most = min(best.step * ALIKE, plain.step / PAYS)
    best = next(method for method in found if method.step <= most)
    return f"Use {best.name}: {plain.step / best.step:.2f} times as fast as f32."


def as_table(cluster: Cluster, nbytes: int, seconds: float, found: Sequence[PredictedStep]) -> str:
    """Return the predictions as a text table, with the verdict."""
    rows = [["method", "step", "x f32", "efficiency", "communication", "sent by a host"]]
    for m in found:
        speed = f"{found[0].step / m.step:.2f}"
        row = [m.name, show_seconds(m.step), speed, f"{m.efficiency:.0%}"]
        rows.append([*row, show_seconds(m.communication), show_bytes(m.sent)])
    return "\n".join(
        [
            show_cluster(cluster),
            f"a step of {show_seconds(seconds)} of computation, gradients of {show_bytes(nbytes)}",
            "",
            show(rows),
            "",
            verdict(found),
            "",
            "x f32: steps per second relative to f32",
            "communication: of one step, without the part that the backward pass hides",
            f"PowerSGD: for matrices of {_WIDTH} x {_WIDTH}; rounds: see the page 'Rounds of local"
            " steps'",
        ]
    )


def as_json(nbytes: int, seconds: float, found: Sequence[PredictedStep]) -> str:
    """Return the predictions as JSON, in seconds and bytes."""
    methods = [asdict(method) for method in found]
    return json.dumps({"bytes": nbytes, "computation": seconds, "methods": methods}, indent=1)
