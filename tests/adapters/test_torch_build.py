# SPDX-License-Identifier: Apache-2.0
"""The native part is built at first use, and PyTorch finds it."""

import sys
from pathlib import Path

import pytest
from conftest import Run


def write(folder: Path, text: str) -> Path:
    program = folder / "program.py"
    program.write_text(text)
    return program


@pytest.mark.slow
def test_ranks_that_start_together_build_once(
    ddlrun: Run, torch_native: Path, tmp_path: Path
) -> None:
    """In place of the compiler, a script copies an earlier build, which saves half a minute."""
    compiler = tmp_path / "c++"
    compiler.write_text(
        f'#!/bin/sh\nsleep 2\nwhile [ "$1" != -o ]; do shift; done\nexec cp "{torch_native}" "$2"\n'
    )
    compiler.chmod(0o755)
    text = """
import torch, torch.distributed as dist
dist.init_process_group("ddl")
tensor = torch.ones(1)
dist.all_reduce(tensor)
assert tensor.item() == 3
"""
    cache = tmp_path / "cache"
    env = {"DDL_CACHE": str(cache), "CXX": str(compiler)}
    ended = ddlrun(3, text, env=env, limit=120).expect_success()
    assert ended.err.count("libddl: building ddl_torch for PyTorch") == 1
    assert ended.err.count("libddl: built ddl_torch for PyTorch") == 1
    assert ended.err.count("libddl: waiting for another process to build") <= 2
    assert [path.name for path in cache.rglob("*.so")] == ["_ddl_torch.so"]
    assert not list(cache.rglob("*.tmp*"))


@pytest.mark.parametrize("backend", ["ddl", "gloo"])
def test_loading_goes_on_while_a_rank_waits_for_another(
    backend: str, run_here: Run, torch_native: Path, tmp_path: Path
) -> None:
    program = f"""
import os, threading, time
from datetime import timedelta
import torch.distributed as dist
from ddl_torch import _build

def join():
    try:
        dist.init_process_group("{backend}", init_method="tcp://127.0.0.1:0", rank=0, world_size=2,
                                timeout=timedelta(seconds=20))
    except dist.DistError:
        os._exit(3)

threading.Thread(target=join, daemon=True).start()
end = time.monotonic() + {10 if backend == "ddl" else 2}
while _build._module is None and time.monotonic() < end:
    time.sleep(0.01)
print(_build._module is not None, flush=True)
os._exit(0)
"""
    command = [sys.executable, write(tmp_path, program)]
    ended = run_here(command, limit=60).expect_success()
    assert ended.out == f"{backend == 'ddl'}\n"


@pytest.mark.slow
def test_nothing_is_compiled_where_python_is_asked_for(ddlrun: Run, tmp_path: Path) -> None:
    text = """
import time
import torch, torch.distributed as dist
dist.init_process_group("ddl")
tensor = torch.ones(1)
dist.all_reduce(tensor)
assert tensor.item() == 2
time.sleep(1)
"""
    cache = tmp_path / "cache"
    env = {"DDL_CACHE": str(cache), "DDL_TORCH_NATIVE": "0"}
    ended = ddlrun(2, text, env=env, limit=120).expect_success()
    assert not cache.exists() and "building" not in ended.err


def test_info(run_here: Run, torch_native: Path) -> None:
    ended = run_here([sys.executable, "-m", "ddl_torch", "info"])
    assert f"{torch_native}  built" in ended.expect_success().out


def test_second_build_does_nothing(run_here: Run, torch_native: Path) -> None:
    ended = run_here([sys.executable, "-m", "ddl_torch", "build"])
    assert (ended.expect_success().out, ended.err) == (f"{torch_native}\n", "")


def test_build_without_a_compiler(run_here: Run, tmp_path: Path) -> None:
    env = {"DDL_CACHE": str(tmp_path / "cache"), "PATH": str(tmp_path), "CXX": ""}
    said = (
        "no C++ compiler was found (tried c++, g++, clang++); install one (Debian: apt install g++)"
    )
    command = [sys.executable, "-m", "ddl_torch", "build"]
    ended = run_here(command, env=env)
    assert ended.code == 1
    assert ended.err.endswith(f"ddl_torch: {said}\n") and "Traceback" not in ended.err
    ended = run_here(command, env={**env, "CXX": "nothing++"})
    assert "CXX is 'nothing++', not found" in ended.err


IN_PYTHON = {"CXX": "nothing++"}
SAID = "RuntimeWarning: the backend ddl has no native part, so it is slower: no C++ compiler"


@pytest.mark.parametrize(
    ("program", "debug"),
    [
        *(
            pytest.param(program, "OFF", marks=pytest.mark.slow)
            for program in (
                *("collectives", "messages", "refusals", "functional", "gradients", "operations"),
            )
        ),
        *(
            pytest.param(program, "DETAIL", marks=pytest.mark.slow)
            for program in ("async", "training")
        ),
    ],
)
def test_fallback_programs(ddlrun: Run, tmp_path: Path, program: str, debug: str) -> None:
    env = {**IN_PYTHON, "DDL_CACHE": str(tmp_path / "cache"), "TORCH_DISTRIBUTED_DEBUG": debug}
    file = Path(__file__).parent / "programs" / f"torch_{program}.py"
    ended = ddlrun(3, file, env=env, limit=180).expect_success()
    assert ended.err.count(SAID) == 3


@pytest.mark.slow
def test_nothing_but_the_error(ddlrun: Run) -> None:
    text = """
import torch.distributed as dist
dist.init_process_group("ddl")
raise SystemError("wanted")
"""
    ended = ddlrun(1, text, env={"DDL_TORCH_NATIVE": "0"})
    assert "SystemError: wanted" in ended.err
    assert "Exception ignored" not in ended.err, ended.err


@pytest.mark.slow
def test_fallback_features(ddlrun: Run, tmp_path: Path) -> None:
    env = {**IN_PYTHON, "DDL_CACHE": str(tmp_path / "cache"), "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    file = Path(__file__).parent / "programs" / "torch_features.py"
    names = ["compiled", "fsdp2", "dtensor", "zero1"]
    ended = ddlrun(2, file, *names, env=env, limit=180).expect_success()
    assert [ended.out.count(f"done {name}") for name in names] == [2] * len(names)
    assert ended.err.count(SAID) == 2


@pytest.mark.slow
def test_broken_compiler(ddlrun: Run, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'the disk is on fire'\nsleep 1\nexit 3\n")
    compiler.chmod(0o755)
    cache = tmp_path / "cache"
    env = {"DDL_CACHE": str(cache), "CXX": str(compiler)}
    text = """
import torch, torch.distributed as dist
dist.init_process_group("ddl")
tensor = torch.ones(1)
dist.all_reduce(tensor)
print(tensor.item(), flush=True)
"""
    ended = ddlrun(2, text, env=env).expect_success()
    assert ended.lines(0) == ended.lines(1) == ["2.0"]
    assert (
        ended.err.count("native part, so it is slower: the compiler failed with exit code 3:") == 2
    )
    assert ended.err.count("the disk is on fire") == 2
    assert not list(cache.rglob("*.so"))


@pytest.mark.slow
def test_cache_that_cannot_be_written(run_here: Run) -> None:
    env = {"DDL_CACHE": "/proc/nowhere"}
    ended = run_here([sys.executable, "-m", "ddl_torch", "build"], env=env)
    assert ended.code == 1
    assert "set DDL_CACHE to a writable folder" in ended.err


def test_import_torch_is_not_burdened(run_here: Run, tmp_path: Path) -> None:
    text = """
import sys
import torch
assert "ddl" in torch.distributed.Backend.backend_list
assert not {"ddl_core", "ddl_torch._build", "_ddl_torch"} & sys.modules.keys()
"""
    env = {"DDL_CACHE": str(tmp_path / "cache")}
    run_here([sys.executable, write(tmp_path, text)], env=env).expect_success()
    assert not (tmp_path / "cache").exists()


def test_import_torch_survives_an_adapter_that_fails(run_here: Run, tmp_path: Path) -> None:
    text = """
import torch
import torch.distributed as dist
from ddl_torch import _autoload
def fail(*arguments, **options):
    raise OSError("no backend today")
dist.Backend.register_backend = fail
del dist.Backend.DDL
_autoload.register()
"""
    ended = run_here([sys.executable, write(tmp_path, text)]).expect_success()
    assert "no backend today" in ended.err


def test_without_autoload(run_here: Run, torch_native: Path, tmp_path: Path) -> None:
    text = """
import torch
assert "ddl" not in torch.distributed.Backend.backend_list
import ddl_torch as ddl
ddl.init()
assert ddl.allreduce(torch.ones(2)).tolist() == [1, 1]
ddl.shutdown()
"""
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    run_here([sys.executable, write(tmp_path, text)], env=env).expect_success()
