# SPDX-License-Identifier: Apache-2.0
"""The hosts of one job have different files of libddl."""

import contextlib
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_hosts import Hosts

import ddl_core
from ddl_launch.lab import Lab, missing
from ddl_launch.rank.library import compare_libraries, describe_library, identify_library

in_lab = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a laboratory")

SUM = """
import numpy as np, ddl_core
comm = ddl_core.init()
x = np.full(3, comm.rank + 1.0)
comm.allreduce(x)
print(int(x[0]))
"""


@contextlib.contextmanager
def library_on_h2(lab: Lab, one: Hosts, old: bytes = b"", new: bytes = b"") -> Iterator[None]:
    """Give h2 another file of libddl, in which `new` replaces `old`."""
    library = Path(ddl_core.__file__).parent / "lib" / "libddl.so.1"
    if not library.exists():
        pytest.skip("libddl is not beside ddl_core: an editable installation")
    data = library.read_bytes()
    assert old in data
    other = one.folder / "other"
    other.write_bytes(data.replace(old, new))
    assert lab.run("h2", ["mount", "--bind", other, library]).returncode == 0
    try:
        yield
    finally:
        lab.run("h2", ["umount", library])


def test_builds_for_other_processors_need_no_note() -> None:
    own = identify_library()
    machine, _, digest = own["build"].partition(" ")
    assert (own["version"], machine) == (ddl_core.version(), platform.machine())
    assert compare_libraries("h1", own, "h2", own) == ""
    assert compare_libraries("h1", own, "h2", {**own, "build": "other 123"}) == ""
    assert compare_libraries("h1", own, "h2", {**own, "build": f"{machine} 123"}) == (
        f"h1 has libddl {own['version']} ({own['speaks']}), build {machine} {digest}, and h2 has"
        f" libddl {own['version']} ({own['speaks']}), build {machine} 123: they work together"
    )
    assert (
        describe_library({"version": "", "speaks": "", "build": ""}) == "no libddl next to ddlrun"
    )
    unknown = {"version": "of an unknown version", "speaks": "", "build": f"{machine} 123"}
    assert describe_library(unknown) == ("libddl of an unknown version (unknown ABI and protocol)")


@in_lab
def test_different_copies_of_the_program_are_named(one: Hosts, lab: Lab) -> None:
    program = one.program(SUM)
    other = one.folder / "other.py"
    other.write_text(SUM + "# changed")
    assert lab.run("h2", ["mount", "--bind", other, program]).returncode == 0
    try:
        code, _, err = one.run("-H", "h1,h2", program)
    finally:
        lab.run("h2", ["umount", program])
    assert code == 0, err
    assert f"note: {program} on h2 differs from its copy on h1: each host runs its own" in err
    code, _, err = one.run("-H", "h1,h2", program)
    assert code == 0 and "differs" not in err


@in_lab
def test_hosts_with_different_builds_work_together(one: Hosts, lab: Lab) -> None:
    version = ddl_core.version().encode()
    name = rf"libddl {ddl_core.version()} \(ABI \d+, protocol \d+\), build \w+ [0-9a-f]{{12}}"
    note = rf"note: h1 has {name}, and h2 has {name}: they work together\n"
    with library_on_h2(lab, one), open(one.folder / "other", "ab") as file:
        file.write(b"another")
        file.flush()
        code, out, err = one.run("-H", "h1,h2", one.program(SUM))
        assert code == 0, err
        assert [line.split()[2] for line in out.splitlines()] == ["3", "3"]
        assert re.match(f"ddlrun: {note}", err), err
        code, out, err = one.run("-H", "h1,h2", "--check")
        assert code == 0, err
        assert re.search(f"(?m)^{note}", out), out
    with library_on_h2(lab, one, b"libddl " + version, b"libddl 0.9.0"):
        code, _, err = one.run("-H", "h1,h2", "true")
        assert code == 0, err
        assert "and h2 has libddl 0.9.0 (ABI" in err


@in_lab
@pytest.mark.parametrize("words", [["true"], ["--check"]])
def test_hosts_with_different_protocols_are_refused(one: Hosts, lab: Lab, words: list[str]) -> None:
    with library_on_h2(lab, one, b", protocol 1", b", protocol 2"):
        code, out, err = one.run("-H", "h1,h2", *words)
    assert (code, out) == (1, "")
    own = f"libddl {ddl_core.version()}"
    assert re.fullmatch(
        rf"ddlrun: h1 has {own} \(ABI \d+, protocol 1\d\), and h2 has {own} \(ABI \d+, protocol"
        r" 2\d\): install one version on all hosts\n",
        err,
    ), err
