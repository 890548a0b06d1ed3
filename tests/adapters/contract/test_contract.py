# SPDX-License-Identifier: Apache-2.0
"""Every adapter keeps the contract that all share, on two and three real processes.

What is checked is in suite.py, what differs between frameworks in shims.py. The processes are
watched by nobody, so that each ends as it likes when the last rank is killed.
"""

import importlib.util
import re
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import adapter_list
import pytest
from conftest import Run

SUITE = Path(__file__).parent / "suite.py"

NATIVE = ["torch", "jax", "tensorflow"]  # their adapters have a native part
OTHERS = adapter_list.ADAPTER_OF

# These start slowest. Their adapters' own targets test them on two ranks.
CASES = [
    pytest.param(name, size, marks=[pytest.mark.slow] if name in NATIVE and size == 2 else [])
    for name in ("numpy", *NATIVE, *OTHERS)
    for size in (2, 3)
]


@pytest.fixture
def framework(request: pytest.FixtureRequest, native_part: Callable[[str], list[Path]]) -> str:
    """The name of an installed framework whose adapter's native part is built."""
    name: str = request.param
    needed = name not in OTHERS or OTHERS[name].imports  # others take NumPy's arrays
    if needed and importlib.util.find_spec(name) is None:
        pytest.skip(f"there is no {name}")
    if name in NATIVE:
        native_part(f"ddl_{name}")
    return name


@pytest.mark.parametrize(("framework", "size"), CASES, indirect=["framework"])
def test_contract(
    run_program: Run, tmp_path: Path, find_port: Callable[[], int], framework: str, size: int
) -> None:
    keeps_contract(run_program, tmp_path, find_port(), framework, [{}] * size)


@pytest.mark.slow
@pytest.mark.parametrize("without", [(0, 1), (1,), (0, 1, 2)])
@pytest.mark.parametrize("framework", ["tensorflow"], indirect=True)
def test_contract_without_compiler(
    run_program: Run,
    tmp_path: Path,
    find_port: Callable[[], int],
    framework: str,
    without: tuple[int, ...],
) -> None:
    """At least some ranks have the framework, and these keep the contract together."""
    missing = {"CXX": "no-such-compiler", "DDL_CACHE": str(tmp_path / "empty")}
    size = max(without) + 1
    own = [missing if rank in without else {} for rank in range(size)]
    keeps_contract(run_program, tmp_path, find_port(), framework, own)


def keeps_contract(
    run_program: Run, tmp_path: Path, port: int, framework: str, own: list[dict[str, str]]
) -> None:
    """Run the suite. own: the environment of each rank."""
    size, url = len(own), f"tcp://127.0.0.1:{port}"
    common = {"DDL_SIZE": str(size), "DDL_RENDEZVOUS": url, "OMP_NUM_THREADS": "1"}

    def start(rank: int):  # type: ignore[no-untyped-def]
        command = [sys.executable, SUITE, framework]
        env = {**common, **own[rank], "DDL_RANK": str(rank)}
        return run_program(command, cwd=tmp_path, env=env, limit=120)

    with ThreadPoolExecutor(size) as pool:
        *survivors, victim = pool.map(start, range(size))
    for survivor, environment in zip(survivors, own, strict=False):
        survivor.expect_success()
        assert ("no C++ compiler was found" in survivor.err) == bool(environment)
        (number,) = re.findall(r"checked (\d+)", survivor.out)
        assert int(number) > 150
    for skipped in re.findall(r"^skipped .*", survivors[0].out, re.MULTILINE):
        print(skipped)  # shown by pytest -rP
    assert victim.code == -signal.SIGKILL, victim
