"""All that this package reads from its environment, and sets in it."""

from __future__ import annotations

import os


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def prepare_worker(threads: int) -> None:
    """For libraries that read their settings later. The job itself tells of its failures, so the
    messages of libddl are off unless DDL_LOG is set."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("DDL_LOG", "off")


# Settings on which the bits of numerical libraries depend.
_SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)


def settings() -> dict[str, str]:
    """Those that are set."""
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}
