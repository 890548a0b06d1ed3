"""The header, the symbol map, the recorded layout and the installed library agree."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "libddl" / "include" / "ddl" / "ddl.h"
MAP = ROOT / "libddl" / "libddl.map"
LAYOUT = Path(__file__).with_name("layout.c")


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, " ".join(command) + "\n" + done.stdout + done.stderr
    return done.stdout


def header() -> str:
    """The header without its comments."""
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def declared() -> set[str]:
    return set(re.findall(r"\bDDL_API\b[^;(]*?\b(ddl_\w+)\s*\(", header()))


@pytest.fixture(scope="module")
def library() -> str:
    """The installed libddl.so.1: the one that every user of the package gets."""
    files = importlib.metadata.files("libddl") or []
    found = {Path(str(file.locate())).resolve() for file in files if "libddl.so" in file.name}
    assert len(found) == 1, f"the package holds {sorted(map(str, found)) or 'no libddl.so'}"
    return str(found.pop())


def test_header_declares_functions_and_nothing_else() -> None:
    calls = set(
        re.findall(r"^(?!#|typedef|enum|    )[^\n]*?\b(ddl_\w+)\s*\(", header(), re.MULTILINE)
    )
    assert calls == declared()
    assert "inline" not in header()
    assert not re.search(r"^\s*#\s*define\s+\w+\(", header(), re.MULTILINE)


def test_map_lists_the_declared_functions() -> None:
    text = re.sub(r"/\*.*?\*/|#[^\n]*", "", MAP.read_text(), flags=re.DOTALL)
    listed = re.findall(r"\b(ddl_\w+)\s*;", text)
    assert len(listed) == len(set(listed))
    assert set(listed) == declared()


def test_library_exports_the_declared_functions(library: str) -> None:
    exported = set()
    for line in run("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":  # the version node itself
            exported.add(name)
    (node,) = re.findall(r"^(DDL_[\d.]+)\s*\{", MAP.read_text(), re.MULTILINE)
    assert exported == {f"{name}@@{node}" for name in declared()}


def test_soname(library: str) -> None:
    assert re.findall(r"SONAME.*\[(.*)\]", run("readelf", "-d", library)) == ["libddl.so.1"]


@pytest.mark.parametrize("standard", ["c11", "c++11", "c++17"])
def test_header_compiles_alone(standard: str, tmp_path: Path) -> None:
    cpp = standard.startswith("c++")
    source = tmp_path / ("alone.cpp" if cpp else "alone.c")
    source.write_text("#include <ddl/ddl.h>\nint main(void) { return DDL_OK; }\n")
    flags = [f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    run("g++" if cpp else "gcc", *flags, "-I", str(HEADER.parents[1]), str(source))


def test_recorded_layout() -> None:
    run("gcc", "-std=c11", "-Werror", "-fsyntax-only", "-I", str(HEADER.parents[1]), str(LAYOUT))


def test_layout_records_everything() -> None:
    """A constant, struct or field added to the header is added to layout.c as well."""
    recorded = LAYOUT.read_text()
    for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", header(), re.DOTALL):
        for name in re.findall(r"\b(DDL_\w+)\s*=", body):
            assert f"VALUE({name}, " in recorded
    structs = re.findall(r"struct\s+\w+\s*\{(.*?)\}\s*(\w+);", header(), re.DOTALL)
    assert structs
    for body, struct in structs:
        assert f"SIZE({struct}, " in recorded
        fields = re.findall(r"\b(\w+);", body)
        assert fields[0] == "struct_size"
        for name in fields:
            assert f"FIELD({struct}, {name}, " in recorded


def test_one_version() -> None:
    text = HEADER.read_text()
    version = ".".join(
        re.findall(rf"#define DDL_VERSION_{part} (\d+)", text)[0]
        for part in ("MAJOR", "MINOR", "PATCH")
    )
    assert importlib.metadata.version("libddl") == version
    newest = re.findall(r"^## \[(\d[\w.]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == version
