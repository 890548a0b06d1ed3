# SPDX-License-Identifier: Apache-2.0
"""The header, the symbol map, the recorded layout and ABI, and the installed library agree."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest
from abi import baseline

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "libddl" / "include" / "ddl" / "ddl.h"
MAP = ROOT / "libddl" / "libddl.map"
LAYOUT = Path(__file__).with_name("layout.c")


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, " ".join(command) + "\n" + done.stdout + done.stderr
    return done.stdout


def header() -> str:
    """Return the header without its comments."""
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def declared() -> set[str]:
    return set(re.findall(r"\bDDL_API\b[^;(]*?\b(ddl_\w+)\s*\(", header()))


def nodes() -> list[tuple[str, list[str], str]]:
    """Return the map's version nodes in order: name, exported symbols, the node that it extends."""
    text = re.sub(r"/\*.*?\*/|#[^\n]*", "", MAP.read_text(), flags=re.DOTALL)
    found = re.findall(r"(\w[\w.]*)\s*\{(.*?)\}\s*([\w.]*)\s*;", text, re.DOTALL)
    return [(name, re.findall(r"\b(ddl_\w+)\s*;", body), base) for name, body, base in found]


def test_header_declares_functions_and_nothing_else() -> None:
    calls = set(
        re.findall(r"^(?!#|typedef|enum|    )[^\n]*?\b(ddl_\w+)\s*\(", header(), re.MULTILINE)
    )
    assert calls == declared()
    assert "inline" not in header()
    assert not re.search(r"^\s*#\s*define\s+\w+\(", header(), re.MULTILINE)


def test_map_lists_the_declared_functions() -> None:
    listed = [symbol for _, symbols, _ in nodes() for symbol in symbols]
    assert len(listed) == len(set(listed))
    assert set(listed) == declared()


def test_map_has_a_node_per_release() -> None:
    """Each version node extends the one before it, and none is newer than the header."""
    names = [name for name, _, _ in nodes()]
    releases = [tuple(map(int, name.removeprefix("DDL_").split("."))) for name in names]
    assert releases == sorted(set(releases))
    assert [base for _, _, base in nodes()] == ["", *names[:-1]]
    assert MAP.read_text().count("local: *;") == 1
    assert releases[-1] <= tuple(map(int, version().split(".")))[:2]


def test_library_exports_the_declared_functions(library: str) -> None:
    exported = set()
    for line in run("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":  # the version node itself
            exported.add(name)
    assert exported == {f"{symbol}@@{node}" for node, symbols, _ in nodes() for symbol in symbols}


def test_soname(library: str) -> None:
    assert re.findall(r"SONAME.*\[(.*)\]", run("readelf", "-d", library)) == ["libddl.so.1"]


@pytest.mark.parametrize("standard", ["c11", "c++11", "c++20"])
def test_header_compiles_alone(standard: str, tmp_path: Path) -> None:
    cpp = standard.startswith("c++")
    source = tmp_path / ("alone.cpp" if cpp else "alone.c")
    source.write_text("#include <ddl/ddl.h>\nint main(void) { return DDL_OK; }\n")
    flags = [f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    run("g++" if cpp else "gcc", *flags, "-I", str(HEADER.parents[1]), str(source))


def test_recorded_layout() -> None:
    run("gcc", "-std=c11", "-Werror", "-fsyntax-only", "-I", str(HEADER.parents[1]), str(LAYOUT))


def test_layout_records_everything() -> None:
    """A constant, struct or field that is added to the header must be added to layout.c as well."""
    recorded = LAYOUT.read_text()
    for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", header(), re.DOTALL):
        for name in re.findall(r"\b(DDL_\w+)\s*=", body):
            assert f"VALUE({name}, " in recorded
    structs = re.findall(r"struct\s+\w+\s*\{(.*?)\}\s*(\w+);", header(), re.DOTALL)
    assert structs
    for body, struct in structs:
        assert f"SIZE({struct}, " in recorded
        fields = re.findall(r"\b(\w+)\s*[,;]", body)
        assert fields[0] == "struct_size"
        for name in fields:
            assert f"FIELD({struct}, {name}, " in recorded


def version() -> str:
    """The header's."""
    numbers = re.findall(r"#define DDL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", HEADER.read_text())
    return ".".join(numbers)


def test_one_version() -> None:
    assert importlib.metadata.version("libddl") == version()
    newest = re.findall(r"^## \[(\d[\w.]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == version()


@pytest.fixture(scope="module")
def debug_library() -> Path:
    """Build the library from this tree, with the debug information that libabigail reads."""
    if baseline.missing():
        pytest.skip(f"not here: {', '.join(baseline.missing())} (Debian: abigail-tools)")
    return baseline.build()


def test_abi_is_as_recorded(debug_library: Path) -> None:
    found = baseline.difference(debug_library)
    assert not found, found + baseline.ADVICE


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("name='ddl_comm_rank' version='DDL_0.1'", "name='ddl_comm_rank' version='DDL_0.2'"),
        ("name='ddl_comm_rank' version='DDL_0.1'", "name='ddl_comm_range' version='DDL_0.1'"),
        ("name='ddl_options' size-in-bits='704'", "name='ddl_options' size-in-bits='448'"),
        ("name='DDL_AVERAGE' value='2'", "name='DDL_AVERAGE' value='7'"),
    ],
)
def test_difference_is_found(debug_library: Path, tmp_path: Path, was: str, now: str) -> None:
    text = baseline.RECORD.read_text()
    assert was in text
    altered = tmp_path / "libddl.abi"
    altered.write_text(text.replace(was, now))
    assert baseline.difference(debug_library, altered)


def test_record_knows_no_machine(debug_library: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "libddl.abi"
    baseline.record(debug_library, fresh)
    for text in (baseline.RECORD.read_text(), fresh.read_text()):
        assert len(text) < 200_000
        assert str(ROOT) not in text
        assert not re.search(r"path='/|architecture=|filepath=", text)
