# SPDX-License-Identifier: Apache-2.0
"""A program for mpi4jax, which test_mpi4jax.py also runs over libddl with two lines changed: sums,
messages, a halo exchange in a loop, derivatives, and the other operations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpi4jax
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


@jax.jit
def global_sum(arr):
    arr = arr + rank
    return mpi4jax.allreduce(arr, op=MPI.SUM, comm=comm)


print(rank, global_sum(jnp.zeros((3, 3)))[0])


@jax.jit
def exchange(arr):
    arr = arr + rank
    if rank == 0:
        mpi4jax.send(arr, dest=1, comm=comm)
        return mpi4jax.recv(arr, source=1, comm=comm)
    if rank == 1:
        other = mpi4jax.recv(arr, source=0, comm=comm)
        mpi4jax.send(arr, dest=0, comm=comm)
        return other
    return arr


print(rank, exchange(jnp.zeros(2)))


def diffuse(field):
    left, right = (rank - 1) % size, (rank + 1) % size

    def step(_, field):
        from_left = mpi4jax.sendrecv(
            field[-1], field[0], source=left, dest=right, sendtag=1, recvtag=1, comm=comm
        )
        from_right = mpi4jax.sendrecv(
            field[0], field[-1], source=right, dest=left, sendtag=2, recvtag=2, comm=comm
        )
        padded = jnp.concatenate([from_left[None], field, from_right[None]])
        return field + 0.25 * (padded[2:] - 2 * field + padded[:-2])

    return jax.lax.fori_loop(0, 20, step, field)


start = jnp.arange(4.0) + 4 * rank
end = jax.jit(diffuse)(start)
print(rank, end)
gathered = mpi4jax.gather(end, root=0, comm=comm)
if rank == 0:
    print("whole", gathered.reshape(-1))
total = mpi4jax.reduce(end.sum(), op=MPI.SUM, root=0, comm=comm)
if rank == 0:
    print("sum", total)
value, slope = jax.value_and_grad(
    lambda w: mpi4jax.allreduce(jnp.sum((w * start) ** 2), op=MPI.SUM, comm=comm)
)(2.0)
print(rank, value, slope)
part = comm.Split(rank % 2, rank)
print(
    rank,
    mpi4jax.bcast(jnp.float32(rank), root=0, comm=part),
    mpi4jax.scan(jnp.float32(rank + 1), op=MPI.SUM, comm=comm),
)
print(
    rank,
    mpi4jax.alltoall(jnp.arange(size) + 10.0 * rank, comm=comm),
    mpi4jax.allgather(jnp.float32(rank), comm=comm),
)
scattered = mpi4jax.scatter(
    jnp.arange(2.0 * size).reshape(size, 2) if rank == 0 else jnp.zeros(2), root=0, comm=comm
)
print(rank, scattered)
mpi4jax.barrier(comm=comm)
