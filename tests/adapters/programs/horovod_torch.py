# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations over libddl: the results that Horovod's documentation promises, on any
number of ranks. Prints "done NAME" for each part."""

import copy
import json
import pickle
import threading
import time
import warnings
from pathlib import Path

import torch
from checks import refused
from horovod_recorded import Recorded

import ddl_horovod.torch

hvd = Recorded(ddl_horovod.torch)
hvd.init()
hvd.init()  # has no effect
RANK, SIZE = hvd.rank(), hvd.size()
TOTAL = SIZE * (SIZE + 1) / 2  # the sum of rank + 1
EVENS = hvd.add_process_set(range(0, SIZE, 2))


def same(tensor, expected):
    assert torch.equal(tensor, torch.as_tensor(expected, dtype=tensor.dtype)), (tensor, expected)


def own(rows=4, dtype=torch.float32):
    return torch.full((rows,), RANK + 1, dtype=dtype)


def batch_norm():
    layer = hvd.SyncBatchNorm(1, eps=0.0, momentum=1.0)
    rows = torch.tensor([[float(RANK)], [float(RANK + 1)]] + [[0.5]] * RANK)
    everything = hvd.allgather(rows)
    expected = (rows - everything.mean()) / everything.std(correction=0)
    torch.testing.assert_close(layer(rows), expected)
    torch.testing.assert_close(layer.running_mean, everything.mean(0))


def timeline():
    hvd.start_timeline("timeline.json", mark_cycles=True)
    hvd.allreduce(own(), name="traced")
    hvd.stop_timeline()
    if RANK == 0:
        events = json.loads(Path("timeline.json").read_text())
        (row,) = (e["pid"] for e in events if e.get("args") == {"name": "traced"})
        named = [event["name"] for event in events if event.get("pid") == row]
        assert named == ["process_name", "NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
        assert all(event["dur"] >= 0 for event in events if event.get("ph") == "X")
    refused(NotImplementedError, "elastic.Job", lambda: hvd.elastic.run)


def world():
    assert hvd.check_extension("x", "X", "x.py", "lib") is None
    assert (hvd.local_rank(), hvd.local_size()) == (RANK, SIZE)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous() and hvd.is_initialized()
    assert hvd.gloo_built() and hvd.gloo_enabled()
    for name in ("mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "ddl_built"):
        assert not getattr(hvd, name)()
    assert not (hvd.ccl_built() or hvd.cuda_built() or hvd.rocm_built())
    assert hvd.get_process_set_ids_and_ranks()[0] == list(range(SIZE))


def allreduce():
    for dtype in (torch.float16, torch.float32, torch.float64):
        same(hvd.allreduce(own(dtype=dtype), op=hvd.Sum), [TOTAL] * 4)
    same(hvd.allreduce(own(dtype=torch.int64), op=hvd.Sum), [TOTAL] * 4)
    same(hvd.allreduce(own() * SIZE), [TOTAL] * 4)  # the average
    same(hvd.allreduce(own(), average=False), [TOTAL] * 4)
    same(hvd.allreduce(own(), op=hvd.Min), [1] * 4)
    same(hvd.allreduce(own(), op=hvd.Max), [SIZE] * 4)
    same(hvd.allreduce(own(), op=hvd.Product), [2 if SIZE == 2 else 6] * 4)
    scaled = hvd.allreduce(own(), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    same(scaled, [2 * TOTAL] * 4)
    half = hvd.allreduce(own(), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert half.dtype == torch.float32
    same(half, [TOTAL] * 4)
    tensor = own()
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    same(tensor, [TOTAL] * 4)
    pair = hvd.grouped_allreduce([own(), own(2, torch.float64)], op=hvd.Sum)
    same(pair[0], [TOTAL] * 4)
    same(pair[1], [TOTAL] * 2)
    pair = [own(), own(3)]
    hvd.grouped_allreduce_(pair, op=hvd.Sum)
    same(pair[1], [TOTAL] * 3)
    tensor = own().requires_grad_()
    hvd.allreduce(tensor, op=hvd.Sum).backward(own())
    same(tensor.grad, [TOTAL] * 4)
    refused(ValueError, "pass op only", lambda: hvd.allreduce(own(), average=True, op=hvd.Sum))


def allgather():
    expected = [float(rank + 1) for rank in range(SIZE) for _ in range(rank + 1)]
    tensor = own(RANK + 1).requires_grad_()
    gathered = hvd.allgather(tensor)
    same(gathered, expected)
    gathered.backward(gathered.detach())
    same(tensor.grad, [RANK + 1] * (RANK + 1))
    same(hvd.allgather(torch.tensor(RANK)), list(range(SIZE)))
    pair = hvd.grouped_allgather([own(RANK + 1), own(1)])
    same(pair[0], expected)
    same(pair[1], range(1, SIZE + 1))


def broadcast():
    tensor = own().requires_grad_()
    result = hvd.broadcast(tensor, SIZE - 1)
    same(result, [SIZE] * 4)
    result.sum().backward()
    same(tensor.grad, [float(RANK == SIZE - 1)] * 4)
    tensor = own()
    hvd.broadcast_(tensor, 1)
    same(tensor, [2] * 4)
    same(hvd.synchronize(hvd.broadcast_async(own(), 0)), [1] * 4)
    refused(ValueError, "root_rank is 9; must be", lambda: hvd.broadcast(own(), 9))


def alltoall():
    tensor = torch.arange(2 * SIZE) + 100 * RANK
    same(hvd.alltoall(tensor), [100 * r + 2 * RANK + i for r in range(SIZE) for i in (0, 1)])
    splits = torch.arange(1, SIZE + 1)  # rank r receives r + 1 rows from each rank
    tensor = own(int(splits.sum())).requires_grad_()
    result, received = hvd.alltoall(tensor, splits)
    same(received, [RANK + 1] * SIZE)
    same(result, [rank + 1 for rank in range(SIZE) for _ in range(RANK + 1)])
    result.backward(result.detach() * 2)
    same(tensor.grad, [2 * (RANK + 1)] * len(tensor))
    refused(ValueError, "splits: [1] do not divide", lambda: hvd.alltoall(own(), [1]))
    refused(ValueError, "must be integers", lambda: hvd.alltoall(own(), torch.full((SIZE,), 0.5)))


def reducescatter():
    tensor = torch.arange(SIZE + 1.0).requires_grad_()  # the first part has one more row
    mine = [0.0, 1.0] if RANK == 0 else [RANK + 1.0]
    result = hvd.reducescatter(tensor, op=hvd.Sum)
    same(result, [SIZE * each for each in mine])
    result.sum().backward()
    same(tensor.grad, [SIZE] * (SIZE + 1))  # like Horovod
    same(hvd.reducescatter(tensor.detach()), mine)
    same(
        hvd.reducescatter(tensor.detach(), op=hvd.Sum, prescale_factor=2),
        [2 * SIZE * e for e in mine],
    )
    pair = hvd.grouped_reducescatter([tensor.detach(), own(SIZE)], op=hvd.Sum)
    same(pair[0], [SIZE * each for each in mine])
    same(pair[1], [TOTAL])
    text = "op is Min; must be"
    refused(hvd.HorovodInternalError, text, lambda: hvd.reducescatter(own(), op=hvd.Min))


def asynchronous():
    handles = [hvd.allreduce_async(own() * n, op=hvd.Sum, name=f"a{n}") for n in range(20)]
    for number, handle in enumerate(handles):
        same(hvd.synchronize(handle), [number * TOTAL] * 4)
    refused(ValueError, "has been synchronized", lambda: hvd.poll(handles[0]))
    # Operations with names are matched by name: they start in any order, and another call may
    # overtake them.
    order = [(number + RANK) % 20 for number in range(20)]
    named = {n: hvd.allreduce_async(own() * n, op=hvd.Sum, name=f"any{n}") for n in order}
    for number, handle in named.items():
        same(hvd.synchronize(handle), [number * TOTAL] * 4)
    start = lambda: hvd.allreduce_async(own(), op=hvd.Sum, name="early")  # noqa: E731
    if RANK == 0:
        early = start()
        refused(ValueError, "'early', but an operation with this name is pending", start)
    hvd.barrier()
    if RANK:
        early = start()
    same(hvd.synchronize(early), [TOTAL] * 4)
    handle = hvd.allgather_async(own(1))
    while not hvd.poll(handle):
        pass
    same(hvd.synchronize(handle), range(1, SIZE + 1))
    in_place, pair = own(), [own(), own(3)]
    mean = [TOTAL / SIZE] * 3
    uneven, rows = torch.arange(SIZE + 1.0), torch.arange(1, SIZE + 1)
    mine = [0.0, 1.0] if RANK == 0 else [RANK + 1.0]
    gathered = [rank + 1 for rank in range(SIZE) for _ in range(rank + 1)]
    handles = [
        hvd.allreduce_async_(in_place, op=hvd.Sum),
        hvd.grouped_allreduce_async([own(), own(3) * SIZE], op=hvd.Average),
        hvd.grouped_allreduce_async_(pair, op=hvd.Max),
        hvd.grouped_allgather_async([own(RANK + 1), own(1)]),
        hvd.alltoall_async(own(int(rows.sum())), rows),
        hvd.reducescatter_async(uneven),
        hvd.grouped_reducescatter_async([uneven, own(SIZE)], op=hvd.Sum),
    ]
    results = [hvd.synchronize(handle) for handle in handles]
    assert results[0] is in_place
    same(in_place, [TOTAL] * 4)
    torch.testing.assert_close(results[1][0][:3], torch.tensor(mean))
    same(results[1][1], [TOTAL] * 3)
    same(pair[1], [SIZE] * 3)
    same(results[3][0], gathered)
    same(results[3][1], range(1, SIZE + 1))
    same(results[4][0], [rank + 1 for rank in range(SIZE) for _ in range(RANK + 1)])
    same(results[4][1], [RANK + 1] * SIZE)
    same(results[5], mine)
    same(results[6][0], [SIZE * each for each in mine])
    same(results[6][1], [TOTAL])
    same(hvd.synchronize(hvd.broadcast_async_(in_place.fill_(RANK), 1)), [1] * 4)
    same(in_place, [1] * 4)
    sparse = torch.sparse_coo_tensor([[0, RANK]], [1.0, 1.0], (SIZE,))
    dense = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)().to_dense()
    same(dense, [SIZE + 1] + [1] * (SIZE - 1))
    text = "op is Max; must be"
    refused(ValueError, text, lambda: hvd.sparse_allreduce_async(sparse, "sparse", hvd.Max))


def errors():
    call = lambda: hvd.allreduce(own(3 if RANK else 4), name="uneven")  # noqa: E731
    refused(hvd.HorovodInternalError, "call different operations: allreduce 'uneven'", call)
    call = lambda: hvd.allreduce(own(), op=hvd.Sum if RANK else hvd.Max)  # noqa: E731
    refused(hvd.HorovodInternalError, "different operations", call)
    call = lambda: hvd.broadcast(own(), min(RANK, 1))  # noqa: E731
    refused(hvd.HorovodInternalError, "different operations", call)
    hvd.barrier()
    executor = hvd.global_process_set.executor()
    executor.name("twice")
    refused(ValueError, "'twice', but", lambda: hvd.allreduce_async(own(), name="twice"))


def process_sets():
    assert EVENS.process_set_id == 1 and EVENS.included() == (RANK % 2 == 0)
    members = range(0, SIZE, 2)
    if EVENS.included():
        assert (EVENS.rank(), EVENS.size()) == (RANK // 2, len(members))
        total = float(sum(each + 1 for each in members))
        same(hvd.allreduce(own(), op=hvd.Sum, process_set=EVENS), [total] * 4)
        same(hvd.allgather(own(1), process_set=EVENS), [each + 1 for each in members])
        same(hvd.broadcast(own(), members[-1], process_set=EVENS), [members[-1] + 1] * 4)
        hvd.barrier(EVENS)
    else:
        refused(ValueError, "not in the process set", lambda: hvd.barrier(EVENS))
    refused(ValueError, "was already added", lambda: hvd.add_process_set(members))
    refused(ValueError, "must contain ranks from 0", lambda: hvd.add_process_set([SIZE]))
    assert hvd.remove_process_set(EVENS) and not hvd.remove_process_set(EVENS)
    assert not hvd.remove_process_set(hvd.global_process_set)


def state():
    torch.manual_seed(RANK)
    model = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=1)
    weights = hvd.allgather(model.weight.detach().flatten()).reshape(SIZE, -1)
    assert (weights == weights[1]).all()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (RANK + 1), momentum=0.9)
    if RANK == 0:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert "momentum_buffer" in optimizer.state[model.weight]
    assert hvd.broadcast_object({"rank": RANK}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object("x" * RANK) == ["x" * rank for rank in range(SIZE)]
    assert hvd.broadcast_object((lambda x: x + 1) if RANK == 1 else None, root_rank=1)(2) == 3

    class Local:
        rank = RANK

    assert [each.rank for each in hvd.allgather_object(Local())] == list(range(SIZE))
    text, lock = "the object of rank 1 cannot be pickled: ", threading.Lock()
    refused(TypeError, text, lambda: hvd.broadcast_object(lock if RANK == 1 else 0, 1))
    refused(TypeError, text, lambda: hvd.allgather_object(lock if RANK == 1 else 0))
    lbfgs = torch.optim.LBFGS(model.parameters())
    refused(ValueError, "LBFGS", lambda: hvd.broadcast_optimizer_state(lbfgs, 0))
    refused(ValueError, "must be a dict", lambda: hvd.broadcast_parameters(3, 0))


def optimizer():
    def trained(wrap, batch, passes=1):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        model = model.double()
        chosen = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
        for step in range(3):
            for _ in range(passes):
                (model(batch + step).square().mean() / passes).backward()
            chosen.step()
            chosen.zero_grad()
        return torch.cat([each.detach().flatten() for each in model.parameters()])

    batches = torch.arange(SIZE * 2 * 3, dtype=torch.float64).reshape(SIZE, 2, 3) / 10
    alone = trained(lambda optimizer, model: optimizer, batches.reshape(-1, 3))
    for options in (
        {},
        {"groups": 2},
        {"gradient_predivide_factor": 2.0},
        {"backward_passes_per_step": 2},
        {"op": hvd.Sum},
    ):

        def wrap(optimizer, model, options=options):
            if options.get("op") == hvd.Sum:
                optimizer.param_groups[0]["lr"] /= SIZE
            named = model.named_parameters()
            return hvd.DistributedOptimizer(optimizer, named, **options)

        passes = options.get("backward_passes_per_step", 1)
        torch.testing.assert_close(trained(wrap, batches[RANK], passes), alone)

    model = torch.nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = hvd.DistributedOptimizer(plain, compression=hvd.Compression.fp16)
    assert isinstance(chosen, torch.optim.SGD)
    model(torch.ones(1, 2) * (RANK + 1)).sum().backward()
    refused(AssertionError, "zero_grad() was called while", chosen.zero_grad)
    chosen.synchronize()
    torch.testing.assert_close(
        model.weight.grad, torch.full((1, 2), TOTAL / SIZE), rtol=1e-3, atol=0
    )
    with chosen.skip_synchronize(), warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen.step()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    named = [("w", model.weight), ("w", model.bias)]
    refused(ValueError, "names twice: w", lambda: hvd.DistributedOptimizer(plain, named))
    refused(
        ValueError, "named_parameters lacks", lambda: hvd.DistributedOptimizer(plain, named[:1])
    )
    embedding = torch.nn.Embedding(SIZE, 2, sparse=True)
    torch.nn.init.ones_(embedding.weight)
    chosen = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0), op=hvd.Sum)
    embedding(torch.tensor([RANK])).sum().backward()
    chosen.synchronize()
    assert embedding.weight.grad.is_sparse
    same(embedding.weight.grad.to_dense(), [[1.0, 1.0]] * SIZE)


def line(kind=torch.optim.SGD, inputs=2, **options):
    """Return a model that is equal on all ranks, and its optimizer."""
    model = torch.nn.Linear(inputs, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    return model, kind(model.parameters(), lr=1.0, **options)


def steps():
    mine = torch.full((1, 2), RANK + 1.0)
    model, chosen = line()
    scheduler = torch.optim.lr_scheduler.StepLR(chosen, 1, 0.5)
    chosen = hvd.DistributedOptimizer(chosen, op=hvd.Sum)
    weight = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            model(mine).sum().backward()
            chosen.step()
            scheduler.step()
            chosen.zero_grad()
            weight -= TOTAL * 0.5**step
            same(model.weight.detach(), [[weight] * 2])
    # Loss scaling skips a step.
    model, chosen = line()
    chosen = hvd.DistributedOptimizer(chosen, op=hvd.Sum)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        chosen.zero_grad()
        loss = model(torch.full((1, 2), torch.inf) if step == 1 and RANK == 0 else mine).sum()
        scaler.scale(loss).backward()
        chosen.synchronize()
        with chosen.skip_synchronize():
            scaler.step(chosen)
        scaler.update()
    same(model.weight.detach(), [[1 - 2 * TOTAL] * 2])
    refused(ValueError, "step(closure) computes", lambda: chosen.step(lambda: 0.0))
    model(mine).sum().backward()
    with chosen.skip_synchronize():
        refused(AssertionError, "was called in skip_synchronize(), but before", chosen.step)
    chosen.synchronize()
    # Parameters that are added or trained later, and another optimizer for the same ones.
    parts = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    parts[1].requires_grad_(False)
    first = hvd.DistributedOptimizer(torch.optim.SGD(parts[:2], lr=1.0), op=hvd.Sum)
    for number, chosen in enumerate((first, first, None)):
        if number == 1:
            parts[1].requires_grad_(True)
            first.add_param_group({"params": parts[2:]})
        chosen = chosen or hvd.DistributedOptimizer(torch.optim.SGD(parts, lr=1.0), op=hvd.Sum)
        for _ in range(2):
            chosen.zero_grad()
            sum(each * (RANK + 1) for each in parts).backward()
            chosen.step()
    same(torch.cat(parts), [1 - 6 * TOTAL, 1 - 4 * TOTAL, 1 - 4 * TOTAL])
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        refused(TypeError, "cannot be copied", lambda copied=copied: copied(chosen))
    refused(ValueError, "already", lambda: hvd.DistributedOptimizer(chosen))


def branches():
    for options in ({}, {"groups": 2}, {"backward_passes_per_step": 2}):
        parts = torch.nn.ModuleList([torch.nn.Linear(1, 1, bias=False) for _ in range(SIZE + 1)])
        for part in parts:
            torch.nn.init.ones_(part.weight)
        chosen = torch.optim.SGD(parts.parameters(), lr=1.0)
        chosen = hvd.DistributedOptimizer(chosen, parts.named_parameters(), op=hvd.Sum, **options)
        for step in range(2):
            for _ in range(options.get("backward_passes_per_step", 1)):
                used = (RANK + step) % SIZE  # no rank uses the last one
                (parts[used](torch.ones(1, 1)) * (RANK + 1)).sum().backward()
            chosen.step()
            chosen.zero_grad()
        weights = torch.stack([part.weight.detach().flatten() for part in parts])
        passes = options.get("backward_passes_per_step", 1)
        left = [1 - passes * (n + 1 + (n - 1) % SIZE + 1) for n in range(SIZE)]
        same(weights.flatten(), [*left, 1.0])
    # Ranks outside of the process set train alone.
    members = hvd.add_process_set([1])
    model, chosen = line()
    chosen = hvd.DistributedOptimizer(chosen, process_set=members)
    model(torch.full((1, 2), RANK + 1.0)).sum().backward()
    chosen.step()
    same(model.weight.detach(), [[-float(RANK)] * 2])
    hvd.remove_process_set(members)


def sparse():
    for as_dense in (False, True):
        table = torch.nn.Embedding(SIZE + 1, 2, sparse=True)
        torch.nn.init.ones_(table.weight)
        chosen = torch.optim.SparseAdam(list(table.parameters()), lr=0.5)
        chosen = hvd.DistributedOptimizer(chosen, sparse_as_dense=as_dense)
        for step in range(2):
            if step == 0 or RANK == 0:
                table(torch.tensor([RANK])).sum().backward()
            chosen.synchronize()
            assert table.weight.grad.is_sparse
            expected = torch.ones(SIZE + 1, 2) / SIZE
            expected[SIZE if step == 0 else 1 :] = 0
            torch.testing.assert_close(table.weight.grad.to_dense(), expected)
            with chosen.skip_synchronize():
                chosen.step()
            chosen.zero_grad()
        assert (table.weight[:SIZE] < 1).all() and (table.weight[SIZE] == 1).all()
        everyone = hvd.allgather(table.weight.detach()[None])
        assert all(torch.equal(each, everyone[0]) for each in everyone)


def join():
    for number in range(RANK + 1):
        takers = [rank for rank in range(SIZE) if rank >= number]
        same(hvd.allreduce(own(), op=hvd.Sum), [sum(rank + 1 for rank in takers)] * 4)
        same(hvd.allgather(own(1)), [rank + 1 for rank in takers])
    assert hvd.join() == SIZE - 1
    same(hvd.allreduce(own(), op=hvd.Sum), [TOTAL] * 4)
    for _ in range(SIZE - RANK):  # rank 0 has the most samples
        hvd.allreduce(own(), op=hvd.Sum)
    assert hvd.join() == 0
    if RANK == 0:
        time.sleep(0.5)  # the last rank has called nothing meanwhile
    assert hvd.join() == 0
    if RANK > 0:
        text = "a member has joined"
        refused(hvd.HorovodInternalError, text, lambda: hvd.broadcast(own(), 1))
        for op in (hvd.Min, hvd.Max, hvd.Product):
            call = lambda op=op: hvd.allreduce(own(), op=op)  # noqa: E731
            refused(hvd.HorovodInternalError, text, call)
        if SIZE == 2:
            same(hvd.allreduce(own(), op=hvd.Adasum), own())
    last = hvd.join()
    assert last > 0 and hvd.allgather_object(last) == [last] * SIZE


def adasum():
    if SIZE == 2:
        apart = torch.eye(2)[RANK]
        same(hvd.allreduce(apart, op=hvd.Adasum), [1, 1])
        same(hvd.allreduce(torch.ones(2), op=hvd.Adasum), [1, 1])
    else:
        refused(ValueError, "power of two", lambda: hvd.allreduce(own(), op=hvd.Adasum))


for part in (
    *(world, allreduce, allgather, broadcast, alltoall, reducescatter, asynchronous, errors),
    *(process_sets, state, optimizer, steps, branches, sparse, batch_norm, join, adasum, timeline),
):
    part()
    print("done", part.__name__, flush=True)
hvd.shutdown()
assert not hvd.is_initialized()
hvd.init()
same(hvd.allreduce(own(), op=hvd.Sum), [TOTAL] * 4)
hvd.shutdown()
print("used torch", *hvd.used)
