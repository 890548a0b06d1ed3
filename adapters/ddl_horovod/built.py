# SPDX-License-Identifier: Apache-2.0
"""Horovod's functions about its build options, the same for all frameworks."""

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
    """Return True. libddl takes Gloo's place, so programs that choose between Gloo and MPI by these
    functions choose libddl."""
    return True


gloo_enabled = gloo_built


def mpi_built() -> bool:
    """Return False: operations do not use MPI, even if mpirun starts the ranks."""
    return False


mpi_enabled = mpi_threads_supported = mpi_built


def nccl_built() -> int:
    """Return 0: no operation runs on GPUs."""
    return 0


def ddl_built() -> bool:
    """Return False: the library that Horovod calls DDL is IBM's."""
    return False


def ccl_built() -> bool:
    """Return False: Intel's library is not used."""
    return False


def cuda_built() -> bool:
    """Return False: no operation runs on GPUs."""
    return False


def rocm_built() -> bool:
    """Return False: no operation runs on GPUs."""
    return False
