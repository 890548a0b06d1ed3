# SPDX-License-Identifier: Apache-2.0
"""Answers to what Horovod was built with, equal for all frameworks."""

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


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
