# SPDX-License-Identifier: Apache-2.0
"""The files of a release, as `make wheels` has left them in dist/: their contents, the systems on
which they run, and their use after installation. `make test-wheels` runs this."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from foreign import ARCHITECTURES, Foreign
from release_files import EXAMPLES, NATIVE, PROGRAM, ROOT, check_two_ranks, install, only, run

TOOLS = Path(sys.executable).parent  # `make test-wheels` runs this with the tools' Python
pytestmark = pytest.mark.slow

DDP = """\
import torch, torch.distributed as dist
dist.init_process_group("ddl")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
both = [torch.empty(8, 64) for _ in range(2)]
dist.all_gather(both, model.module.weight.detach())
assert torch.equal(*both)
assert type(dist.group.WORLD._get_backend(torch.device("cpu"))).__module__ == "_ddl_torch"
dist.destroy_process_group()
print("trained", flush=True)
"""


@pytest.fixture(params=ARCHITECTURES)
def wheel(request: pytest.FixtureRequest) -> Path:
    return only(f"libddl-*_{request.param}.whl")


def test_systems(wheel: Path) -> None:
    """The tool auditwheel finds glibc 2.28 or older enough, and no library but glibc's."""
    assert re.search(r"-cp310-abi3-(\w+\.)*manylinux_2_2[0-8]_\w+\.whl$", wheel.name)
    report = " ".join(run(TOOLS / "auditwheel", "show", wheel).split())
    tags = re.findall(r"manylinux_2_(\d+)_", report)
    assert tags and min(int(tag) for tag in tags) <= 28, report


def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    for name in ("ddl.h", "ddl.hpp", "ddl_mpi.h"):
        assert f"ddl_core/include/ddl/{name}" in sizes
    for name in ("libddl.so.1", "libddl.so", "pkgconfig/libddl.pc", "cmake/ddl/ddl-config.cmake"):
        assert f"ddl_core/lib/{name}" in sizes
    assert sizes["ddl_core/lib/libddl.so"] < 32 << 10  # no second copy
    assert not [name for name in sizes if re.search(r"(^|/)(tests|bench|csrc/.*\.o)/", name)]
    assert "ddl_launch/_plans.abi3.so" in sizes
    assert len([name for name in sizes if name.startswith("ddl_jax/prebuilt/xla-ffi-")]) == 2
    parts = [name for name in sizes if name.startswith("ddl_torch/prebuilt/")]
    assert bool(parts) == ("x86_64" in wheel.name), "make torch-parts builds them"
    assert wheel.stat().st_size < (3 << 20) + len(parts) * (400 << 10)


def test_one_abi(wheel: Path, tmp_path: Path) -> None:
    """The wheel uses only Python's stable ABI."""
    with zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith(".abi3.so")]
        assert len(modules) == 3
        for name in modules:
            lowest = ["--assume-minimum-abi3", "3.10"]
            run(TOOLS / "abi3audit", "--strict", *lowest, archive.extract(name, tmp_path))


def test_two_ranks(installed: Path, tmp_path: Path) -> None:
    check_two_ranks(installed, tmp_path)


def test_pytorch_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    """DDP trains with the wheel's native part, on two ranks, and compiles nothing."""
    folders = [path.name for path in installed.parent.rglob("ddl_torch/prebuilt/*")]
    abi = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-"
    versions = sorted(name.split("-")[1] for name in folders if abi in name)
    assert versions, f"make torch-parts has made no part for this Python: {folders}"
    run(installed / "pip", "install", "-q", f"torch=={versions[-1]}", "numpy", timeout=1800)
    file = tmp_path / "program.py"
    file.write_text(DDP)
    env = {"PATH": str(installed), "DDL_CACHE": str(tmp_path / "cache")}
    said = run(installed / "ddlrun", "-n", "2", "--no-prefix", file, **env)
    assert said == "trained\ntrained\n"
    assert not (tmp_path / "cache").exists()
    assert "prebuilt" in run(installed / "python", "-m", "ddl_torch", "info", **env)
    assert re.search(r"ddl_torch's native part +prebuilt", run(installed / "ddl", "doctor", **env))


def test_tools(installed: Path) -> None:
    assert "libddl" in run(installed / "ddl", "--version")
    run(installed / "ddl", "plan", ROOT / "examples" / "clusters" / "lab.toml")
    run(installed / "ddlrun", "-n", "2", "--check")


@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES if a != NATIVE])
def test_foreign(arch: str, tmp_path: Path) -> None:
    """Run two ranks of another architecture; then one of it, and one of this machine."""
    foreign = Foreign(arch)
    foreign.unpack(only(f"libddl-*_{arch}.whl"), tmp_path / "site")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    said = foreign.ranks(file, tmp_path / "site", [arch, arch])
    assert [line.split()[:3] for line in said] == [[arch, "0", "2"], [arch, "1", "2"]]
    site = tmp_path / "native"
    run(sys.executable, "-m", "pip", "install", "-q", "--target", site, only(f"*_{NATIVE}.whl"))
    said = foreign.ranks(file, tmp_path / "site", [arch, NATIVE], site)
    assert [line.split()[:3] for line in said] == [[arch, "0", "2"], [NATIVE, "1", "2"]]


@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES if a != NATIVE])
def test_foreign_kernels(arch: str, tmp_path: Path) -> None:
    """Run the C tests of the reduction kernels, compiled like the wheel."""
    foreign = Foreign(arch)
    libddl = ROOT / "libddl"
    compiler = ROOT / "build" / "wheels" / arch / "cc"
    includes = [f"-I{libddl / name}" for name in ("include", "src", "tests/support")]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-w", "-ffp-contract=off", "-pthread", *includes]
    names = ["base/dtype.c", "plan/order.c", "reduce/dispatch.c", "reduce/fold.c"]
    names += ["reduce/portable.c", *(["reduce/neon.c"] if arch == "aarch64" else [])]
    objects = []
    for name in names:
        objects.append(tmp_path / f"{Path(name).stem}.o")
        run(compiler, *flags, "-c", libddl / "src" / name, "-o", objects[-1])
    for test in ("test_reduce", "test_reduce_small_floats", "test_fold", "test_reduce_scale"):
        (source,) = (libddl / "tests").glob(f"*/{test}.c")
        program = tmp_path / test
        run(compiler, *flags, source, *objects, "-lm", "-o", program)
        foreign.run(program)


def test_sdist(tmp_path: Path) -> None:
    """The sdist has the folders that the documents use. A wheel can be built from it, and a C
    library installed."""
    run("tar", "-xf", only("libddl-*.tar.gz"), "-C", tmp_path)
    (source,) = tmp_path.iterdir()
    names = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
    assert not [n for n in names if n.startswith((".ci/", ".github/"))]
    used = {
        "bench/__main__.py",
        "docs/index.md",
        "tests/conftest.py",
        "libddl/tests/CMakeLists.txt",
    }
    assert used <= names
    assert {"LICENSE", "README.md", "PKG-INFO", "libddl/CMakeLists.txt"} <= names
    built, prefix = tmp_path / "built", tmp_path / "prefix"
    run(sys.executable, "-m", "build", "-w", "-n", "-o", built, source, timeout=600)
    run("cmake", "-S", source / "libddl", "-B", tmp_path / "tree", "-DDDL_TESTS=OFF", timeout=600)
    run("cmake", "--build", tmp_path / "tree", timeout=600)
    run("cmake", "--install", tmp_path / "tree", "--prefix", prefix)
    assert [file.name for file in built.iterdir()] and (prefix / "include/ddl/ddl.h").exists()


def test_two_ranks_of_the_sdist(tmp_path: Path) -> None:
    """Install the sdist with pip, which fetches the packages that build it."""
    check_two_ranks(install(tmp_path / "clean", only("libddl-*.tar.gz")), tmp_path)


def test_sbom() -> None:
    document = json.loads(only("libddl-*.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "libddl"
    parts = {part["name"] for part in document["components"]}
    assert {"cffi", "numpy"} <= parts


def test_in_a_debian_root(debian: Path, tmp_path: Path) -> None:
    folder = debian / "tmp" / "use"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(EXAMPLES / "c", folder)
    (folder / "program.py").write_text(PROGRAM)
    native = shutil.copy2(only(f"libddl-*_{NATIVE}.whl"), folder)
    parts = tmp_path / "parts"  # the packages that pip would fetch: the root has no network
    run(sys.executable, "-m", "pip", "download", "-q", "-d", parts, "--python-version", "3.11",
        "--only-binary=:all:", native)  # fmt: skip
    shutil.copytree(parts, folder / "parts")
    script = """set -e
cd /tmp/use
python3 -m venv env
env/bin/pip install -q --no-index --find-links parts libddl
env/bin/ddlrun -n 2 --no-prefix program.py
cc allreduce.c $(env/bin/python -m ddl_core --cflags --libs) -o allreduce
env/bin/ddlrun -n 2 --no-prefix ./allreduce
"""
    said = run(
        "chroot", debian, "sh", "-c", script, timeout=600, PATH="/usr/bin:/bin:/usr/sbin:/sbin"
    )
    assert said.count(f"{NATIVE} ") == 2 and said.count("every sum is 3") == 2
