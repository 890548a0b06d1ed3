# SPDX-License-Identifier: Apache-2.0
"""Jobs whose optimizer is sharded have the bits of jobs that are not, for any number of ranks and
any death. Members.check compares them with one undisturbed member without shards.

`make test-sharded` runs all of them.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

import ddl_torch.elastic as elastic  # noqa: E402
from ddl_elastic.frameworks.protocol import digest  # noqa: E402
from ddl_elastic.sharded.cut import StateLost  # noqa: E402
from ddl_elastic.sharded.shards import Holding  # noqa: E402
from ddl_elastic.storage import checkpoint  # noqa: E402
from ddl_elastic.storage.checkpoint import Folder  # noqa: E402
from ddl_torch.elastic.sharded import ShardedAdapter  # noqa: E402


def kill(member: int, step: int, phase: str) -> dict[str, Any]:
    return {"member": member, "step": step, "phase": phase}


@pytest.mark.parametrize(
    "ranks", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 8))]
)
def test_any_number_of_ranks_has_the_bits_of_the_unsharded_job(members: Any, ranks: int) -> None:
    members.check(members=ranks, shard=True, passes=1, bucket_bytes=1000)


@pytest.mark.slow
def test_eight_ranks_have_the_bits_of_fewer_ranks(members: Any) -> None:
    case = {"model": "transformer", "passes": 1, "clip_norm": 0.5, "bucket_bytes": 1000}
    ends = [
        log[-1][1]
        for ranks in (1, 2, 3, 5, 8)
        for log in members.check(members=ranks, shard=True, logical=16, **case)
    ]
    assert len(ends) == 19 and len({*ends}) == 1


@pytest.mark.slow
def test_a_resnet_has_the_same_bits_on_any_number_of_ranks(members: Any) -> None:
    case = {"model": "resnet", "optimizer": "SGD", "passes": 1, "bucket_bytes": 1000}
    for ranks in (1, 2, 3, 5, 8):
        members.check(members=ranks, shard=True, **case)
    members.check(members=3, shard=True, kills=[kill(1, 3, "reduce")], **case)


@pytest.mark.parametrize(
    "ranks", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 5))]
)
@pytest.mark.parametrize("shard", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_clipped_gradients_have_the_same_bits(members: Any, ranks: int, shard: bool) -> None:
    case = {"model": "transformer", "passes": 1, "clip_norm": 0.5}
    logs = members.check(members=ranks, shard=shard, bucket_bytes=1000, **case)
    alone = members.check(members=1, **case)
    norms = [[line[1] for line in log if line[0] == "norm"] for log in (*logs, *alone)]
    assert all(each == norms[0] for each in norms)
    assert max(norms[0]) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["reduce", "vote", "apply"])
def test_death_beside_clipped_gradients_keeps_the_bits(members: Any, phase: str) -> None:
    case = {"passes": 1, "clip_norm": 0.5, "kills": [kill(1, 3, phase)]}
    members.check(members=3, shard=True, bucket_bytes=1000, **case)


@pytest.mark.parametrize("phase", ["reduce", "apply"])
def test_death_of_one_member_keeps_the_bits(members: Any, phase: str) -> None:
    kills = [kill(1, 3, phase)]
    members.check(members=3, shard=True, strict=True, passes=1, bucket_bytes=1000, kills=kills)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "transformer"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("more", [{}, {"weighted": True}, {"buffers": "first"}, {"loop": "bf16"}])
def test_programs_keep_the_bits(members: Any, model: str, optimizer: str, more: Any) -> None:
    case = {"model": model, "optimizer": optimizer, "passes": 1, **more}
    members.check(members=3, shard=True, bucket_bytes=1000, **case)


@pytest.mark.slow
@pytest.mark.parametrize("who", [[0], [2], [3], [0, 2], [1, 3]])
@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("owners", ["even", "changing"])
@pytest.mark.parametrize("phase", ["compute", "backward", "reduce", "vote", "apply"])
def test_deaths_in_every_phase(
    members: Any, phase: str, owners: str, links: str, who: list[int]
) -> None:
    kills = [kill(member, 7, phase) for member in who]
    case = {"owners": owners, "links": [links], "kills": kills, "bucket_bytes": 1}
    members.check(members=4, shard=True, **case)


@pytest.mark.parametrize(
    ("phase", "who"),
    [
        ("reduce", [1, 2]),
        *(
            pytest.param(phase, who, marks=pytest.mark.slow)
            for phase in ("compute", "backward", "reduce", "vote", "apply")
            for who in ([1, 2], [3, 0])
            if (phase, who) != ("reduce", [1, 2])
        ),
    ],
)
def test_two_copies_survive_the_deaths_of_neighbours(
    members: Any, phase: str, who: list[int]
) -> None:
    kills = [kill(member, 3, phase) for member in who]
    case = {"passes": 1, "clip_norm": 0.5, "kills": kills, "bucket_bytes": 1}
    members.check(members=4, shard=True, copies=2, **case)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 5])
def test_two_copies_have_the_bits_of_the_unsharded_job(members: Any, ranks: int) -> None:
    members.check(members=ranks, shard=True, copies=2, passes=1, bucket_bytes=1000)


@pytest.mark.slow
def test_deaths_in_several_steps_leave_one_member(members: Any) -> None:
    kills = [kill(0, 3, "reduce"), kill(1, 5, "apply"), kill(3, 7, "vote"), kill(4, 9, "compute")]
    members.check(members=5, shard=True, kills=kills, bucket_bytes=1000)


@pytest.mark.slow
def test_member_behind_the_others_applies_its_ranges(members: Any) -> None:
    kills = [kill(0, 5, "apply"), kill(2, 5, "behind")]
    members.check(members=5, shard=True, kills=kills, owners="changing", bucket_bytes=1000)


@pytest.mark.slow
def test_death_of_an_adopter_keeps_the_bits(members: Any) -> None:
    kills = [kill(3, 5, "reduce"), kill(4, 5, "adopt")]
    members.check(members=5, shard=True, kills=kills, bucket_bytes=1000)


@pytest.mark.slow
def test_evaluation_uses_the_gathered_parameters(members: Any) -> None:
    logs = members.check(members=3, shard=True, passes=1, evaluate=[2], kills=[])
    alone = members.check(members=1, passes=1, evaluate=[2], kills=[])
    tables = [line[2] for log in (*logs, *alone) for line in log if line[0] == "table"]
    assert len(tables) == 4 and all(table == tables[0] for table in tables)


def test_operation_before_the_update_keeps_the_bits(members: Any) -> None:
    members.check(members=3, shard=True, passes=1, early=[2])


@pytest.mark.slow
def test_death_of_both_holders_names_them(members: Any) -> None:
    kills = [kill(1, 3, "reduce"), kill(2, 3, "reduce")]
    case = {"model": "cnn", "batch": 32, "logical": 8, "passes": 1, "kills": kills}
    codes, logs = members.run(members=4, shard=True, ends=[], **case)
    assert codes == [1, -9, -9, 1]
    for each in (logs[0], logs[3]):
        assert "have died: member 1 and member 2" in each[-1][1]


# ---- checkpoints ----

SAVED: dict[str, Any] = {"model": "cnn", "batch": 32, "logical": 8, "passes": 2, "every": 3}


def finish(runner: Any, **case: Any) -> str:
    """Run a job to its end. Return the digest of its final state."""
    codes, logs = runner.run(ends=[], **SAVED, **case)
    assert not any(codes), logs
    (found,) = {log[-1][1] for log in logs}
    return str(found)


def read(members: Any, folder: str) -> Any:
    storage = Folder(members.folder / folder)
    name = checkpoint.manifests(storage)[0]
    return checkpoint.read_state(storage, checkpoint.read_manifest(storage, name))


@pytest.mark.parametrize("more", [pytest.param(n, marks=pytest.mark.slow) for n in (1, 5)] + [2])
def test_checkpoint_loads_with_another_number_of_ranks(members: Any, more: int) -> None:
    expected = finish(members, members=1, saved=f"whole{more}")
    kills = [kill(member, 7, "apply") for member in range(3)]
    case = {"saved": f"ranges{more}", "bucket_bytes": 1000}
    codes, _ = members.run(members=3, shard=True, kills=kills, ends=[], **SAVED, **case)
    assert codes == [-9] * 3
    assert not list(members.folder.glob(f"ranges{more}/steps-*9.json"))
    assert finish(members, members=more, shard=True, **case) == expected
    whole, found = (read(members, f"{name}{more}") for name in ("whole", "ranges"))
    assert digest(found) == digest(whole)


@pytest.mark.slow
def test_job_without_shards_continues_from_a_checkpoint_of_ranges(members: Any) -> None:
    expected = finish(members, members=1, saved="from whole")
    kills = [kill(member, 7, "apply") for member in range(3)]
    members.run(members=3, shard=True, kills=kills, ends=[], saved="from ranges", **SAVED)
    assert finish(members, members=2, saved="from ranges") == expected


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["reduce", "vote", "apply"])
def test_death_beside_a_checkpoint_keeps_it_complete(members: Any, phase: str) -> None:
    finish(members, members=1, saved=f"whole {phase}")
    sizes = {name: each.data.nbytes for name, each in read(members, f"whole {phase}").items()}
    for step in (2, 3, 12):
        saved, case = f"{phase}{step}", {"shard": True, "every": 1, "bucket_bytes": 1000}
        members.check(members=4, kills=[kill(1, step, phase)], saved=saved, **case)
        assert {name: each.data.nbytes for name, each in read(members, saved).items()} == sizes


@pytest.mark.parametrize(
    ("phase", "who"),
    [
        ("reduce", [1, 2]),
        *(
            pytest.param(phase, who, marks=pytest.mark.slow)
            for phase in ("compute", "vote", "apply")
            for who in ([1, 2], [3, 0])
        ),
    ],
)
def test_death_of_both_holders_returns_to_the_newest_checkpoint(
    members: Any, phase: str, who: list[int]
) -> None:
    expected = finish(members, members=1, saved=f"whole {phase} {who}")
    case = {
        **SAVED,
        "every": 1,
        "saved": f"lost {phase} {who}",
        "kills": [kill(m, 11, phase) for m in who],
    }
    if phase in ("compute", "reduce"):  # the step itself notices the loss
        case |= {"early": [11], "evaluate": [11]}
    codes, logs = members.run(members=4, shard=True, ends=[], bucket_bytes=1000, **case)
    assert [code for m, code in enumerate(codes) if m not in who] == [0, 0]
    for log in (log for m, log in enumerate(logs) if m not in who):
        assert log[-1][1] == expected
        steps = [line[1] for line in log if line[0] == "commit"]
        assert len(steps) > len({*steps})


OPERATIONS = {"early": "hash", "evaluate": "table", "read": "weight"}
LOST = {"hash": "0" * 64, "table": "nan", "weight": "255"}  # the bytes of a number that is NaN
LAYERS = tuple(f"layers.{number}" for number in range(3))


@pytest.mark.parametrize(
    ("phase", "operation"),
    [
        ("apply", "evaluate"),
        *(
            pytest.param(phase, operation, marks=pytest.mark.slow)
            for phase in ("compute", "vote", "apply")
            for operation in OPERATIONS
            if (phase, operation) != ("apply", "evaluate")
        ),
    ],
)
@pytest.mark.parametrize("blocks", [(), pytest.param(LAYERS, marks=pytest.mark.slow)])
def test_operation_in_a_lost_step_shows_the_loss(
    members: Any, phase: str, operation: str, blocks: tuple[str, ...]
) -> None:
    """The step itself notices the deaths before the vote, and the operation those after it."""
    model = {"model": "layers"} if blocks else {}
    kind, case = OPERATIONS[operation], {**SAVED, **model, operation: [11]}
    name = f"{phase} {operation} {len(blocks)}"
    codes, (alone,) = members.run(members=1, ends=[], saved=f"alone {name}", **case)
    kills = [kill(m, 11, phase) for m in (1, 2)]
    case |= {"every": 1, "saved": f"shown {name}", "kills": kills, "blocks": blocks}
    codes, logs = members.run(members=4, shard=True, ends=[], bucket_bytes=1000, **case)
    assert codes == [0, -9, -9, 0], logs
    (expected,) = (line for line in alone if line[0] == kind)
    for log in (logs[0], logs[3]):
        lost, repeated = (line for line in log if line[0] == kind)
        assert repeated[2] == expected[2]
        assert {*np.ravel(lost[2]).astype(str)} == {LOST[kind]}
        assert log[-1][1] == alone[-1][1]
    if kind != "table":
        writers = [[line[3] for line in log if line[0] == kind] for log in (logs[0], logs[3])]
        assert writers == [[False, True], [False, False]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "number"), [("vote", 12), ("apply", 12), *(("finish", n) for n in (13, 14, 15))]
)
def test_loss_at_the_end_of_a_call_returns_to_a_checkpoint(
    members: Any, phase: str, number: int
) -> None:
    """Step 12 is the last one. The operations after it end the call."""
    expected = finish(members, members=1, saved=f"whole end {phase} {number}")
    kills = [kill(m, number, phase) for m in (1, 2)]
    case = {**SAVED, "every": 1, "saved": f"lost end {phase} {number}", "kills": kills}
    codes, logs = members.run(members=4, shard=True, ends=[], bucket_bytes=1000, **case)
    assert codes == [0, -9, -9, 0], logs
    assert {log[-1][1] for log in (logs[0], logs[3])} == {expected}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "more"),
    [
        ({"top": [12]}, []),
        ({"early": [11]}, [kill(4, 11, "reform")]),
        ({"evaluate": [11]}, [kill(4, 11, "reform")]),
        ({"evaluate": [11]}, [kill(4, 11, "shrink")]),
    ],
)
def test_death_beside_a_lost_step_keeps_the_bits(
    members: Any, operation: Any, more: list[Any]
) -> None:
    name = f"{operation} {[each['phase'] for each in more]}"
    expected = finish(members, members=1, saved=f"whole {name}")
    kills = [*(kill(m, 11, "apply") for m in (1, 2)), *more]
    case = {**SAVED, "every": 1, "saved": f"beside {name}", "kills": kills, **operation}
    codes, logs = members.run(members=5, shard=True, ends=[], bucket_bytes=1000, **case)
    assert codes == [0, -9, -9, 0, -9 if more else 0], logs
    assert {log[-1][1] for log, code in zip(logs, codes, strict=True) if not code} == {expected}


@pytest.mark.slow
def test_loss_in_the_first_step_after_a_resume(members: Any) -> None:
    """The job undoes this step, but executes its evaluation."""
    expected = finish(members, members=1, saved="whole resumed")
    kills = [kill(member, 7, "apply") for member in range(4)]
    case = {**SAVED, "saved": "lost resumed", "evaluate": [0]}
    members.run(members=4, shard=True, ends=[], kills=kills, **case)
    kills = [kill(member, 0, "evaluate") for member in (1, 2)]
    codes, logs = members.run(members=4, shard=True, ends=[], kills=kills, **case)
    assert codes == [0, -9, -9, 0], logs
    for log in (logs[0], logs[3]):
        assert log[-1][1] == expected
        (table,) = (line[2] for line in log if line[0] == "table")
        assert np.isnan(table).all()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["vote", "apply"])
def test_operation_that_notices_a_loss_needs_checkpoints(members: Any, phase: str) -> None:
    kills = [kill(m, 11, phase) for m in (1, 2)]
    case = {"model": "cnn", "batch": 32, "logical": 8, "passes": 2, "kills": kills, "early": [11]}
    codes, logs = members.run(members=4, shard=True, ends=[], bucket_bytes=1000, **case)
    assert codes == [1, -9, -9, 1]
    assert all("StateLost: all holders" in log[-1][1] for log in (logs[0], logs[3]))


@pytest.mark.slow
def test_death_while_the_checkpoint_loads_keeps_the_bits(members: Any) -> None:
    expected = finish(members, members=1, saved="whole again")
    kills = [kill(1, 11, "reduce"), kill(2, 11, "reduce"), kill(4, 11, "finish")]
    case = {**SAVED, "every": 1, "saved": "lost again", "kills": kills}
    codes, logs = members.run(members=5, shard=True, ends=[], bucket_bytes=1000, **case)
    assert codes == [0, -9, -9, 0, -9]
    assert {log[-1][1] for log in (logs[0], logs[3])} == {expected}


# ---- refusals ----


def make_adapter(optimizer: Any = None, model: Any = None, **options: Any) -> ShardedAdapter:
    model = model or nn.Linear(70, 2)
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    return ShardedAdapter(model, make(model.parameters()), **options)


class Sgd(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (torch.optim.RMSprop, TypeError, "optimizer is of .*RMSprop; shard=True supports SGD, Ad"),
        (Sgd, TypeError, "optimizer is of .*Sgd; shard=True supports SGD, Adam, AdamW"),
        (lambda p: torch.optim.Adam(p, fused=True), ValueError, "optimizer has fused=True"),
    ],
)
def test_optimizer_that_is_not_known_as_elementwise_is_refused(
    make: Any, error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        make_adapter(make)


def test_parameters_of_half_types_are_refused() -> None:
    with pytest.raises(TypeError, match="weight is a parameter of torch.bfloat16 on cpu; shard"):
        make_adapter(model=nn.Linear(2, 2).bfloat16())


def test_parameters_that_share_memory_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = nn.Parameter(model[0].weight.detach())
    with pytest.raises(ValueError, match=r"1.weight and 0.weight share memory"):
        make_adapter(model=model)


def test_parameters_that_are_not_contiguous_are_refused() -> None:
    model = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="weight is not contiguous"):
        make_adapter(model=model)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_norms_that_are_not_positive_are_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="clip_norm is .*; must be positive and finite"):
        make_adapter(clip_norm=limit)


def test_clipping_of_scaled_gradients_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match=r"also\['scaler'\] is a GradScaler"):
        elastic.TorchAdapter(model, optimizer, also={"scaler": scaler}, clip_norm=1.0)


def test_clipping_in_rounds_is_refused() -> None:
    model = nn.Linear(2, 2)
    adapter = elastic.TorchAdapter(model, torch.optim.SGD(model.parameters()), clip_norm=1.0)
    with pytest.raises(ValueError, match="rounds does not support clip_norm"):
        adapter.set_outer(None, "averaged")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shard": True, "copies": 0}, "copies is 0; must be at least 1"),
        ({"copies": 2}, "copies is 2; it needs shard=True"),
    ],
)
def test_copies_that_are_not_possible_are_refused(options: Any, text: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ValueError, match=text):
        elastic.Job(model, optimizer, batch=2, logical=2, **options)


def test_objects_that_read_whole_gradients_are_refused() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(TypeError, match=r"also\['scaler'\] is an object of GradScaler"):
        make_adapter(also={"scaler": scaler})


def compute(adapter: ShardedAdapter) -> None:
    """Compute a step of one rank, without a comm."""
    import ddl_core

    with ddl_core.Endpoint(secret="") as endpoint:
        comm = endpoint.connect([endpoint.address], 0)
        result = adapter.result()
        adapter.shards.prepare(comm, [0])
    adapter.begin(0)
    share = adapter.backward(adapter.model(torch.ones(1, 70)).sum())
    for number in range(len(share)):
        into = result[number]
        if number < adapter.shards.arrays:
            into, _ = adapter.shards.target(number)
        into[:] = share[number]
    adapter.apply()


def test_program_cannot_clip_gradients_of_ranges() -> None:
    adapter = make_adapter()
    compute(adapter)
    with pytest.raises(RuntimeError, match="has the gradients of this process's ranges only"):
        nn.utils.clip_grad_norm_(adapter.model.parameters(), 1.0)


def clip_parameters_of(optimizer: Any, *_: Any) -> None:
    groups = optimizer.param_groups
    nn.utils.clip_grad_norm_([each for group in groups for each in group["params"]], 1.0)


def test_program_cannot_clip_gradients_of_shards() -> None:
    adapter = make_adapter()
    compute(adapter)
    with pytest.raises(RuntimeError, match="has the gradients of this process's ranges only"):
        clip_parameters_of(adapter.optimizer)
    adapter.optimizer.step()
    with pytest.raises(RuntimeError, match="has the gradients of this process's ranges only"):
        clip_parameters_of(adapter.optimizer)


def test_hook_cannot_clip_gradients_of_shards() -> None:
    adapter = make_adapter()
    adapter.optimizer.register_step_pre_hook(clip_parameters_of)
    compute(adapter)
    with pytest.raises(RuntimeError, match="has the gradients of this process's ranges only"):
        adapter.optimizer.step()


def test_scaler_outside_of_the_job_is_refused() -> None:
    adapter = make_adapter()
    compute(adapter)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match="has the gradients of this process's ranges only"):
        scaler.step(adapter.optimizer)


def test_program_cannot_set_gradients() -> None:
    adapter = make_adapter()
    compute(adapter)
    adapter.model.bias.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="the program has set a gradient"):
        adapter.optimizer.step()


def test_update_after_the_ranges_have_moved_is_refused() -> None:
    adapter = make_adapter()
    compute(adapter)
    adapter.install(adapter._installed)
    with pytest.raises(RuntimeError, match=r"call optimizer.step\(\) before other operations of"):
        adapter.optimizer.step()
    compute(adapter)
    adapter.optimizer.step()
    adapter.install(adapter._installed)
    adapter.abandon()
    adapter.optimizer.step()


def test_cleared_gradients_change_nothing() -> None:
    adapter = make_adapter()
    before = adapter.model.weight.detach().clone()
    compute(adapter)
    adapter.optimizer.zero_grad()
    adapter.optimizer.step()
    assert adapter.model.weight.equal(before)


def test_parameters_with_other_memory_are_refused() -> None:
    adapter = make_adapter()
    compute(adapter)
    adapter.model.weight.data = adapter.model.weight.detach().clone()
    for use in (adapter.result, adapter.apply, adapter.state):
        with pytest.raises(RuntimeError, match="has replaced the memory of a parameter of shape"):
            use()


def test_state_of_the_sharded_optimizer_is_refused() -> None:
    adapter = make_adapter()
    optimizer = adapter.optimizer
    found, state = optimizer.state_dict(), adapter.state()
    compute(adapter)
    with pytest.raises(RuntimeError, match="ranges of the optimizer's state only"):
        optimizer.state_dict()
    with pytest.raises(RuntimeError, match="ranges of the optimizer's state only"):
        optimizer.load_state_dict(found)
    adapter.load(state)


def test_slots_of_frozen_parameters_are_kept() -> None:
    adapter = make_adapter(lambda parameters: torch.optim.Adam(parameters, lr=0.1))
    model, optimizer = adapter.model, adapter.optimizer
    model(torch.ones(1, 70)).sum().backward()
    optimizer.step()
    model.bias.requires_grad_(False)
    before = adapter.state()
    adapter.result()
    assert digest(adapter.state()) == digest(before)
    assert {name for name in before if "slot.1." in name} <= adapter.replicated().keys()
    adapter.load(before)
    assert digest(adapter.state()) == digest(before)


class Averages:
    """A moving average of the parameters."""

    def __init__(self, model: Any) -> None:
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    def state_dict(self) -> Any:
        return {"shadow": self.shadow}


class Averaged(torch.optim.swa_utils.AveragedModel):
    pass


@pytest.mark.parametrize("make", [Averages, Averaged])
def test_averages_of_parameters_are_refused(make: Any) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"also\['ema'\] is an object of Average"):
        make_adapter(model=model, also={"ema": make(model)})


def test_parts_of_a_model_with_old_parameters_are_refused() -> None:
    adapter = make_adapter(model=nn.Sequential(nn.Linear(70, 2)))
    adapter.shards.is_stale = True
    with pytest.raises(RuntimeError, match="new parameters of its own ranges only"):
        adapter.model[0](torch.ones(1, 70))
    with pytest.raises(RuntimeError, match="new parameters of its own ranges only"):
        adapter.model[0].state_dict()


def test_model_with_old_parameters_is_refused() -> None:
    adapter = make_adapter()
    adapter.shards.is_stale = True
    with pytest.raises(RuntimeError, match="new parameters of its own ranges only"):
        adapter.model(torch.ones(1, 70))
    with pytest.raises(RuntimeError, match="new parameters of its own ranges only"):
        adapter.model.state_dict()


def test_frozen_parameters_inside_of_the_job_are_refused() -> None:
    adapter = make_adapter()
    compute(adapter)
    adapter.model.bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match="frozen, unfrozen, added or removed parameters"):
        adapter.result()


# ---- one rank's view of a group ----


def test_ranges_move_before_any_holder_leaves() -> None:
    adapter = make_adapter()
    compute(adapter)
    shards = adapter.shards
    shards._holdings = {1: Holding([0, 1, 2], shards.shards)}
    assert shards.needs_hand_over([0, 2])
    assert not shards.needs_hand_over([0, 1, 2, 3])


def test_hash_does_not_gather_the_state() -> None:
    import ddl_core

    torch.manual_seed(1)
    model = nn.Linear(70, 2)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(4, 70), torch.randn(4, 2))
    with ddl_core.Endpoint(secret="") as endpoint:
        comm = endpoint.connect([endpoint.address], 0)
        job = elastic.Job(model, optimizer, batch=2, logical=2, comm=comm, shard=True)
        for step in job.steps(data):
            for x, y in step:
                step.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
        found = job.hash()
        with pytest.raises(RuntimeError, match="the state is sharded: call job.state"):
            job.framework.state()
        assert digest(job.state()) == found
        job.close()


def test_hash_that_fails_does_not_gather_the_state_later() -> None:
    adapter = make_adapter()
    compute(adapter)
    shards = adapter.shards

    def fail() -> None:
        raise StateLost("lost")

    for read in (shards.export, shards.find_digest):
        with pytest.raises(StateLost):
            read(fail)
    assert not shards._exports and not shards._digests


def test_joining_rank_computes_with_its_own_state_while_it_is_behind() -> None:
    """Its program executes the code between calls of `job.steps` that the others have finished."""
    adapter = make_adapter()
    compute(adapter)
    shards, before = adapter.shards, adapter.replicated() | adapter.parameters()
    shards.join()
    with pytest.raises(RuntimeError, match="new parameters of its own ranges only"):
        adapter.model(torch.ones(1, 70))
    shards.is_behind = lambda: True
    adapter.model(torch.ones(1, 70))
    assert digest(adapter.state()) == digest(before)


def test_joining_rank_notices_that_the_others_have_lost_the_state() -> None:
    class Group:
        size = 2

        def allgather(self, own: Any, found: Any) -> None:
            found[:] = [0, 0, 1, 0, 0, 1, *own]

    shards = make_adapter().shards
    shards.join()
    with pytest.raises(StateLost, match="the other members have lost the state"):
        shards._compare(Group())  # type: ignore[arg-type]


def test_audits_are_refused() -> None:
    import ddl_core

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddl_core.Endpoint(secret="") as endpoint:
        comm = endpoint.connect([endpoint.address], 0)
        options = {"batch": 2, "logical": 2, "comm": comm, "audit": 0.1}
        with pytest.raises(NotImplementedError, match="shard=True does not support audits"):
            elastic.Job(model, optimizer, shard=True, **options)
        comm.close()
