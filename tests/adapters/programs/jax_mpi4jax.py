# SPDX-License-Identifier: Apache-2.0
"""mpi4jax's functions over ddl_jax: the results that mpi4jax's own tests expect, on any number of
ranks, inside and outside of jit. Prints "done NAME" for each part."""

import jax
import jax.numpy as jnp
import numpy as np
from checks import refused

import ddl_jax
import ddl_jax.mpi4jax as mpi4jax
from ddl_jax.mpi4jax import MPI

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
TOTAL = SIZE * (SIZE + 1) // 2  # the sum of rank + 1
OWN = jnp.full((3, 2), RANK + 1.0)


def same(array, expected):
    np.testing.assert_array_equal(np.asarray(array), np.broadcast_to(expected, np.shape(array)))


def both(function, *arguments):
    """Return the results outside and inside of jit, which must be equal."""
    plain, compiled = function(*arguments), jax.jit(function)(*arguments)
    same(plain, compiled)
    return plain


def collectives():
    assert (COMM.rank, COMM.size) == (RANK, SIZE) == (ddl_jax.rank(), ddl_jax.size())
    same(both(lambda x: mpi4jax.allreduce(x, op=MPI.SUM), OWN), TOTAL)
    same(both(lambda x: mpi4jax.allreduce(x, MPI.MAX, comm=COMM), OWN), SIZE)
    same(both(lambda x: mpi4jax.allreduce(x, MPI.LAND), OWN > 1), False)
    gathered = both(mpi4jax.allgather, OWN)
    assert gathered.shape == (SIZE, 3, 2)
    same(gathered[:, 0, 0], np.arange(SIZE) + 1)
    numbers = jnp.arange(SIZE) + 10 * RANK
    same(both(mpi4jax.alltoall, numbers), RANK + 10 * np.arange(SIZE))
    same(both(lambda x: mpi4jax.bcast(x, 1), OWN), 2)
    gathered = mpi4jax.gather(OWN, root=0)
    same(gathered, OWN if RANK else mpi4jax_all())
    reduced = both(lambda x: mpi4jax.reduce(x, MPI.SUM, 1), OWN)
    same(reduced, TOTAL if RANK == 1 else RANK + 1)
    same(both(lambda x: mpi4jax.scan(x, MPI.SUM), OWN), (RANK + 1) * (RANK + 2) // 2)
    product = [1, 2, 6, 24][RANK]
    same(both(lambda x: mpi4jax.scan(x, MPI.PROD), OWN), product)
    rows = jnp.arange(2.0 * SIZE).reshape(SIZE, 2)
    same(both(lambda x: mpi4jax.scatter(x, 0), rows if RANK == 0 else rows[0]), rows[RANK])
    mpi4jax.barrier()
    COMM.Barrier()
    assert not mpi4jax.has_cuda_support() and not mpi4jax.has_sycl_support()
    refused(ValueError, "its first dimension must be", lambda: mpi4jax.alltoall(jnp.ones(SIZE + 1)))
    refused(ValueError, "comm is a str", lambda: mpi4jax.barrier(comm="world"))
    refused(ValueError, "must be one of sum", lambda: ddl_jax.scan(OWN, "average"))


def mpi4jax_all():
    return np.repeat(np.arange(SIZE)[:, None, None] + 1.0, 3, 1).repeat(2, 2)


def derivatives():
    """Derivatives of the one loss that all ranks compute. A sum that is transposed twice is the sum
    again."""

    def add(x):
        return mpi4jax.allreduce(x, op=MPI.SUM)

    def transposed(y):
        return jax.linear_transpose(add, OWN)(y)[0]

    def twice(y):
        return jax.linear_transpose(transposed, OWN)(y)[0]

    same(both(transposed, OWN), RANK + 1)
    same(both(twice, OWN), TOTAL)
    value, gradient = jax.jit(jax.value_and_grad(lambda x: add(x).sum()))(OWN)
    same(value, 6 * TOTAL)
    same(gradient, 1)
    result, tangent = jax.jvp(add, (OWN,), (OWN,))
    same(result, TOTAL)
    same(tangent, TOTAL)
    same(both(jax.vmap(add), OWN), TOTAL)
    summed = jax.grad(lambda x: ddl_jax.allreduce(x).sum())(OWN)
    same(summed, SIZE)  # ddl_jax's own derivative, of the sum of all ranks' losses
    refused(ValueError, 'must be "allreduce"', lambda: ddl_jax.allreduce(OWN, transpose="none"))
    ramp = jax.grad(lambda x: ddl_jax.scan(x).sum())(OWN)
    same(ramp, SIZE - RANK)


def messages():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE

    def ring(x):
        return mpi4jax.sendrecv(x, x, source=before, dest=after)

    same(both(ring, OWN), before + 1)
    status = MPI.Status()
    assert status.Get_source() == -1
    if RANK == 0:
        seen = set()
        for _ in range(SIZE - 1):
            array = mpi4jax.recv(OWN, MPI.ANY_SOURCE, tag=7, status=status)
            assert status.Get_tag() == 7
            same(array, status.Get_source() + 1)
            seen.add(status.source)
        assert seen == set(range(1, SIZE))
        receive = jax.jit(lambda x: mpi4jax.recv(x, tag=8, status=status))
        same(receive(OWN), 2)
        assert (status.Get_source(), status.tag) == (1, 8)
    else:
        mpi4jax.send(OWN, 0, tag=7)
        if RANK == 1:
            jax.jit(lambda x: mpi4jax.send(x, dest=0, tag=8))(OWN)
    mpi4jax.sendrecv(OWN, OWN, before, after, status=status).block_until_ready()
    assert status.Get_source() == before
    if RANK == 0:
        same(mpi4jax.recv(OWN, source=SIZE - 1), SIZE)
    elif RANK == SIZE - 1:
        mpi4jax.send(OWN, dest=0)
    call = lambda: mpi4jax.sendrecv(OWN, OWN, -1, after, status=status)  # noqa: E731
    refused(Exception, "use recv", call)


def communicators():
    part = COMM.Split(RANK % 2, key=-RANK)
    others = [rank for rank in range(SIZE) if rank % 2 == RANK % 2][::-1]
    assert (part.Get_rank(), part.size) == (others.index(RANK), len(others))
    expected = sum(rank + 1 for rank in others)
    same(both(lambda x: mpi4jax.allreduce(x, MPI.SUM, comm=part), OWN), expected)
    same(both(lambda x: mpi4jax.bcast(x, 0, comm=part), OWN), others[0] + 1)
    gathered = both(lambda x: mpi4jax.allgather(x, comm=part), OWN)
    same(gathered[:, 0, 0], np.array(others) + 1)
    same(
        both(lambda x: mpi4jax.scan(x, MPI.SUM, comm=part), OWN),
        sum(rank + 1 for rank in others[: part.rank + 1]),
    )
    total = both(
        lambda x: mpi4jax.allreduce(mpi4jax.allreduce(x, MPI.SUM, comm=part), MPI.MAX), OWN
    )
    assert total[0, 0] >= expected
    twin = part.Clone()
    same(mpi4jax.allreduce(OWN, MPI.SUM, comm=twin), expected)
    twin.Free()
    assert (COMM.Split(MPI.UNDEFINED if RANK else 0) is None) == bool(RANK)
    gradient = jax.grad(lambda x: ddl_jax.allgather(x, comm=part._part).sum())(OWN)
    same(gradient, len(others))
    first = ddl_jax.subset([0, 1]) if RANK < 2 else None
    if first is not None:
        same(ddl_jax.allreduce(OWN, comm=first), 3)
        swapped = ddl_jax.sendrecv(OWN, 1 - first.rank, 1 - first.rank, comm=first)
        same(swapped, 2 - first.rank)
        ddl_jax.barrier(comm=first)
    refused(ValueError, "root: ", lambda: ddl_jax.broadcast(OWN, 9, comm=part._part))
    compiled = jax.jit(lambda x: ddl_jax.allreduce(x, comm=part._part))
    same(compiled(OWN), expected)
    ddl_jax.shutdown()
    ddl_jax.init()
    refused(ValueError, "created before", lambda: ddl_jax.allreduce(OWN, comm=part._part))
    same(ddl_jax.allreduce(OWN), TOTAL)
    part = ddl_jax.split(0)
    stale = lambda: compiled(OWN).block_until_ready()  # noqa: E731
    refused(jax.errors.JaxRuntimeError, "created before ddl_jax.shutdown()", stale)
    ddl_jax.shutdown()
    ddl_jax.init()
    part = ddl_jax.split(0)
    same(ddl_jax.allreduce(OWN, comm=part), TOTAL)


for each in (collectives, derivatives, messages, communicators):
    each()
    print("done", each.__name__, flush=True)
