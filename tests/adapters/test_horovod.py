# SPDX-License-Identifier: Apache-2.0
"""Horovod's API over libddl: docs/horovod.md describes each name in Horovod's documentation, as
listed in horovod_names.txt. programs/horovod_*.py test the results."""

import json
import random
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from conftest import Run

from ddl_core.errors import PeerLost
from ddl_horovod.common import HorovodInternalError
from ddl_horovod.executor import JOIN, Executor, MemberCall, Perform

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent.parent / "docs" / "horovod.md"
MODULES = ("torch", "tensorflow", "tensorflow.keras", "keras")
ROW = re.compile(
    r"^\| `([\w.]+)(\([^)]*\))?` \| ([\w., ]+) \| (supported|differs|not supported) \|", re.M
)
EXTRA = {"is_homogeneous", "get_process_set_ids_and_ranks"}
SIGNATURES = """
import importlib, inspect, json, sys
stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
def default(value):
    if type(value).__name__ == "ProcessSet":
        return "=global_process_set"
    name = value.__qualname__ if isinstance(value, type) else getattr(value, "name", repr(value))
    return "" if value is inspect.Parameter.empty else f"={name}"
def arguments(value):
    if not callable(value) or isinstance(value, type) and issubclass(value, BaseException):
        return None
    found = []
    for p in inspect.signature(value).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not any(each.startswith("*") for each in found):
            found.append("*")
        found.append(stars.get(p.kind, "") + p.name + default(p.default))
    return found
def names(module):
    try:
        module.elastic.run
    except NotImplementedError as error:
        assert "elastic.Job" in str(error) and "ddl elastic run" in str(error)
    else:
        raise AssertionError("elastic is not refused")
    values = {name: getattr(module, name) for name in module.__all__}
    del values["elastic"]
    callbacks = values.pop("callbacks", None)
    for name in getattr(callbacks, "__all__", ()):
        values[f"callbacks.{name}"] = getattr(callbacks, name)
    return {name: arguments(value) for name, value in values.items()}
modules = {name: importlib.import_module(f"ddl_horovod.{name}") for name in sys.argv[1:]}
print(json.dumps({name: names(module) for name, module in modules.items()}))
"""


def documented() -> set[tuple[str, str, str]]:
    lines = (FOLDER / "horovod_names.txt").read_text().splitlines()[1:]
    names = [re.fullmatch(r"(\S+) ([\w.]+)(.*)", line) for line in lines]
    return {(each[1], each[2], each[3]) for each in names if each}


def page() -> dict[tuple[str, str, str], str]:
    return {
        (module, name, arguments): state
        for name, arguments, modules, state in ROW.findall(PAGE.read_text())
        for module in (MODULES if modules == "all" else modules.split(", "))
    }


def test_page_lists_what_horovod_documents() -> None:
    states = page()
    assert set(states) == documented()
    counts = {state: list(states.values()).count(state) for state in set(states.values())}
    said = re.search(
        r"the (\d+) names .*: (\d+) are supported, (\d+) differ and (\d+) are not",
        " ".join(PAGE.read_text().split()),
    )
    assert said is not None
    assert [int(each) for each in said.groups()] == [
        *(len(states), counts["supported"], counts["differs"], counts["not supported"])
    ]
    assert counts["supported"] >= 0.92 * len(states)


@pytest.mark.usefixtures("torch_native", "tensorflow_native")
def test_modules_have_what_the_page_says(run_here: Run) -> None:
    """Import it in a separate process, since frameworks start threads."""
    command = [sys.executable, "-c", SIGNATURES, *MODULES]
    ended = run_here(command, limit=120).expect_success()
    modules: dict[str, dict[str, list[str] | None]] = json.loads(ended.out)
    written = [
        f"{module} {name}" + ("" if arguments is None else f"({', '.join(arguments)})")
        for module, has in modules.items()
        for name, arguments in has.items()
        if "." not in name and "SyncBatchNorm" not in name  # a framework's class defines it
    ]
    recorded = (FOLDER / "horovod_signatures.txt").read_text().splitlines()[1:]
    assert sorted(written) == sorted(recorded)
    for module, has in modules.items():
        served = {n: a for (m, n, a), s in page().items() if m == module and s != "not supported"}
        assert set(served) <= set(has) <= {*served, *EXTRA}, module
        for name, arguments in served.items():
            listed = [each for each in arguments.strip("()").split(", ") if each]
            given = [each.partition("=")[0] for each in has[name] or () if each != "*"]
            assert given[: len(listed)] == listed, f"{module}.{name}"


@pytest.mark.slow
@pytest.mark.usefixtures("tensorflow_native")
def test_keras_gradients_in_a_wire_format(ddlrun: Run) -> None:
    """Ranks that are joined by TCP count as hosts."""
    program = FOLDER / "programs" / "horovod_keras_packing.py"
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "DDL_LINKS": "tcp"}
    ended = ddlrun(2, program, env=env, limit=240).expect_success()
    assert ended.out.count("done") == 2


@pytest.mark.usefixtures("torch_native", "tensorflow_native")
@pytest.mark.parametrize(
    ("program", "parts", "size"),
    [
        pytest.param("torch", 18, 2, marks=pytest.mark.slow),
        ("torch", 18, 3),
        pytest.param("tensorflow", 17, 2, marks=pytest.mark.slow),
        pytest.param("tensorflow", 17, 3, marks=pytest.mark.slow),
        pytest.param("keras", 11, 2, marks=pytest.mark.slow),
        pytest.param("keras", 11, 3, marks=pytest.mark.slow),
    ],
)
def test_values(ddlrun: Run, program: str, parts: int, size: int) -> None:
    """The program has used each name that the page calls "served"."""
    path = FOLDER / "programs" / f"horovod_{program}.py"
    ended = ddlrun(size, path, env={"TF_CPP_MIN_LOG_LEVEL": "2"}, limit=300).expect_success()
    assert ended.out.count("done ") == parts * size, ended.out
    used = re.findall(r"^\[\d\] used (\S+) (.*)", ended.out, re.M)
    for module in ("keras", "tensorflow.keras") if program == "keras" else (program,):
        names = {name for m, line in used if m == module for name in line.split()}
        served = {
            name for (m, name, _), state in page().items() if (m, state) == (module, "served")
        }
        assert served <= names, f"{module}: {sorted(served - names)}"


WITHOUT_COMPILER = """
import tensorflow as tf
import ddl_horovod.tensorflow as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
own = tf.range(2 * size) + 100 * rank
@tf.function
def graph():
    return hvd.allreduce(own, op=hvd.Sum), hvd.alltoall(own), hvd.allgather(own[:rank])
total, moved, gathered = graph()
assert total.numpy().tolist() == [size * each + 50 * size * (size - 1) for each in range(2 * size)]
assert moved.numpy().tolist() == [100 * r + 2 * rank + i for r in range(size) for i in (0, 1)]
assert gathered.numpy().tolist() == [100 * r + i for r in range(size) for i in range(r)]
@tf.function
def other_roots():
    hvd.broadcast(own, min(rank, 1))
@tf.function
def wrong_rows():
    hvd.alltoall(tf.ones([size + 1]))
for wrong, kind in (
    (other_roots, tf.errors.FailedPreconditionError), (wrong_rows, tf.errors.InvalidArgumentError)
):
    try:
        wrong()
    except kind:
        continue
    raise AssertionError(kind)
print("done")
"""


@pytest.mark.slow
def test_tensorflow_graphs_without_compiler_work(ddlrun: Run, tmp_path: Path) -> None:
    env = {"CXX": "no-such-compiler", "DDL_CACHE": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    ended = ddlrun(2, WITHOUT_COMPILER, env=env, limit=120).expect_success()
    assert [ended.lines(rank)[-1] for rank in range(2)] == ["done", "done"]


class Threads:
    """Members of a process set, as threads of this process."""

    group = None

    def __init__(self, number: int, parts: list[bytes], barrier: threading.Barrier) -> None:
        self._number, self._parts, self._barrier = number, parts, barrier
        self.taken: list[str] = []

    def size(self) -> int:
        return len(self._parts)

    def gather(self, data: bytes) -> list[bytes]:
        self._barrier.wait()
        self._parts[self._number] = data
        self._barrier.wait()
        return list(self._parts)

    def take_part(self, call: MemberCall, calls: list[MemberCall]) -> None:
        self.taken.append(call.name)

    def internal(self, error: Exception) -> Exception:
        return error

    def close(self) -> None:
        self._barrier.abort()


@pytest.fixture
def executors() -> Iterator[list[Executor]]:
    parts, barrier = [b""] * 3, threading.Barrier(3, timeout=30)
    made = [Executor(Threads(number, parts, barrier)) for number in range(3)]
    yield made
    barrier.abort()


def call_all(executor: Executor, calls: list[MemberCall], order: list[str]) -> list[Future[str]]:
    """Submit the calls. The result of each call is its name, which it appends to the order."""

    def performs(name: str) -> Perform:
        return lambda group, calls: order.append(name) or name

    return [executor.submit(call, performs(call.name)) for call in calls]


def test_graph_calls_in_any_order_match_by_name(executors: list[Executor]) -> None:
    orders: list[list[str]] = [[], [], []]
    results = []
    for number, (executor, order) in enumerate(zip(executors, orders, strict=True)):
        ordered = [MemberCall("allreduce", f"program{n}") for n in range(20)]
        graph = [MemberCall("allreduce", f"graph{n % 20}", graph=True) for n in range(40)]
        random.Random(number).shuffle(graph)
        calls = [each for pair in zip(graph, ordered, strict=False) for each in pair]
        results.append((calls + graph[20:], call_all(executor, calls + graph[20:], order)))
    for calls, futures in results:
        assert [each.result(30) for each in futures] == [call.name for call in calls]
    assert orders[0] == orders[1] == orders[2] and len(orders[0]) == 60


def test_close_ends_a_call_that_other_members_do_not_make(executors: list[Executor]) -> None:
    (pending,) = call_all(executors[0], [MemberCall("allreduce", "alone")], [])
    executors[0].close()
    with pytest.raises(HorovodInternalError, match="was closed before all members called this"):
        pending.result(10)


def test_a_failed_exchange_names_the_operation() -> None:
    """Otherwise the error of a lost rank names the exchange, which no program has called."""

    class LostMembers(Threads):
        def gather(self, data: bytes) -> list[bytes]:
            raise PeerLost("rank 1 on a left the comm while rank 0 called all-gather(u8, 512)")

    executor = Executor(LostMembers(0, [b""], threading.Barrier(1)))
    call = MemberCall("allreduce", "weight", ["float32"], [[4]])
    (failed,) = call_all(executor, [call], [])
    with pytest.raises(PeerLost, match=r"^allreduce 'weight' of float32\(4,\): rank 1 on a left"):
        failed.result(10)


def test_graph_calls_with_joined_members_are_performed(executors: list[Executor]) -> None:
    order: list[str] = []
    join = [
        lambda each=each: each.submit(MemberCall(JOIN, ""), lambda *_: None) for each in executors
    ]
    lasts = [join[1]()]
    both = [
        call_all(
            executors[number], [MemberCall("allreduce", "both", equal=["Sum"], graph=True)], order
        )
        for number in (2, 0)
    ]
    assert [futures[0].result(30) for futures in both] == ["both", "both"]
    lasts.append(join[0]())
    (alone,) = call_all(executors[2], [MemberCall("allreduce", "alone", equal=["Sum"])], order)
    assert alone.result(30) == "alone"
    lasts.append(join[2]())
    assert [each.result(30) for each in lasts] == [2, 2, 2]
    assert order == ["both", "both", "alone"]


# The calls of Horovod's guides for PyTorch and Keras, in their order.
SCRIPTS = {
    "torch": """
import torch
import torch.nn.functional as F
import horovod.torch as hvd

hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)
images, labels = torch.randn(96, 1, 8, 8), torch.randint(10, (96,))
data = torch.utils.data.TensorDataset(images, labels)
sampler = torch.utils.data.distributed.DistributedSampler(
    data, num_replicas=hvd.size(), rank=hvd.rank()
)
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.none,
    op=hvd.Average,
    gradient_predivide_factor=1.0,
)
for epoch in range(8):
    sampler.set_epoch(epoch)
    for image, label in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(image), label)
        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    average = hvd.allreduce(torch.tensor(loss.item()), name="avg_loss")
    if hvd.rank() == 0:
        print("loss", average.item())
""",
    "tensorflow.keras": """
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
tf.random.set_seed(hvd.rank())
images, labels = tf.random.normal([96, 16]), tf.random.uniform([96], 0, 10, tf.int64)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(8)
model = tf.keras.Sequential([
    tf.keras.layers.Dense(64, activation="relu"),
    tf.keras.layers.Dense(10, activation="softmax"),
])
scaled_lr = 0.001 * hvd.size()
opt = tf.keras.optimizers.Adam(scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"]
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.keras"))
history = model.fit(
    dataset, steps_per_epoch=24 // hvd.size(), callbacks=callbacks, epochs=8, verbose=0
)
if hvd.rank() == 0:
    for loss in history.history["loss"]:
        print("loss", loss)
""",
}


@pytest.mark.usefixtures("torch_native", "tensorflow_native")
@pytest.mark.parametrize(
    "module", ["torch", pytest.param("tensorflow.keras", marks=pytest.mark.slow)]
)
def test_a_program_moves_over_by_one_line(ddlrun: Run, tmp_path: Path, module: str) -> None:
    changed = SCRIPTS[module].replace(f"import horovod.{module}", f"import ddl_horovod.{module}")
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_TIMELINE": str(tmp_path / "timeline.json")}
    ended = ddlrun(2, changed, env=env, limit=180).expect_success()
    assert "NEGOTIATE_ALLREDUCE" in (tmp_path / "timeline.json").read_text()
    losses = [float(line.split()[1]) for line in ended.lines(0) if line.startswith("loss")]
    assert len(losses) == 8 and losses[-1] < losses[0]


SUITE = {
    "test_torch.py": """
import unittest
import horovod.torch as hvd
from horovod.runner.util.threads import in_thread
class TorchTests(unittest.TestCase):
    def test_sum(self):
        hvd.init()
        assert hvd.size() == 2
    def test_unknown_failure(self):
        assert hvd.rank() == 0
    def test_on_gpu(self):
        with self.subTest():
            self.skipTest("no GPU")
    def test_force_allreduce(self):
        pass
""",
    "test_tensorflow.py": """
import unittest
class TensorFlowTests(unittest.TestCase):
    def test_elastic_state(self):
        self.fail("wanted")
    def test_other(self):
        for name in ("graph", "eager"):
            with self.subTest(name):
                if name == "graph":
                    self.skipTest("eager only")
""",
}


@pytest.mark.slow
@pytest.mark.usefixtures("torch_native", "tensorflow_native")
def test_suite_notices_failures_and_passes(run_here: Run, tmp_path: Path) -> None:
    """A replacement for Horovod's own tests, which are not in this repository."""
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, FOLDER / "horovod_suite.py", tmp_path]
    ended = run_here(command, limit=600)
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert "FAILED test_torch.py test_unknown_failure" in lines
    assert any(
        line.startswith("passed test_torch.py test_force_allreduce, expected to fail: ")
        for line in lines
    )
    assert any(line.startswith("not found test_torch.py test_broadcast_state,") for line in lines)
    counts = "1 passed, {} skipped, {} failed as expected, {} failed".format
    assert f"test_torch.py, 2 ranks: {counts(1, 0, 1)}" in lines
    assert f"test_tensorflow.py, 2 ranks: {counts(0, 1, 0)}" in lines
