# SPDX-License-Identifier: Apache-2.0
"""The job's secret, from a file, and on a machine without libcrypto, which a preloaded library
hides."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Run
from ranks import join, together

from ddl_core import Config, Endpoint, errors
from ddl_core.joining.environment import detect

HIDE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
void *dlopen(const char *name, int flags)
{
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    int hidden = name && !strncmp(name, "libcrypto", 9);
    return next(hidden ? "libnowhere.so" : name, flags);
}
"""

JOIN = """
import ddl_core
comm = ddl_core.init()
print(comm.rank, comm.size, flush=True)
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("hide")
    (folder / "hide.c").write_text(HIDE)
    library = folder / "hide.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, folder / "hide.c", "-ldl"], check=True
    )
    return {"LD_PRELOAD": str(library)}


def test_ddlrun_without_libcrypto(run_here: Run, tmp_path: Path, without: dict[str, str]) -> None:
    (tmp_path / "join.py").write_text(JOIN)
    command = [sys.executable, "-m", "ddl_launch", "-n", "2", "join.py"]
    ended = run_here(command, env=without)
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["[0] 0 2", "[1] 1 2"]
    assert "libssl3" in ended.err and "without a secret" in ended.err
    assert "without a secret" not in run_here(command).err


def test_a_secret_without_libcrypto(run_here: Run, without: dict[str, str]) -> None:
    program = "import ddl_core; ddl_core.Endpoint(secret='hidden')"
    ended = run_here([sys.executable, "-c", program], env=without)
    assert ended.code == 1 and "errors.Unsupported" in ended.err
    assert "install OpenSSL 3 (Debian: libssl3)" in ended.err and "DDL_SECRET=" in ended.err


DOCTOR = """
import sys
from ddl_launch.commands import cli, installation
installation._info = lambda adapter: ""  # which imports a framework for seconds
sys.exit(cli.main(["doctor", "--no-test", "--ranks", "1"]))
"""


def test_doctor_without_libcrypto(run_here: Run, without: dict[str, str]) -> None:
    """On a machine that has it, test_doctor.py has the line."""
    ended = run_here([sys.executable, "-c", DOCTOR], env=without)
    assert ended.code == 1
    (line,) = (line for line in ended.out.splitlines() if "libcrypto.so.3 is missing" in line)
    assert line.startswith("BAD  libcrypto")


def test_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("hidden\n")
    monkeypatch.delenv("DDL_SECRET", raising=False)
    monkeypatch.setenv("DDL_SECRET_FILE", str(file))
    file.chmod(0o644)
    with pytest.raises(errors.InvalidArgument, match="set mode 600"):
        Endpoint()
    file.chmod(0o600)
    with Endpoint() as ours, Endpoint(secret="hidden") as other:
        assert ours.address != other.address
    srun = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    assert detect(srun).secret == "7.0"
    assert detect({**srun, "DDL_SECRET_FILE": str(file)}).secret is None


def test_encrypted() -> None:
    with pytest.raises(errors.InvalidArgument, match="needs a secret"):
        Endpoint(secret="", encrypt=True)
    config = Config(links=["tcp"], operation_timeout=30)
    with Endpoint(secret="hidden", encrypt=True) as a, Endpoint(secret="hidden", encrypt=True) as b:
        comms = join([a, b], config)
        arrays = [np.full(100_000, rank, np.float32) for rank in range(2)]
        together(lambda rank: comms[rank].allreduce(arrays[rank]), 2)
        assert all(array.tolist() == [1] * 100_000 for array in arrays)
    with Endpoint(secret="hidden", encrypt=True) as a, Endpoint(secret="hidden") as b:
        config = Config(links=["tcp"], timeout=2)

        def attempt(rank: int) -> str:
            with pytest.raises(errors.DdlError) as caught:
                [a, b][rank].connect([a.address, b.address], rank, config)
            return str(caught.value)

        for message in together(attempt, 2):
            assert "rank 0 encrypts (DDL_ENCRYPT=1), and rank 1 does not" in message
