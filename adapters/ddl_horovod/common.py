"""What the modules for all frameworks share: reductions, errors, and answers about the build."""

from __future__ import annotations

from dataclasses import dataclass


class HorovodInternalError(RuntimeError):
    """An operation failed: the ranks called different things, a rank ended, or the time passed."""


@dataclass(frozen=True)
class Reduction:
    """How the ranks' values are combined."""

    name: str


Average = Reduction("Average")
Sum = Reduction("Sum")
Adasum = Reduction("Adasum")
Min = Reduction("Min")
Max = Reduction("Max")
Product = Reduction("Product")


def reduction(average: bool | None, op: Reduction | None) -> Reduction:
    """The one that was asked for. ValueError for both, or for what is none."""
    if average is not None and op is not None:
        raise ValueError("average: give op alone; average is its former name")
    if op is None:
        return Sum if average is False else Average
    if not isinstance(op, Reduction):
        raise ValueError(f"op: {op!r} is none of Average, Sum, Adasum, Min, Max, Product")
    return op


def gloo_built() -> bool:
    """Whether Gloo can be used. libddl stands for it: it is there and needs no MPI, so programs
    that choose by these functions choose it."""
    return True


gloo_enabled = gloo_built


def mpi_built() -> bool:
    """False: operations do not use MPI, though mpirun may start the ranks."""
    return False


mpi_enabled = mpi_threads_supported = mpi_built


def nccl_built() -> int:
    """0: no operation runs on GPUs."""
    return 0


def ddl_built() -> bool:
    """False. Horovod means IBM's library by this name."""
    return False


def ccl_built() -> bool:
    """False: Intel's library is not used."""
    return False


def cuda_built() -> bool:
    """False: no operation runs on GPUs."""
    return False


def rocm_built() -> bool:
    """False: no operation runs on GPUs."""
    return False
