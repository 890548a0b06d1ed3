# SPDX-License-Identifier: Apache-2.0
"""ddl.hpp and ddl_mpi.h compile without warnings in each language that they support, and work with
the installed library."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from conftest import Run

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "libddl" / "include"
STRICT = ["-Wall", "-Wextra", "-Wshadow", "-pedantic", "-Werror", "-I", INCLUDE]
MPI = {
    **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def need(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"there is no {program} here")


def linked(library: str) -> list[str]:
    """Return the linker options for a program that uses the installed library."""
    return [library, f"-Wl,-rpath,{Path(library).parent}", "-pthread"]


@pytest.mark.parametrize("standard", ["c++11", "c++17", "c++20"])
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_cpp(compiler: str, standard: str, library: str, run_program: Run, tmp_path: Path) -> None:
    need(compiler)
    source, program = HERE / "ddl_hpp.cpp", tmp_path / "program"
    command = [compiler, f"-std={standard}", *STRICT, source, "-o", program, *linked(library)]
    run_program(command, cwd=tmp_path, limit=120).expect_success()
    run_program([program], cwd=tmp_path).expect_success()


def test_cpp_has_every_function() -> None:
    """ddl.hpp calls each function of ddl.h, and each operation in both forms."""
    wrapper = (INCLUDE / "ddl" / "ddl.hpp").read_text()
    header = (INCLUDE / "ddl" / "ddl.h").read_text()
    texts = {"ddl_strerror", "ddl_version", "ddl_dtype_size"}  # of use as they are
    functions = re.findall(r"^DDL_API\s[^;(]*?\b(ddl_\w+)\s*\(([^;]*)\);", header, re.MULTILINE)
    assert len(functions) > 40
    for name, parameters in functions:
        if name in texts:
            continue
        assert re.search(rf"\b{name}\b", wrapper), name
        if parameters.endswith("ddl_work **work"):
            short = name.removeprefix("ddl_").removeprefix("group_")
            assert re.search(rf"\bvoid {short}\(", wrapper), short
            assert re.search(rf"\bWork {short}_async\(", wrapper), short


def test_error_is_what_cpp_says_of_a_wrong_type(run_program: Run, tmp_path: Path) -> None:
    """An element type without a dtype does not compile."""
    need("g++")
    source = tmp_path / "wrong.cpp"
    source.write_text(
        "#include <ddl/ddl.hpp>\n"
        "void f(ddl::Comm &comm, char *x, float *y)\n"
        "{\n    comm.allreduce(WHAT, WHAT, 1);\n    comm.broadcast(y, 1, 0);\n}\n"
    )
    command = ["g++", "-std=c++11", "-fsyntax-only", "-I", INCLUDE, source]
    assert run_program([*command, "-DWHAT=y"], cwd=tmp_path).code == 0
    wrong = run_program([*command, "-DWHAT=x"], cwd=tmp_path)
    assert wrong.code != 0
    assert "dtype_of<char>" in wrong.err


@pytest.mark.parametrize(
    ("compiler", "language"), [("mpicc", ["-std=c11"]), ("mpicxx", ["-x", "c++", "-std=c++11"])]
)
def test_mpi(
    compiler: str, language: list[str], library: str, run_program: Run, tmp_path: Path
) -> None:
    need(compiler, "mpirun")
    # Open MPI's own C++ bindings, which mpi.h may still include, may have warnings.
    quiet = ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]
    program = tmp_path / "program"
    command = [compiler, *quiet, *STRICT, *language, HERE / "ddl_mpi.c", "-x", "none"]
    run_program(
        [*command, "-o", program, *linked(library)], cwd=tmp_path, limit=120
    ).expect_success()
    done = run_program(["mpirun", "-n", "2", program], cwd=tmp_path, env=MPI).expect_success()
    assert done.out.splitlines()[-1] == "2 ranks"
