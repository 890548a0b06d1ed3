# SPDX-License-Identifier: Apache-2.0
"""Run by test_chainer.py on two and three ranks: ChainerMN's interface, and functions that use
it."""

import warnings
from collections.abc import Callable

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np

import ddl_chainer as ddl
from ddl_core.errors import InvalidArgument

warnings.simplefilter("ignore")  # ChainerMN calls its own functions experimental
comm = ddl.create_communicator("ddl")
rank, size = comm.rank, comm.size
after, before = (rank + 1) % size, (rank - 1) % size


def of(number: int, dtype: str = "float32") -> np.ndarray:
    """Return an array whose shape and values depend on the rank."""
    return np.full((number + 1, 2), number, dtype)


def same(got: object, expected: object) -> None:
    got, expected = list(got), list(expected)
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist(), (ours, theirs)


def check_ranks() -> None:
    assert (comm.intra_rank, comm.intra_size) == (rank, size)
    assert (comm.inter_rank, comm.inter_size) == (0, 1)
    part = comm.split(rank % 2, -rank)
    members = range(rank % 2, size, 2)
    assert part.size == len(members)
    assert part.gather_obj(rank) == (sorted(members, reverse=True) if part.rank == 0 else None)


def check_arrays() -> None:
    everyones = [of(each) for each in range(size)]
    same(comm.allgather(of(rank)), everyones)
    for root in range(size):
        gathered = comm.gather(of(rank, "int8"), root)
        assert (gathered is None) == (rank != root)
        same(gathered or [], [of(each, "int8") for each in range(size)] * (rank == root))
        same([comm.scatter(everyones if rank == root else None, root)], [of(rank)])
        same([comm.bcast(of(root) if rank == root else None, root)], [of(root)])
    same([comm.allreduce(np.full(3, rank, "f"))], [np.full(3, size * (size - 1) / 2, "f")])
    same(comm.alltoall([of(rank) + each for each in range(size)]), [e + rank for e in everyones])

    # Messages in a ring: an array, a tuple of arrays with an empty one, an object.
    for data in (of(rank, "float16"), (of(rank), np.zeros((0, 3)), np.int64(rank).reshape(()))):
        if rank == 0:
            comm.send(data, after, 7)
        received = comm.recv(before, 7)
        if rank > 0:
            comm.send(data, after, 7)
        assert isinstance(received, tuple) == isinstance(data, tuple)
        first = received[0] if isinstance(received, tuple) else received
        same([first], [of(before, str(first.dtype))])
    if rank == 0:
        comm.send_obj({"from": rank}, 1)
    if rank == 1:
        assert comm.recv_obj(0) == {"from": 0}


def check_objects() -> None:
    assert comm.bcast_obj(["x"] if rank == 1 else None, root=1) == ["x"]
    assert comm.allreduce_obj(rank + 0.5) == size * size / 2
    data = chainermn.scatter_dataset(list(range(10)) if rank == 0 else None, comm)
    assert len(data) == -(-10 // size)
    seen = {each for own in ddl.allgather_object(list(data)) for each in own}
    assert seen == set(range(10))


def check_functions() -> None:
    x = chainer.Variable(np.array([rank + 1.0], "f"))
    if rank == 0:
        sent = chainermn.functions.send(F.square(x), comm, rank=1)
        sent.backward()
        assert x.grad.tolist() == [6]  # of 3 * x * x
    elif rank == 1:
        y = chainermn.functions.recv(comm, rank=0)
        (3 * F.sum(y)).backward()
        assert y.array.tolist() == [1]
    x.cleargrad()
    gathered = chainermn.functions.allgather(comm, x)
    same([each.array for each in gathered], [np.array([n + 1.0], "f") for n in range(size)])
    F.sum((rank + 1) * sum(gathered)).backward()
    assert x.grad.tolist() == [size * (size + 1) / 2]
    x.cleargrad()
    root = chainermn.functions.bcast(comm, x, root=0)
    F.sum((rank + 1) * root).backward()
    assert root.array.tolist() == [1]
    assert rank > 0 or x.grad.tolist() == [size * (size + 1) / 2]
    xs = [chainer.Variable(np.array([rank * size + n], "f")) for n in range(size)]
    ys = chainermn.functions.alltoall(comm, xs)
    assert [y.array.tolist() for y in ys] == [[n * size + rank] for n in range(size)]
    F.sum((rank + 1) * sum(ys)).backward()
    assert [each.grad.tolist() for each in xs] == [[n + 1] for n in range(size)]
    x.cleargrad()
    gathered = chainermn.functions.gather(comm, x, root=1)
    (F.sum(3 * sum(gathered)) if rank == 1 else gathered).backward()
    assert x.grad.tolist() == [3]
    for each in xs:
        each.cleargrad()
    own = chainermn.functions.scatter(comm, tuple(xs) if rank == 1 else None, root=1)
    assert own.array.tolist() == [size + rank]
    F.sum((rank + 1) * own).backward()
    assert rank != 1 or [each.grad.tolist() for each in xs] == [[n + 1] for n in range(size)]


def check_models() -> None:
    np.random.seed(rank)
    model = chainer.Chain()
    with model.init_scope():
        model.used, model.unused = L.Linear(3, 2), L.Linear(2, 2)
    own = model.used.W.array.copy()
    comm.bcast_data(model)
    same([model.used.W.array], [comm.bcast(own if rank == 0 else None)])

    def backward() -> None:
        model.cleargrads()
        F.sum((rank + 1) * model.used(np.ones((1, 3), "f"))).backward()

    backward()
    comm.multi_node_mean_grad(model, zero_fill=True)
    assert model.used.W.grad.tolist() == np.full((2, 3), (size + 1) / 2).tolist()
    assert not model.unused.W.grad.any()
    backward()
    comm.allreduce_grad(model)  # the former name
    assert model.used.W.grad.tolist() == np.full((2, 3), (size + 1) / 2).tolist()
    assert model.unused.W.grad is None

    # The adapter's optimizer and ChainerMN's batch normalization give the same result as for the
    # whole batch.
    optimizer = ddl.DistributedOptimizer(chainer.optimizers.SGD(1.0)).setup(model)
    weights = model.used.W.array.copy()
    for _ in range(2):  # the first update gives all ranks the weights of rank 0
        backward()
        optimizer.update()
    np.testing.assert_allclose(model.used.W.array, weights - (size + 1) / 2, rtol=1e-6)
    norm = chainermn.links.MultiNodeBatchNormalization(1, comm)
    values = np.arange(4 * size, dtype="f").reshape(-1, 1)
    whole = F.fixed_batch_normalization(
        values, np.ones(1, "f"), np.zeros(1, "f"), values.mean(0), values.var(0)
    )
    np.testing.assert_allclose(
        norm(values[rank::size]).array, whole.array[rank::size], rtol=1e-3, atol=1e-4
    )


class Started(chainer.FunctionHook):
    """Records how many gradients have started when the backward pass reaches each linear
    function."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def backward_preprocess(self, function: object, *_: object) -> None:
        if isinstance(function, F.connection.linear.LinearFunction):
            self.counts.append(len(comm._overlap._started))


class Branches(chainer.Chain):
    """`first` is used twice, `even` by even ranks only, `never` by none."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.first, self.second = L.Linear(2, 2), L.Linear(2, 2)
            self.even, self.never = L.Linear(2, 2), L.Linear(2, 2)

    def forward(self, x: np.ndarray) -> chainer.Variable:
        hidden = F.sigmoid(self.first(F.sigmoid(self.first(x))))
        if rank % 2 == 0:
            hidden = self.even(hidden)
        return (rank + 1) * F.sum(self.second(hidden))


def check_overlap() -> None:
    """Gradients start within the backward pass, and are equal to those without overlap."""
    x = np.linspace(0, 1, 6, dtype="f").reshape(3, 2)
    model = Branches()
    comm.bcast_data(model)

    def gradients(loss: chainer.Variable) -> dict[str, np.ndarray]:
        model.cleargrads()
        loss.backward()
        comm.multi_node_mean_grad(model, zero_fill=True)
        return {name: param.grad for name, param in model.namedparams()}

    expected = gradients(model(x))
    with Started() as hook:
        got = gradients(comm.overlapped(model)(x))
    assert hook.counts == ([0, 2, 4, 4] if rank % 2 == 0 else [0, 2, 2]), hook.counts
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-6, err_msg=name)
    assert not got["/never/W"].any() and (size == 1 or got["/even/W"].any())

    def trained(loss_of: Callable[[Branches], Callable[..., chainer.Variable]]) -> list[np.ndarray]:
        """Return the weights after three updates, of which the first only broadcasts rank 0's
        weights."""
        own = model.copy("copy")
        optimizer = ddl.create_multi_node_optimizer(chainer.optimizers.SGD(0.5), comm).setup(own)
        loss = loss_of(own)
        for _ in range(3):
            optimizer.update(loss, x)
        return [param.array for _, param in sorted(own.namedparams())]

    plain = trained(lambda own: own)
    before = [param.array for _, param in sorted(model.namedparams())]
    assert sum((a != b).any() for a, b in zip(plain, before, strict=True)) == 6  # except /never
    for loss_of in (comm.overlapped, lambda own: comm.overlapped(own, lambda x: own(x))):
        for ours, theirs in zip(trained(loss_of), plain, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
            assert ours.tobytes() == comm.bcast(ours).tobytes()


def check_refused() -> None:
    for call, said in [
        (lambda: ddl.create_communicator("pure_nccl"), "'pure_nccl' must be 'ddl'"),
        (lambda: comm.allreduce([1.0]), "data is a list, not a NumPy array"),
        (
            lambda: comm.alltoall([of(0)] * (size + 1)),
            f"has {size + 1} arrays; must have one for each",
        ),
        (lambda: ddl.allreduce(3), "array is a int, not a NumPy array"),
    ]:
        try:
            call()
        except InvalidArgument as error:
            assert said in str(error), error
        else:
            raise AssertionError(said)
    variable = chainer.Variable(np.ones(2, "f"))
    assert ddl.allreduce(variable).tolist() == [size, size]


check_ranks()
check_arrays()
check_objects()
check_functions()
check_models()
check_overlap()
check_refused()
ddl.shutdown()
print("right")
