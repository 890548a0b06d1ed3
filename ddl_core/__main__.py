"""python -m ddl_core: what is installed, one line each. No framework is imported."""

from __future__ import annotations

import sys
from importlib import metadata

import ddl_core
from ddl_core import native

# The packages that have what the line names; the first that is installed counts.
_PARTS = {
    "PyTorch": ("torch",),
    "TensorFlow": ("tensorflow", "tensorflow-cpu"),
    "Keras": ("keras",),
    "JAX": ("jax",),
    "mpi4py": ("mpi4py",),
}


def main() -> int:
    """Print the lines; the exit code."""
    print(f"libddl        {ddl_core.version()}  {ddl_core.library_path()}")
    print(f"header        {ddl_core.get_include()}")
    print(f"Python        {sys.version.split()[0]}  {sys.executable}")
    for name, packages in _PARTS.items():
        print(f"{name:13} {_version(packages)}")
    try:
        found = " ".join(native.compiler())
    except native.BuildError as error:
        found = str(error)
    print(f"compiler      {found}")
    try:
        print(f"cache         {native.cache_folder()}")
    except native.BuildError as error:
        print(f"cache         {error}")
    return 0


def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


if __name__ == "__main__":
    sys.exit(main())
