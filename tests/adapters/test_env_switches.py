# SPDX-License-Identifier: Apache-2.0
"""DDL_METRICS_PORT, DDL_DUMP_SIGNAL and the warning about misspelt variables, by adapter."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run

PROGRAM = Path(__file__).parent / "programs" / "env_switches.py"


def others(adapter: str, framework: str, **env: str) -> object:
    missing = importlib.util.find_spec(framework) is None
    skip = pytest.mark.skipif(missing, reason=f"there is no {framework}")
    name = "-".join([adapter, *env.values()])
    return pytest.param(adapter, env, marks=[pytest.mark.slow, skip], id=name)


@pytest.mark.parametrize(
    ("adapter", "env"),
    [
        ("torch", {}),
        others("torch", "torch", DDL_TORCH_NATIVE="0"),
        others("ddl_torch", "torch"),
        others("ddl_horovod.torch", "torch"),
        others("ddl_tensorflow", "tensorflow"),
        others("ddl_horovod.tensorflow", "tensorflow"),
        others("ddl_horovod.keras", "tensorflow"),
        others("ddl_keras", "tensorflow", KERAS_BACKEND="tensorflow"),
        others("ddl_keras", "torch", KERAS_BACKEND="torch"),
        others("ddl_keras", "jax", KERAS_BACKEND="jax"),
        others("ddl_jax", "jax"),
    ],
)
@pytest.mark.usefixtures("torch_native")
def test_switches_work_with_adapter(
    ddlrun: Run, find_port: Callable[[], int], adapter: str, env: dict[str, str]
) -> None:
    first = find_port()
    while find_port() != first + 1:  # each rank has its own
        first = find_port()
    set_env = {"DDL_DUMP_SIGNAL": "USR1", "DDL_METRICS_PORT": str(first)}
    set_env |= {"DDL_DEAD_MSS": "9", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = ddlrun(2, PROGRAM, adapter, env={**set_env, **env}, limit=120).expect_success()
    assert ended.out.count("done") == 2
    assert ended.err.count("did you mean DDL_DEAD_MS?") == 1, ended.err
    assert "has waited for" in ended.err and "missing: rank 1 on " in ended.err, ended.err
