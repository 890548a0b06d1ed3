# SPDX-License-Identifier: Apache-2.0
"""Each source names its licence in its first lines, as SPDX wants it, so that a file that is copied
elsewhere still does.

    python tests/check_spdx.py [--fix]      --fix adds the line where it is missing
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINE = "SPDX-License-Identifier: Apache-2.0"
C, CPP, SHELL = "/* {} */\n", "// {}\n", "# {}\n"
COMMENTS = {
    ".c": C,
    ".cmake": SHELL,
    ".cpp": CPP,
    ".css": C,
    ".f90": "! {}\n",
    ".go": "// {}\n\n",  # otherwise it would be part of the package's documentation
    ".h": C,
    ".hpp": CPP,
    ".html": "{{# {} -#}}\n",
    ".js": CPP,
    ".lua": "-- {}\n",
    ".map": C,
    ".py": SHELL,
    ".pyi": SHELL,
    ".rs": CPP,
    ".sh": SHELL,
}
NAMES = {"CMakeLists.txt": SHELL, "Dockerfile": SHELL, "Makefile": SHELL, "run": SHELL}


def sources() -> list[tuple[Path, str]]:
    """Return the sources, and the comment marks of each."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        hidden = {name for name in folders if name[0] == "."} - {".ci"}
        folders[:] = sorted(set(folders) - hidden - {"build", "dist", "generated", "golden"})
        for name in sorted(files):
            comment = NAMES.get(name) or COMMENTS.get(Path(name).suffix)
            if comment and os.path.getsize(os.path.join(folder, name)):
                found.append((Path(folder, name), comment))
    return found


def main(arguments: list[str]) -> int:
    missing = [
        (file, comment)
        for file, comment in sources()
        if LINE not in "".join(file.read_text().splitlines()[:3])
    ]
    for file, comment in missing:
        if arguments == ["--fix"]:
            first, newline, rest = file.read_text().partition("\n")
            line = comment.format(LINE)
            script = first.startswith("#!")
            text = f"{first}\n{line}{rest}" if script else line + first + newline + rest
            file.write_text(text)
        else:
            print(f"{file.relative_to(ROOT)}: no line {LINE!r} (python tests/check_spdx.py --fix)")
    if not missing:
        print(f"each source has a line {LINE!r}")
    return 1 if missing and arguments != ["--fix"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
