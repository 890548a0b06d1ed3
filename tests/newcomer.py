# SPDX-License-Identifier: Apache-2.0
"""Follow a page line by line in a fresh clone, with nothing installed, as a newcomer would.

    python tests/newcomer.py [PAGE...]          README.md, docs/tutorial.md and docs/installing.md

Of docs/installing.md it follows the section on several hosts, on two hosts of a lab. Each has its
own /opt/train, and ssh and scp reach them through `ddl lab exec`. Of the other pages, all blocks
run in one shell, one after the other, as they stand: what is installed, the folder and the active
environment stay. A Python block is written to the file that the page names.
The packages of the system (`apt-get`) have to be there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from snippets import ROOT, blocks

HOSTS_PAGE = "docs/installing.md"
PAGES = ["README.md", "docs/tutorial.md", HOSTS_PAGE]
LAB = """
set -eu
outside=$PATH
python3 -m venv own
. own/bin/activate
pip install -q .
mkdir -p /opt/train
ddl lab up 2 --rate 1gbit
trap 'ddl lab down; rmdir /opt/train' EXIT
ssh() {
    ddl lab exec "$1" env -u VIRTUAL_ENV PATH="$outside" bash -c "$2"
}
scp() {
    ddl lab exec "${4%:*}" cp -r "$2" "$3" "${4#*:}"
}
for host in h1 h2; do
    ddl lab exec $host mount -t tmpfs train /opt/train
done
"""


def script(page: str) -> str:
    """Return the page as one shell program."""
    if page == HOSTS_PAGE:
        (program,) = (b for b in blocks("docs/tutorial.md") if b.value("file") == "sums.py")
        (walk,) = (b for b in blocks(page) if "for host in" in b.text)
        write = f"cat > sums.py <<'END_OF_BLOCK'\n{program.text}END_OF_BLOCK\n"
        return LAB + write + walk.text
    lines = ["set -eu"]
    for block in blocks(page):
        here = f"{page}:{block.line}"
        if block.language == "python" and (name := block.value("file")):
            lines += [f"cat > {name} <<'END_OF_BLOCK'", block.text.rstrip("\n"), "END_OF_BLOCK"]
        elif block.language == "bash" and "apt-get" not in block.text:
            lines += [f"printf '%s\\n' '--- {here}'", block.text]
    return "\n".join(lines)


def main(pages: list[str]) -> int:
    for page in pages or PAGES:
        with tempfile.TemporaryDirectory(prefix="newcomer") as folder:
            clone = ["git", "clone", "-q", str(ROOT), folder]
            subprocess.run(clone, check=True)
            env = {k: v for k, v in os.environ.items() if not k.startswith("DDL_")}
            own = os.path.dirname(sys.executable)
            path = [p for p in env["PATH"].split(":") if p != own]
            env.pop("VIRTUAL_ENV", None)
            start = time.monotonic()
            ended = subprocess.run(
                ["bash", "-c", script(page)], cwd=folder, env={**env, "PATH": ":".join(path)}
            )
            word = "followed" if ended.returncode == 0 else "FAILED"
            print(f"{page}: {word} in {time.monotonic() - start:.0f} s", flush=True)
            if ended.returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
