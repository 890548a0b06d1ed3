# SPDX-License-Identifier: Apache-2.0
"""The reference has a page for each adapter's modules, and a signature for each of their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import names  # noqa: E402
import reference  # noqa: E402

pytestmark = pytest.mark.pure

ADAPTERS = ROOT / "adapters"
# The modules that programs import: packages, and modules for elastic training and in place of
# others.
MODULES = [
    *(p.name for p in ADAPTERS.iterdir() if (p / "world.py").exists() or p.name == "ddl_keras"),
    *(p.parent.name + ".elastic" for p in ADAPTERS.glob("*/elastic")),
    *(str(p.parent.relative_to(ADAPTERS)).replace("/", ".") for p in
      ADAPTERS.glob("ddl_horovod/*/**/__init__.py")),
    "ddl_jax.mpi4jax",
]  # fmt: skip
VALUES = ("Adasum", "Average", "Max", "Min", "Product", "Sum", "global_process_set")


def test_every_module_has_a_page() -> None:
    assert set(MODULES) - {"ddl_horovod"} <= set(reference.PACKAGES)
    index = (ROOT / "docs" / "index.md").read_text().splitlines()  # the main ones come first
    assert "api/generated/ddl_*" in index


@pytest.mark.parametrize("name", reference.PACKAGES)
def test_every_name_has_a_signature(name: str) -> None:
    page = reference.page(name, "A framework").splitlines()
    for public in names.public(name):
        found = names.find(name, public)
        if isinstance(found, names.Named):
            kind = "class" if found.node.__class__.__name__ == "ClassDef" else "function"
            assert [line for line in page if line.startswith(f".. py:{kind}:: {public}")], public
        elif isinstance(found, names.Module):
            assert f".. py:module:: {found.name}" in page
        else:
            assert isinstance(found, names.Value) and (found.of or public in VALUES), public
            assert f".. py:data:: {public}" in page


def test_names_are_followed() -> None:
    """The name comes from an import, a world's method, an adapter that is chosen at run time, or a
    base class."""
    cases = [
        ("ddl_horovod.torch", "mpi_built", "() -> bool"),
        ("ddl_horovod.tensorflow.keras", "size", "() -> int"),
        ("ddl_keras", "broadcast", "(tensor: "),
        ("ddl_chainer", "rank", "() -> int"),
    ]
    for package, name, signature in cases:
        assert f".. py:function:: {name}{signature}" in reference.page(package, "A framework")
    assert ".. py:method:: steps(" in reference.page("ddl_tensorflow.elastic", "A framework")
