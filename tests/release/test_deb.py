# SPDX-License-Identifier: Apache-2.0
"""The Debian package of docs/wheel.md: built as the page says, installed in a Debian root, and used
from C. `make test-wheels` runs this."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from release_files import EXAMPLES, ROOT, run
from snippets import blocks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built by the page's commands except the last one, which installs it."""
    if not shutil.which("dpkg-shlibdeps"):
        pytest.skip("there is no dpkg-shlibdeps here (Debian: dpkg-dev)")
    (block,) = (b for b in blocks("docs/wheel.md") if "cpack" in b.text)
    commands, install = block.text.rstrip().rsplit("\n", 1)
    assert install.startswith("sudo apt install ./build/deb/")
    tree = tmp_path_factory.mktemp("deb")
    script = commands.replace("build/deb", str(tree)).replace("-S libddl", f"-S {ROOT}/libddl")
    run("sh", "-euc", script, timeout=600)
    (made,) = tree.glob("libddl-dev_*.deb")
    return made


def test_contents(package: Path) -> None:
    listed = run("dpkg-deb", "--contents", package)
    names = re.findall(r" \./usr/(\S+)", listed)
    for wanted in (
        *("include/ddl/ddl.h", "include/ddl/ddl.hpp", "include/ddl/ddl_mpi.h"),
        *("lib/libddl.so", "lib/libddl.so.1", "lib/pkgconfig/libddl.pc"),
        "lib/cmake/ddl/ddl-config.cmake",
    ):
        assert wanted in names
    about = run("dpkg-deb", "--field", package)
    assert re.search(r"^Depends: libc6 \(>= [\d.]+\)$", about, re.M), about
    assert "ldconfig" in run("dpkg-deb", "--info", package, "postinst")


def test_in_a_debian_root(package: Path, debian: Path) -> None:
    folder = debian / "tmp" / "deb"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(EXAMPLES / "c", folder)
    shutil.copy2(EXAMPLES / "run2.sh", folder)
    shutil.copy2(package, folder / "libddl-dev.deb")
    script = """set -e
cd /tmp/deb
dpkg --install libddl-dev.deb >&2
cc allreduce.c $(pkg-config --cflags --libs libddl) -o allreduce
ldd allreduce | grep -q /lib/libddl.so.1
sh run2.sh ./allreduce
dpkg --purge libddl-dev >&2
"""
    said = run(
        "chroot", debian, "sh", "-c", script, timeout=600, PATH="/usr/bin:/bin:/usr/sbin:/sbin"
    )
    assert said.count("every sum is 3") == 2
