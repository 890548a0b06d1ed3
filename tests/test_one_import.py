# SPDX-License-Identifier: Apache-2.0
"""`ddl.torch` and similar names are the packages ddl_torch and so on: each module is one object."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import adapter_list
import pytest

PACKAGES = ["core", "launch", "elastic", *adapter_list.ADAPTERS]
FRAMEWORKS = sorted({name for each in adapter_list.ADAPTERS.values() for name in each.imports})
ORDERS = ["ddl.", "ddl_"]
# Each module of a package by both names, once with this name first and once with the other, each
# time in a child of a process that has imported the frameworks.
SAME = """
import importlib, os, pkgutil, sys, traceback

def load(name):
    try:
        return importlib.import_module(name)
    except (ImportError, SystemExit) as error:  # lacks a framework, or is a program
        return type(error)

def modules(package):
    yield package.__name__
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".", lambda _: None):
        if not found.name.endswith(("__main__", ".main", ".enter", "_build")):
            yield found.name

def count_same(name, first):
    package = importlib.import_module(first + name)
    prefix = "ddl_" + name
    count = 0
    for module in modules(package):
        own, alias = prefix + module[len(prefix):], "ddl." + module[len("ddl_"):]
        names = (own, alias) if first == "ddl_" else (alias, own)
        a, b = map(load, names)
        assert a is b, names
        if not isinstance(a, type):
            assert a.__name__ == a.__spec__.name == own, (a.__name__, a.__spec__)
            parent, _, last = alias.rpartition(".")
            found = getattr(sys.modules[parent], last, a)
            # or a function of that name
            assert found is a or not hasattr(found, "__spec__"), module
            count += 1
    return count

frameworks, packages, orders = (argument.split() for argument in sys.argv[1:])
for name in frameworks:
    load(name)
assert not [name for name in sys.modules if name.startswith("ddl")]
for name, first in ((name, first) for name in packages for first in orders):
    child = os.fork()
    if not child:
        try:
            print(name, first, count_same(name, first), flush=True)
        except BaseException:
            print(name, first, file=sys.stderr)
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},  # which imports ddl_torch
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Return the outcomes of all packages and orders."""
    arguments = [" ".join(names) for names in (FRAMEWORKS, PACKAGES, ORDERS)]
    return run("-c", SAME, *arguments, cwd=tmp_path_factory.mktemp("same"))


@pytest.mark.parametrize("first", ORDERS)
@pytest.mark.parametrize("name", PACKAGES)
def test_each_module_is_one_object(
    same: subprocess.CompletedProcess[str], name: str, first: str
) -> None:
    for framework in adapter_list.ADAPTERS[name].imports if name in adapter_list.ADAPTERS else ():
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"there is no {framework}")
    counts = re.findall(rf"^{name} {re.escape(first)} (\d+)$", same.stdout, re.M)
    assert [int(count) > 0 for count in counts] == [True], same.stderr


def test_import_needs_no_framework(tmp_path: Path) -> None:
    loaded = run("-c", "import ddl, sys; print(*sys.modules)", cwd=tmp_path).stdout.split()
    assert "ddl_core" in loaded
    assert set(FRAMEWORKS) & set(loaded) == set()


def test_names_of_the_core(tmp_path: Path) -> None:
    same = "[getattr(ddl, name) is getattr(ddl_core, name) for name in ddl.__all__]"
    ended = run("-c", f"import ddl, ddl_core; print({same})", cwd=tmp_path)
    assert "False" not in ended.stdout and "True" in ended.stdout, ended.stderr


def test_unknown_names(tmp_path: Path) -> None:
    attribute = run("-c", "import ddl; ddl.no_such_name", cwd=tmp_path).stderr
    assert "AttributeError: module 'ddl' has no attribute 'no_such_name'" in attribute
    module = run("-c", "import ddl.core.no_such_module", cwd=tmp_path).stderr
    assert "ModuleNotFoundError: No module named 'ddl.core.no_such_module'" in module


@pytest.mark.parametrize("module", ["launch", "launch.commands"])
def test_as_a_program(tmp_path: Path, module: str) -> None:
    one = run("-m", f"ddl.{module}", "--version", cwd=tmp_path)
    other = run("-m", f"ddl_{module}", "--version", cwd=tmp_path)
    assert (one.returncode, one.stdout, one.stderr) == (0, other.stdout, other.stderr)
