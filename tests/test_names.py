# SPDX-License-Identifier: Apache-2.0
"""A class name stands for one thing in all of the packages."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ddl", "ddl_core", "ddl_launch", "ddl_elastic", "ddl_scheduler", "adapters")
SHARED = {  # at most 15, each with the reason why several classes have it
    "BestModelCheckpoint": "Horovod has it for Keras and for tf.keras",
    "Comm": "mpi4jax takes an MPI.Comm",
    "Communicator": "what split and subset return, in ddl_core and in each adapter",
    "Compression": "Horovod has it for each framework",
    "Contract": "what every small adapter is tested for",
    "DistributedOptimizer": "each framework's optimizer that averages gradients",
    "FP16Compressor": "Horovod has it for each framework",
    "Job": "the elastic job of each framework",
    "Options": "of every collective in ddl_core, and of a process group in ddl_torch",
    "ProcessSet": "Horovod has it for each framework",
    "SyncBatchNormalization": "the layer of Keras, which Horovod has, too",
    "Work": "a pending operation, in ddl_core on arrays, in ddl_torch on tensors",
    "World": "environment.World says how a process was started, adapter.World joins that job",
    "_World": "adapter.World for the arrays of one framework",
}


def test_class_names_are_unique() -> None:
    found = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path.relative_to(ROOT)))
    several = {name: places for name, places in found.items() if len(places) > 1}
    assert {name for name in several if name not in SHARED} == set(), several
    assert set(SHARED) <= set(several), "SHARED lists names that only one class has"
    assert len(SHARED) <= 15
