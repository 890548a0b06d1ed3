# SPDX-License-Identifier: Apache-2.0
"""The adapters, as the adapter.toml in each one's folder describes them.

    python tests/adapter_list.py     write the tables of docs/heritage.md

The layer check, the tests of all adapters, the reference and the tables read it: no other list
names an adapter. docs/dev/adding_an_adapter.md explains the files.
"""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "heritage.md"
OLD = ("setuptools<70", "wheel")  # pkg_resources, which old packages import when they are built


@dataclass(frozen=True)
class Framework:
    """A framework that an adapter is tested with, in an environment of its own.

    packages   installed from wheels
    built      from sources, whose build sees the packages
    install    how else it is installed, in words
    program    needed to make the environment, from the Debian packages `debian`
    accuracy   of the example, in percent: one process; two, by ddlrun; two, by mpirun
    """

    title: str
    packages: tuple[str, ...]
    accuracy: tuple[float, float, float]
    built: tuple[str, ...] = ()
    install: str = ""
    program: str = ""
    debian: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adapter:
    """An adapter.

    name         without the prefix ddl_
    imports      the frameworks that it may import
    modules      other modules that programs import, and the titles of their reference pages
    arrays, differs   for the table: the conversion of arrays to NumPy, and other names
    lacks        element types, by NumPy's names, that it does not have, and why (`because`)
    frameworks   by the name of their package
    """

    name: str
    title: str
    imports: tuple[str, ...]
    modules: dict[str, str] = field(default_factory=dict)
    arrays: str = ""
    differs: str = ""
    lacks: tuple[str, ...] = ()
    because: str = ""
    frameworks: dict[str, Framework] = field(default_factory=dict)

    @property
    def package(self) -> str:
        return f"ddl_{self.name}"

    @property
    def folder(self) -> Path:
        return ROOT / "adapters" / self.package

    @property
    def is_small(self) -> bool:
        """Return whether the framework needs its own environment."""
        return bool(self.frameworks)

    def tests(self) -> dict[str, Any]:
        """Return the names that the folder's tests.py defines; none without this file."""
        contract = str(ROOT / "tests" / "adapters" / "contract")
        if contract not in sys.path:
            sys.path.append(contract)  # which has shims.py
        file = self.folder / "tests.py"
        return runpy.run_path(str(file)) if file.exists() else {}

    def pages(self) -> dict[str, str]:
        """Return the modules that have a page in the reference, and the title of this page."""
        own = {}
        if "__all__" in (self.folder / "__init__.py").read_text():
            own[self.package] = self.title
        if (self.folder / "elastic").is_dir():
            own[f"{self.package}.elastic"] = f"Elastic training with {self.title}"
        return own | self.modules


def read(folder: Path) -> Adapter:
    """Return the adapter of this folder. Raises TypeError for unknown or missing keys."""
    found = tomllib.loads((folder / "adapter.toml").read_text())
    frameworks = {name: Framework(**table) for name, table in found.pop("frameworks", {}).items()}
    return Adapter(folder.name.removeprefix("ddl_"), frameworks=frameworks, **found)


ADAPTERS = {
    adapter.name: adapter for adapter in map(read, sorted((ROOT / "adapters").glob("ddl_*")))
}
SMALL = [adapter for adapter in ADAPTERS.values() if adapter.is_small]
ADAPTER_OF = {framework: adapter for adapter in SMALL for framework in adapter.frameworks}


# ---- the tables ----


def adapters_table() -> list[str]:
    lines = [
        "| adapter | example | conversion of arrays to NumPy | differences from the common names |",
        "|---|---|---|---|",
    ]
    for adapter in SMALL:
        example = f"{adapter.name}_digits.py"
        link = (
            f"[{example}](../examples/{example})" if (ROOT / "examples" / example).exists() else ""
        )
        lines.append(f"| `{adapter.package}` | {link} | {adapter.arrays} | {adapter.differs} |")
    return lines


def environments_table() -> list[str]:
    lines = [
        "| framework | packages | next step | one process | two, `ddlrun` | two, `mpirun` |",
        "|---|---|---|---|---|---|",
    ]
    for adapter in SMALL:
        for each in adapter.frameworks.values():
            packages = " ".join(f"'{p}'" if set(p) & set("<>[") else p for p in each.packages)
            after = each.install
            if each.built:
                after = f"`pip install --no-build-isolation {' '.join(each.built)}`"
            if each.program and not after:
                after = f"install Debian's {' '.join(f'`{name}`' for name in each.debian)}"
            accuracy = " | ".join(f"{percent:.2f} %" for percent in each.accuracy)
            lines.append(f"| {each.title} | `{packages}` | {after} | {accuracy} |")
    return lines


def types_table() -> list[str]:
    lines = ["| adapter | skipped types | reason |", "|---|---|---|"]
    for adapter in SMALL:
        skipped = ", ".join(adapter.lacks) or "none"
        lines.append(f"| `{adapter.package}` | {skipped} | {adapter.because} |")
    return lines


def with_tables(text: str) -> str:
    """Return the page with its tables written again."""
    for name, table in (
        ("adapters", adapters_table()),
        ("environments", environments_table()),
        ("types", types_table()),
    ):
        mark = f"<!-- table: {name}, by tests/adapter_list.py -->\n"
        assert mark in text, mark
        replaced = mark + "\n".join(table) + "\n"
        text = re.sub(re.escape(mark) + r"(\|.*\n)*", lambda _: replaced, text)  # noqa: B023
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
