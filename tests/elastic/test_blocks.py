# SPDX-License-Identifier: Apache-2.0
"""Jobs with blocks have the bits of jobs without shards, for any number of ranks and any death.

`make test-sharded` runs all of them.
"""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import ddl_core  # noqa: E402
import ddl_torch.elastic as elastic  # noqa: E402
from ddl_core.errors import Aborted, PeerLost, TimedOut  # noqa: E402
from ddl_elastic.sharded.reads import Reads, Span, find_sources, merge, subtract  # noqa: E402
from ddl_torch.elastic.block_adapter import BlockAdapter  # noqa: E402
from ddl_torch.elastic.pages import Pages  # noqa: E402

CASE: dict[str, Any] = {"model": "layers", "passes": 1}
BLOCKS: dict[str, Any] = {
    **CASE,
    "shard": True,
    "blocks": ["layers.0", "layers.1", "layers.2"],
    "bucket_bytes": 30000,
}


def kill(member: int, step: int, phase: str) -> dict[str, Any]:
    return {"member": member, "step": step, "phase": phase}


@pytest.mark.parametrize(
    "ranks", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 8))]
)
def test_any_number_of_ranks_has_the_bits_of_the_unsharded_job(members: Any, ranks: int) -> None:
    members.check(members=ranks, **BLOCKS)


@pytest.mark.parametrize(
    "phase",
    [
        "compute",
        "answer",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("backward", "reduce", "vote", "apply")),
    ],
)
def test_death_of_one_member_keeps_the_bits(members: Any, phase: str) -> None:
    members.check(members=3, kills=[kill(1, 3, phase)], **BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("who", [[0], [2], [3], [0, 2], [1, 3]])
@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("owners", ["even", "changing"])
@pytest.mark.parametrize("phase", ["answer", "compute"])
def test_deaths_during_shares(
    members: Any, phase: str, owners: str, links: str, who: list[int]
) -> None:
    kills = [kill(member, 3, phase) for member in who]
    members.check(members=4, owners=owners, links=[links], kills=kills, **BLOCKS)


@pytest.mark.slow
def test_deaths_one_after_another_during_a_read(members: Any) -> None:
    kills = [kill(1, 3, "answer"), kill(3, 3, "answer"), kill(4, 4, "answer")]
    members.check(members=6, kills=kills, **BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["answer", "compute"])
def test_two_copies_keep_the_bits_if_two_holders_die(members: Any, phase: str) -> None:
    kills = [kill(member, 3, phase) for member in (1, 2)]
    members.check(members=5, copies=2, kills=kills, **BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["answer", "compute"])
def test_only_the_holder_that_hangs_is_expelled(members: Any, phase: str) -> None:
    members.check(members=4, watchdog=2, kills=[{**kill(1, 3, phase), "how": "gil"}], **BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [["layers.1"], ["layers.0.inner"], ["embed", "layers.2"]])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_choices_of_blocks_keep_the_bits(members: Any, blocks: list[str], optimizer: str) -> None:
    members.check(members=4, **{**BLOCKS, "blocks": blocks, "optimizer": optimizer})


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"loop": "bf16"}, {"clip_norm": 0.5}, {"weighted": True}])
def test_programs_keep_the_bits(members: Any, more: Any) -> None:
    members.check(members=3, **BLOCKS, **more)


def test_evaluation_uses_the_whole_model(members: Any) -> None:
    logs = members.check(members=3, evaluate=[2], kills=[], **BLOCKS)
    alone = members.check(members=1, evaluate=[2], kills=[], **CASE)
    tables = [line[2] for log in (*logs, *alone) for line in log if line[0] == "table"]
    assert len(tables) == 4 and all(table == tables[0] for table in tables)


def test_change_after_an_operation_is_read_by_all_ranks(members: Any) -> None:
    members.check(members=3, clamp=3, **BLOCKS)


@pytest.mark.slow
def test_operation_before_the_update_keeps_the_bits(members: Any) -> None:
    members.check(members=3, early=[2], **BLOCKS)


@pytest.mark.slow
def test_death_of_both_holders_returns_to_the_newest_checkpoint(members: Any) -> None:
    saved = {"every": 1, "batch": 32, "logical": 8, "ends": []}
    _, (alone,) = members.run(members=1, saved="whole", **CASE, **saved)
    kills = [kill(1, 3, "answer"), kill(2, 3, "answer")]
    operations = {"early": [3], "evaluate": [3]}  # in the lost step, and again
    case = {**BLOCKS, **saved, **operations}
    codes, logs = members.run(members=4, saved="ranges", kills=kills, **case)
    assert codes == [0, -9, -9, 0]
    assert logs[0][-1][1] == logs[3][-1][1] == alone[-1][1]


@pytest.mark.slow
def test_checkpoint_loads_with_another_number_of_ranks(members: Any) -> None:
    saved = {"every": 2, "batch": 32, "logical": 8, "ends": []}
    _, (alone,) = members.run(members=1, saved="all", **CASE, **saved)
    kills = [kill(member, 5, "apply") for member in range(3)]
    codes, _ = members.run(members=3, saved="parts", kills=kills, **BLOCKS, **saved)
    assert codes == [-9] * 3
    _, logs = members.run(members=4, saved="parts", **BLOCKS, **saved)
    assert {log[-1][1] for log in logs} == {alone[-1][1]}


# ---- one rank, which must read everything ----


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(40, 80), nn.Linear(80, 40)
        self.cost = torch.zeros(())

    def forward(self, x: Any) -> Any:
        inner = self.inner(x)
        out = self.outer(inner.relu())
        self.cost = nn.functional.linear(inner, self.inner.weight.detach().t()).square().mean()
        return out


class RecursiveLayer(Layer):
    def forward(self, x: Any, depth: int = 1) -> Any:
        return super().forward(self(x, depth - 1) * self.outer.bias.exp() if depth else x)


class HookedLayer(Layer):
    """A layer whose parameters a hook of the program uses, as weight_norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda _, inputs: inputs[0] * self.outer.bias.exp())


@dataclass
class Output:
    value: Any


class Shift(nn.Module):
    """A block whose backward pass needs no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(40))

    def forward(self, x: Any) -> Any:
        return Output(x + self.bias)


class ShiftInPlace(Shift):
    def forward(self, x: Any) -> Any:
        x += self.bias


def shift_in_place(layer: Any, x: Any) -> Any:
    x = x + 1
    layer(x)
    return x


class Model(nn.Module):
    """A model with layers, which `call` calls."""

    def __init__(self, call: Any = lambda layer, x: layer(x), kind: Any = Layer) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.layers = nn.Linear(70, 40), nn.ModuleList([kind() for _ in range(3)])
        self.call = call

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for each in self.layers:
            x = x + self.call(each, x)
        return x


class Reader:
    """An adapter whose rank holds nothing: it must read all parameters of blocks."""

    def __init__(self, model: nn.Module, blocks: Any, monkeypatch: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.adapter = BlockAdapter(model, optimizer, blocks=[*blocks])
        self.adapter.result()
        self.adapter.begin(0)
        self._truth = [each.copy() for each in self.adapter.values()]
        self.read = list[Span]()
        shards = self.adapter.shards
        monkeypatch.setattr(shards, "read", self._read)
        monkeypatch.setattr(type(shards.reads), "is_serving", True)
        self.adapter._blocks.hold([])
        self.adapter._blocks.drop()

    def _read(self, spans: Any) -> None:
        for array, begin, end in spans:
            self.adapter.values()[array][begin:end] = self._truth[array][begin:end]
        self.read += spans

    def gradients(self, loss: Any) -> Any:
        share = self.adapter.backward(loss)
        return [each.clone() for part in share.parts for each in part]


def twice(layer: Any, x: Any) -> Any:
    return layer(layer(x))


def in_checkpoint(layer: Any, x: Any) -> Any:
    return checkpoint(layer, x, use_reentrant=False)


def beside_evaluation(layer: Any, x: Any) -> Any:
    with torch.no_grad():
        layer(x)
    return layer(x)


def with_side_output(layer: Any, x: Any) -> Any:
    return layer(x) + 0.1 * layer.cost


def saved_elsewhere(layer: Any, x: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return layer(x)


def in_bf16(layer: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)


CALLS = [twice, in_checkpoint, beside_evaluation, with_side_output, saved_elsewhere, in_bf16]
MODELS = [
    *[(call, Layer) for call in (nn.Module.__call__, *CALLS)],
    (nn.Module.__call__, RecursiveLayer),
    (nn.Module.__call__, HookedLayer),
    (lambda layer, x: layer(x).value, Shift),
    (shift_in_place, ShiftInPlace),
]


@pytest.mark.parametrize(("call", "kind"), MODELS)
def test_programs_read_what_they_use(call: Any, kind: Any, monkeypatch: Any) -> None:
    x, expected = torch.ones(3, 70), Model(call, kind)
    sum(each.square().mean() for each in [expected(x)]).backward()
    model = Model(call, kind)
    reader = Reader(model, model.layers, monkeypatch)
    found = reader.gradients(model(x).square().mean())
    named = dict(expected.named_parameters())
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, each in zip(reader.adapter._gradients.parameters, found, strict=True):
        assert torch.equal(each, named[names[parameter]].grad), names[parameter]
    assert not any(block.is_whole for block in reader.adapter._blocks._blocks)


def test_block_is_freed_after_its_forward_and_its_gradients(monkeypatch: Any) -> None:
    model = Model()
    reader = Reader(model, model.layers, monkeypatch)
    blocks, most = reader.adapter._blocks._blocks, [0]

    def count(*_: Any) -> None:
        most[0] = max(most[0], sum(block.is_whole for block in blocks))

    for each in model.layers:
        each.inner.register_forward_hook(count)
        each.inner.weight.register_hook(count)
    reader.gradients(model(torch.ones(3, 70)).sum())
    assert most == [1]
    assert len(reader.read) == 2 * len(blocks)


class Passing(Layer):
    """A block that is skipped, and that returns a parameter."""

    def forward(self, *, x: Any) -> Any:
        return x, self.inner.weight


def test_inputs_and_parameters_that_a_block_returns_have_no_hooks(monkeypatch: Any) -> None:
    model = Model(lambda layer, x: layer(x=x)[0], Passing)
    reader = Reader(model, model.layers, monkeypatch)
    reader.gradients(model(torch.ones(3, 70)).sum())
    assert len(reader.read) == len(model.layers)  # in the forward pass
    assert not model.layers[0].inner.weight._backward_hooks


def test_saved_tensor_that_is_changed_in_place_is_an_error(monkeypatch: Any) -> None:
    model = Model(lambda layer, x: layer(x) + x.mul_(2))
    reader = Reader(model, model.layers, monkeypatch)
    with pytest.raises(RuntimeError, match=r"saved by the block layers.2 .* changed in place"):
        reader.gradients(model(torch.ones(3, 70)).sum())


def test_forward_without_backward_frees_the_saved_tensors(monkeypatch: Any) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    Reader(model, [model[0]], monkeypatch)
    out = model(torch.ones(1, 4))
    found = weakref.ref(out)
    del out
    gc.collect()
    assert found() is None


def test_threads_read_one_after_the_other(monkeypatch: Any) -> None:
    model = Model()
    reader = Reader(model, model.layers, monkeypatch)
    both, met = threading.Barrier(2), list[int]()

    def read(spans: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            met.append(both.wait(0.2))  # breaks if only one thread reads
        reader._read(spans)

    monkeypatch.setattr(reader.adapter.shards, "read", read)
    with ThreadPoolExecutor() as pool:
        assert len([*pool.map(lambda each: each(torch.ones(1, 40)), model.layers[:2])]) == 2
    assert not met


def read_resident() -> int:
    """Return the bytes of anonymous memory of this process."""
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pages_are_returned_to_the_system_and_become_nan(dtype: Any) -> None:
    values = torch.arange(10_000_000, dtype=dtype)
    pages = Pages(values)
    before = read_resident()
    pages.drop(3, 9_999_990)
    assert before - read_resident() > 0.95 * values.nbytes
    assert pages.tensor[:3].equal(values[:3]) and pages.tensor[-10:].equal(values[-10:])
    assert pages.tensor[3:9_999_990].isnan().all()
    pages.drop(0, 1)
    assert pages.tensor[:3].isnan().tolist() == [True, False, False]
    pages.tensor.copy_(values)
    assert pages.tensor.equal(values)


def test_penalty_on_the_weights_of_blocks_is_nan(monkeypatch: Any) -> None:
    model = Model()
    Reader(model, model.layers, monkeypatch)
    loss = model(torch.ones(1, 70)).sum() + sum(p.square().sum() for p in model.parameters())
    assert loss.isnan()


def test_gradient_without_parameters_is_an_error(monkeypatch: Any) -> None:
    model = Model()
    reader = Reader(model, model.layers, monkeypatch)
    loss = model.first(torch.ones(1, 70)).sum() + model.layers[0].inner.bias.sum()
    with pytest.raises(RuntimeError, match="layers.0 has computed a gradient without its param"):
        reader.adapter.backward(loss)


def test_call_of_a_part_of_a_block_is_an_error(monkeypatch: Any) -> None:
    model = Model(lambda layer, x: layer(x) + layer.outer(x))
    Reader(model, model.layers, monkeypatch)
    with pytest.raises(RuntimeError, match=r"a part of the block layers.0 is called outside of"):
        model(torch.ones(1, 70))


class Interrupted(nn.Module):
    def forward(self, x: Any) -> Any:
        raise KeyboardInterrupt


def test_interrupted_forward_closes_the_block(monkeypatch: Any) -> None:
    model = Model()
    reader = Reader(model, model.layers, monkeypatch)
    outer, model.layers[1].outer = model.layers[1].outer, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1, 70))
    assert not any(block.is_whole for block in reader.adapter._blocks._blocks)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    model.layers[1].outer = outer
    with pytest.raises(RuntimeError, match=r"a part of the block layers.1 is called outside of"):
        model.layers[1].inner(torch.ones(1, 40))
    assert reader.gradients(model(torch.ones(1, 70)).sum())


def test_copy_of_a_block_computes_with_its_own_parameters() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    BlockAdapter(model, optimizer, blocks=[*model.layers])
    copied = deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert not copied(torch.ones(1, 70)).any() and model(torch.ones(1, 70)).any()


def test_use_outside_of_a_step_is_an_error(monkeypatch: Any) -> None:
    model = Model()
    reader = Reader(model, model.layers, monkeypatch)
    monkeypatch.setattr(type(reader.adapter.shards.reads), "is_serving", False)
    with pytest.raises(RuntimeError, match=r"the block layers.0 is used outside of a step"):
        model(torch.ones(1, 70))
    with pytest.raises(RuntimeError, match="has only its ranges of the blocks' parameters"):
        model.state_dict()


# ---- refusals ----


def make(model: nn.Module, blocks: Any) -> None:
    BlockAdapter(model, torch.optim.SGD(model.parameters(), lr=0.1), blocks=blocks)


def test_blocks_without_shards_are_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="blocks needs shard=True"):
        elastic.Job(model, optimizer, batch=2, logical=2, blocks=[model])


def test_modules_outside_of_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks has a Linear that is not in the model"):
        make(nn.Linear(2, 2), [nn.Linear(2, 2)])


def test_blocks_in_blocks_are_refused() -> None:
    model = Model()
    with pytest.raises(ValueError, match=r"blocks has layers.0 and layers.0.inner, which is"):
        make(model, [model.layers[0], model.layers[0].inner])


def test_tied_parameters_across_blocks_are_refused() -> None:
    model = Model()
    model.layers[1].outer.weight = model.layers[0].outer.weight
    with pytest.raises(ValueError, match=r"0.outer.weight is also a parameter of layers.1 in bl"):
        make(model, model.layers)
    with pytest.raises(ValueError, match=r"1.outer.weight is also a parameter of layers.0 in bl"):
        make(model, model.layers[:1])


def test_compiled_modules_are_refused() -> None:
    model = Model()
    model.layers[1].compile(backend="eager")
    with pytest.raises(TypeError, match=r"layers.1 is compiled, so blocks cannot have hooks"):
        make(model, model.layers)
    model = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"))
    with pytest.raises(TypeError, match="0 is compiled, so blocks cannot have hooks"):
        make(model, [model[0]])


def test_layers_with_kernels_for_evaluations_are_refused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(TypeError, match=r"layers.0 in blocks is part of a TransformerEncoder"):
        make(model, [model.layers[0]])


def test_spans_are_merged_and_subtracted() -> None:
    spans = merge([Span(1, 0, 4), Span(0, 5, 9), Span(0, 2, 5), Span(0, 12, 14)])
    assert spans == [Span(0, 2, 9), Span(0, 12, 14), Span(1, 0, 4)]
    others = [Span(0, 0, 3), Span(0, 4, 6), Span(0, 8, 20)]
    assert subtract(spans, others) == [Span(0, 3, 4), Span(0, 6, 8), Span(1, 0, 4)]


# ---- reads ----


Connect = Callable[..., list[ddl_core.Comm]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects ranks in this process."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:

        def make(ranks: int, **config: Any) -> list[ddl_core.Comm]:
            given = ddl_core.Config(**config)
            ends = [stack.enter_context(ddl_core.Endpoint(secret="")) for _ in range(ranks)]
            addresses = [each.address for each in ends]
            return [*pool.map(lambda n: ends[n].connect(addresses, n, given), range(ranks))]

        yield make


@pytest.fixture
def pair(connect: Connect) -> list[ddl_core.Comm]:
    """Two ranks in this process."""
    return connect(2)


def test_rank_reads_spans_of_another_rank(pair: list[ddl_core.Comm]) -> None:
    own, other = np.zeros(10), np.arange(10.0)
    answering = Reads(lambda: [np.empty(0), other])
    answering.serve(pair[1])
    Reads(lambda: [np.empty(0), own]).read(pair[0], [(1, Span(1, 2, 4)), (1, Span(1, 7, 10))])
    answering.stop()
    assert own.tolist() == [0, 0, 2, 3, 0, 0, 0, 7, 8, 9]
    assert not answering.is_serving and pair[0].error is pair[1].error is None


def test_rank_answers_after_a_pause_beyond_the_comms_limit(connect: Connect) -> None:
    pair, own = connect(2, operation_timeout=0.2), np.zeros(3)
    answering = Reads(lambda: [np.arange(3.0)])
    answering.serve(pair[1])
    time.sleep(0.5)
    Reads(lambda: [own]).read(pair[0], [(1, Span(0, 0, 3))])
    answering.stop()
    assert own.tolist() == [0, 1, 2]


def test_rank_that_all_others_can_do_without_does_not_answer(connect: Connect) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    adapter = BlockAdapter(model, optimizer, blocks=[*model.layers])
    adapter.result()
    adapter.shards.prepare(*connect(1), [0], trains=True)
    assert not adapter.shards.reads.is_serving


def test_lost_state_is_read_by_no_operation(monkeypatch: Any) -> None:
    model = Model()
    reader = Reader(model, model.layers, monkeypatch)
    shards = reader.adapter.shards
    shards._needs_all = True
    shards.forget()
    assert not shards._needs_all
    assert reader.adapter.state()
    assert model(torch.ones(1, 70)).isnan().all()
    assert not reader.read


def test_rank_that_does_not_answer_is_expelled(pair: list[ddl_core.Comm]) -> None:
    reads = Reads(lambda: [np.zeros(10)])
    reads.limit = lambda: 0.2
    with pytest.raises(PeerLost, match="it hangs: it does not answer requests for its ranges"):
        reads.read(pair[0], [(1, Span(0, 0, 5))])


def test_time_for_which_the_reader_is_stopped_does_not_count(monkeypatch: Any) -> None:
    class Late:
        waits = 0

        def wait(self, limit: float) -> None:
            self.waits += 1
            if self.waits < 4:
                clock.append(clock[-1] + (100 if self.waits == 1 else limit))
                raise TimedOut("pending")

    clock, reads = [0.0], Reads(list)
    reads.limit = lambda: 5.0
    monkeypatch.setattr(time, "monotonic", lambda: clock[-1])
    reads._wait(None, 1, Late())  # type: ignore[arg-type]
    assert clock[-1] > 100


def test_reader_that_hangs_does_not_delay_the_others(connect: Connect) -> None:
    comms, own, other = connect(3, links=["tcp"]), np.zeros(5), np.ones(8_000_000)
    answering = Reads(lambda: [other])
    answering.serve(comms[1])
    comms[2].send(np.array([0, 0, other.size]), 1, tag=4)  # and does not receive the reply
    reads = Reads(lambda: [own])
    reads.limit = lambda: 2.0
    reads.read(comms[0], [(1, Span(0, 0, 5))])
    assert own.all()
    comms[2].recv(np.empty_like(other), 1, tag=5)
    answering.stop()


def test_thread_that_fails_ends_the_comm_and_its_rank(pair: list[ddl_core.Comm]) -> None:
    def fail() -> Any:
        raise ValueError("broken")

    answering = Reads(fail)
    answering.serve(pair[1])
    with pytest.raises(Aborted, match="cannot answer a request for parameters: ValueError"):
        Reads(lambda: [np.zeros(5)]).read(pair[0], [(1, Span(0, 0, 5))])
    answering.stop()
    with pytest.raises(ValueError, match="broken"):
        answering.serve(pair[1])


def test_reads_use_the_second_holder_after_a_death() -> None:
    spans, bounds, holders = [Span(0, 10, 70)], [[0, 20, 40, 60, 80]], [3, 5, 6, 9]
    found = find_sources(spans, bounds, holders, [3, 5, 6, 9], 9)
    assert found == [(0, Span(0, 10, 20)), (1, Span(0, 20, 40))]
    assert find_sources(spans, bounds, holders, [5, 9], 9) == [
        (0, Span(0, 10, 20)),
        (0, Span(0, 20, 40)),
    ]
    assert find_sources(spans, bounds, holders, [3, 9], 9) == [(0, Span(0, 10, 20))]
