# SPDX-License-Identifier: Apache-2.0
"""Check who includes whom, as docs/ARCHITECTURE.md has it.

    python tests/check_layers.py [TREE]

Prints the violations; the exit code is 0 if there is none. Long files are reported, too, but do not
count: a file is split by idea, not by length.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import adapter_list

# Each layer of libddl/src, and the other layers whose headers it may include.
LAYERS = {
    "api": {"comm", "health", "connect", "device", "engine", "base"},
    "comm": {"health", "connect", "membership", "device", "engine", "topo", "net", "base"},
    "health": {"membership", "connect", "engine", "net", "base"},
    "connect": {"membership", "topo", "net", "base"},
    "device": {"engine", "net", "base"},
    "engine": {"plan", "topo", "reduce", "net", "base"},
    "plan": {"topo", "base"},
    "topo": {"base"},
    "reduce": {"base"},
    "net": {"base"},
    "membership": {"base"},
    "base": set(),
}

# The same for the folders of Python packages, and for the modules outside of them.
PYTHON_LAYERS = {
    "ddl_core": {
        "__init__": {
            *("joining", "comm", "endpoint", "group", "handles"),
            *("diagnosis", "calls", "base", "errors"),
        },
        "__main__": {"native", "base"},
        "native": {"frameworks", "base"},
        "array_functions": {"adapter_arrays"},
        "frameworks": {"adapter", "comm", "base", "errors"},
        "adapter_arrays": {"adapter", "adapter_objects", "comm", "base", "errors"},
        "adapter_objects": set(),
        "adapter": {"joining", "base", "errors"},
        "joining": {"endpoint", "comm", "metrics", "diagnosis", "base", "errors"},
        "endpoint": {"comm", "handles", "base", "errors"},
        "comm": {
            *("group", "operations_async", "operations", "handles", "options"),
            *("diagnosis", "calls", "base", "errors"),
        },
        "group": {"operations", "handles", "options", "calls", "base", "errors"},
        "operations_async": {"operations", "handles", "options", "calls", "base"},
        "operations": {"options", "calls", "base"},
        "handles": {"options", "calls", "base", "errors"},
        "options": {"calls", "base", "errors"},
        "metrics": {"diagnosis", "errors"},
        "diagnosis": {"base", "errors"},
        "calls": {"base", "errors"},
        "base": {"errors"},
        "errors": set(),
        "_build": set(),
    },
    "ddl_launch": {
        "__main__": {"entry"},
        "cli": {"timeline", "arguments", "submit", "jobs", "hosts", "rank", "base", "errors"},
        "timeline": {"commands", "errors"},
        "arguments": {"foreign_options", "rank", "base", "errors"},
        "foreign_options": set(),
        "submit": {"jobs", "hosts", "errors"},
        "check": {"rank", "base"},
        "commands": {"entry", "lab", "jobs", "rank", "base", "errors"},
        "entry": set(),  # imports cli or commands when it runs
        "lab": {"base", "errors"},
        "jobs": {"hosts", "rank", "errors"},
        "hosts": {"errors"},
        "rank": set(),
        "base": set(),
        "errors": set(),
        "__init__": set(),
    },
    "ddl_elastic": {
        "cli": {"job", "verify", "coordinator", "hidden", "engines", "base"},
        "verify": {"hidden"},
        "__init__": {"job", "coordinator", "step", "shares"},
        "job": {
            *("worker", "coordinator", "engines", "step"),
            *("storage", "shares", "frameworks", "base"),
        },
        "worker": {
            *("hidden", "engines", "step", "sharded", "storage", "shares", "frameworks", "base"),
        },
        "hidden": {"step", "frameworks", "base"},
        "coordinator": {"engines", "step", "shares", "frameworks", "base"},
        "engines": {"frameworks", "base"},
        "step": {"sharded", "storage", "shares", "frameworks", "base"},
        "sharded": {"frameworks", "base"},
        "storage": {"frameworks", "base"},
        "shares": {"frameworks"},
        "frameworks": {"base"},
        "base": set(),
    },
    "ddl_scheduler": {
        "__init__": set(),
        "cli": {"web", "service", "runner", "simulation", "planning", "base"},
        "web": {"base"},
        "service": {"runner", "planning", "base"},
        "runner": {"base"},
        "simulation": {"planning"},
        "planning": set(),
        "base": set(),
    },
}
MAX_FILES = 20  # in one folder; a C source and its header count as one

# The rooms of a layer, from top to bottom; "" has the files outside a room. A file includes no
# header of a room above its own.
ROOMS = {
    "connect": ("wireup", "rendezvous", "endpoint", "addresses", "handshake"),
    "device": ("", "nccl", "core"),
    "net": ("ucx", "shm", "tcp", ""),
    "plan": ("algorithms", ""),
    "engine": ("", "executor", "messages", "named", "recorder", "calls"),
}

# Functions of their arguments alone: no I/O, clock, threads or environment.
PURE = {"plan", "topo", "reduce", "membership"}
# These also have no memory except their arguments, so that memcpy copies a state.
WITHOUT_MEMORY = {"membership"}
MEMORY_HEADERS = {"errno.h", "stdatomic.h", "stdlib.h"}
MEMORY_CALLS = re.compile(r"\b(malloc|calloc|realloc|free|strdup|ddl__now)\s*\(")
PURE_SYSTEM = {
    *("assert.h", "errno.h", "float.h", "limits.h", "math.h", "stdalign.h", "stdatomic.h"),
    *("stdbool.h", "stddef.h", "stdint.h", "stdlib.h", "string.h"),
    "arpa/inet.h",  # inet_pton and inet_ntop are functions of their arguments
    *("cpuid.h", "emmintrin.h", "immintrin.h", "arm_neon.h"),
}
IMPURE_HEADERS = {"base/clock.h", "base/log.h"}
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
IMPURE_CALLS = re.compile(r"\b(getenv|secure_getenv|printf|clock_gettime|rand|random|system)\s*\(")

ENVIRONMENT = ("comm/environment.c", "base/log.c")  # the only readers of it in the library
IMPORTER = "ddl_core/base/_lib.py"
# The frameworks that each adapter may import, and all frameworks.
ADAPTERS = {adapter.package: set(adapter.imports) for adapter in adapter_list.ADAPTERS.values()}
FRAMEWORKS = {"flax", *adapter_list.ADAPTER_OF}.union(*ADAPTERS.values())
LAUNCH = "ddl_launch"  # ELASTIC and SCHEDULER import it
ELASTIC = "ddl_elastic"  # SCHEDULER and the adapters' parts for it import it
SCHEDULER = "ddl_scheduler"  # on top: no other package imports it
ELASTIC_PART = re.compile(r"adapters/\w+/elastic/\w+\.py")  # what an adapter does for ddl_elastic
ELASTIC_PART_LINES = 250  # of each file of it
ELASTIC_ENVIRONMENT = f"{ELASTIC}/base/environment.py"  # the only reader of it on top of ddl_launch
PURE_PYTHON = {
    *(f"{ELASTIC}/shares/{name}.py" for name in ("assign", "order", "sampler")),
    *(f"{SCHEDULER}/base/{name}.py" for name in ("requests", "text")),
    *(f"{SCHEDULER}/planning/{name}.py" for name in ("filling", "jobs", "model", "places")),
    f"{SCHEDULER}/planning/policy.py",
}  # no I/O, clock or state
PURE_MODULES = {
    *("__future__", "collections", "dataclasses", "functools", "hashlib", "heapq", "math"),
    *("numpy", "re", "struct", ELASTIC, SCHEDULER),
}
LONG = 600  # lines of a file from which it is reported
LONGER = {"libddl/include/ddl/ddl.hpp"}  # read by section
NATIVE = {".c", ".h", ".cpp", ".hpp"}
TEXT = {".c", ".h", ".cpp", ".hpp", ".py", ".sh"}
FOLDERS = (
    "libddl",
    "ddl",
    "ddl_core",
    "ddl_launch",
    "ddl_elastic",
    "ddl_scheduler",
    "adapters",
    "tests",
    "bench",
    "examples",
)
EMPTY = "tests/tsan.supp"  # fix the race instead

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
EXPORT = re.compile(r"^DDL_API\s[^;(]*?\b(ddl_\w+)\s*\(", re.MULTILINE)


def strip_comments(text: str) -> str:
    """Return the text without C comments, but with all line breaks, so that line numbers stay
    valid."""
    return COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def check_c(root: Path) -> Iterator[str]:
    """The arrows between the layers, their purity, and where exported functions are defined."""
    src = root / "libddl" / "src"
    header = root / "libddl" / "include" / "ddl" / "ddl.h"
    exports = EXPORT.findall(header.read_text())
    definition = re.compile(rf"^\w[^;={{}}]*?\b({'|'.join(exports)})\s*\([^;{{]*\{{", re.MULTILINE)
    for path in sorted(src.rglob("*.[ch]")):
        where = path.relative_to(root)
        layer = path.relative_to(src).parts[0]
        if layer not in LAYERS:
            yield f"{where}: not in a layer; there are {', '.join(LAYERS)}"
            continue
        room = "/".join(path.relative_to(src).parts[1:-1])
        if room not in ROOMS.get(layer, ("",)):
            yield f"{where}: {layer}/{room} is not a room; see ROOMS in check_layers.py"
            continue
        text = strip_comments(path.read_text())
        for match in INCLUDE.finditer(text):
            problem = check_include(layer, room, match[1] == "<", match[2])
            if problem:
                yield f"{where}:{line_of(text, match.start(1))}: {layer} {problem}"
        if layer != "api":
            for match in definition.finditer(text):
                line = line_of(text, match.start(1))
                yield f"{where}:{line}: {match[1]} is public: only src/api defines it"
        if layer not in PURE and str(path.relative_to(src)) not in ENVIRONMENT:
            for match in GETENV.finditer(text):
                line = line_of(text, match.start())
                yield f"{where}:{line}: only {' and '.join(ENVIRONMENT)} read the environment"
        if layer in WITHOUT_MEMORY:
            for match in MEMORY_CALLS.finditer(text):
                line = line_of(text, match.start())
                yield f"{where}:{line}: {layer} has no memory and no clock: {match[1]}"
        if layer in PURE:
            for match in IMPURE_CALLS.finditer(text):
                line = line_of(text, match.start())
                yield f"{where}:{line}: {layer} is pure and may not call {match[1]}"


def check_include(layer: str, room: str, system: bool, name: str) -> str | None:
    """Return what is wrong with this include of a file in a room of `layer`, or None."""
    if system:
        if layer in PURE and name not in PURE_SYSTEM:
            return f"is pure and may not include <{name}>"
        if layer in WITHOUT_MEMORY and name in MEMORY_HEADERS:
            return f"has no memory of its own and may not include <{name}>"
        return None
    if name == "ddl/ddl.h":
        return None
    target, slash, _ = name.partition("/")
    if not slash or target not in LAYERS:
        return f'includes "{name}": write the path from src, as in "net/link.h"'
    if layer in PURE and name in IMPURE_HEADERS:
        return f'is pure and may not include "{name}"'
    if target != layer and target not in LAYERS[layer]:
        allowed = ", ".join(sorted(LAYERS[layer])) or "nothing"
        return f'may not include "{name}": below {layer} there is {allowed}'
    rooms = ROOMS.get(target, ("",))
    theirs = name.rpartition("/")[0].partition("/")[2]
    if target == layer and theirs in rooms[: rooms.index(room)]:
        return f'may not include "{name}": {theirs or target} is above {room}'
    return None


def extension_module(root: Path) -> str:
    """The name of the cffi module that ddl_core/_build.py builds, without its package."""
    build = root / "ddl_core" / "_build.py"
    found = (
        re.search(r"set_source\(\s*[\"']([\w.]+)", build.read_text()) if build.exists() else None
    )
    return found[1].rpartition(".")[2] if found else "_ddl"


def imported(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    """The absolute names of everything that an import statement may import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = list(package[: len(package) - node.level + 1]) if node.level else []
        base += node.module.split(".") if node.module else []
        return [".".join([*base, alias.name]) for alias in node.names] + [".".join(base)]
    return []


def check_python(root: Path) -> Iterator[str]:
    """One module imports the extension, only adapters import frameworks, and adapters do not read
    the environment. Imports between the packages point down, and pure modules import only pure
    ones."""
    extension = f"ddl_core.{extension_module(root)}"
    for folder in ("ddl", "ddl_core", LAUNCH, ELASTIC, SCHEDULER, "adapters"):
        for path in sorted((root / folder).rglob("*.py")):
            where = path.relative_to(root)
            parts = where.parts[1:] if folder == "adapters" else where.parts
            tree = ast.parse(path.read_text(), str(where))
            for node in ast.walk(tree):
                names = imported(node, parts[:-1])
                for name in names:
                    if (name + ".").startswith(extension + ".") and str(where) != IMPORTER:
                        yield f"{where}:{node.lineno}: only {IMPORTER} imports {extension}"
                    package = name.split(".")[0]
                    if folder != "adapters" and package in FRAMEWORKS:
                        yield f"{where}:{node.lineno}: {folder} imports no framework ({name})"
                    if package == LAUNCH and folder not in (LAUNCH, ELASTIC, SCHEDULER):
                        yield f"{where}:{node.lineno}: {parts[0]} does not import {LAUNCH}"
                    above = folder in (ELASTIC, SCHEDULER) or ELASTIC_PART.fullmatch(str(where))
                    if package == ELASTIC and not above:
                        yield f"{where}:{node.lineno}: {parts[0]} does not import {ELASTIC}"
                    if package == SCHEDULER != folder:
                        yield f"{where}:{node.lineno}: {parts[0]} does not import {SCHEDULER}"
                    if str(where) in PURE_PYTHON and package not in PURE_MODULES:
                        yield f"{where}:{node.lineno}: is pure and does not import {package}"
                    others = FRAMEWORKS - ADAPTERS.get(parts[0], set())
                    if folder == "adapters" and package in others:
                        yield f"{where}:{node.lineno}: {parts[0]} does not import {package}"
                reads = {"os.environ", "os.getenv"} & set(names) or (
                    isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv")
                )
                if reads and folder == "adapters":
                    yield f"{where}:{node.lineno}: an adapter reads no environment"
                if reads and folder in (ELASTIC, SCHEDULER) and str(where) != ELASTIC_ENVIRONMENT:
                    yield f"{where}:{node.lineno}: only {ELASTIC_ENVIRONMENT} reads the environment"
    for path in sorted(p for p in (root / "adapters").rglob("*") if p.suffix in NATIVE):
        text = strip_comments(path.read_text())
        for match in GETENV.finditer(text):
            where = path.relative_to(root)
            yield f"{where}:{line_of(text, match.start())}: an adapter reads no environment"


def check_folders(root: Path) -> Iterator[str]:
    """Imports between the folders of a package point down, and no folder has too many files."""
    for package, layers in PYTHON_LAYERS.items():
        for path in sorted((root / package).rglob("*.py")):
            where = path.relative_to(root)
            layer = where.parts[1] if len(where.parts) > 2 else path.stem
            if layer not in layers:
                yield f"{where}: not in a layer of {package}; there are {', '.join(layers)}"
                continue
            for node in ast.walk(ast.parse(path.read_text(), str(where))):
                for name in imported(node, where.parts[:-1]):
                    first, *inner = name.split(".")
                    target = inner[0] if first == package and inner else layer
                    if target in layers and target not in {layer, *layers[layer]}:
                        allowed = ", ".join(sorted(layers[layer])) or "nothing"
                        yield (
                            f"{where}:{node.lineno}: {layer} may not import {target}: below it"
                            f" there is {allowed}"
                        )
    packages = [(package, "*.py", "Python files") for package in PYTHON_LAYERS]
    for top, pattern, kind in [*packages, ("libddl/src", "*.[ch]", "C modules")]:
        for folder in sorted({path.parent for path in (root / top).rglob(pattern)}):
            files = len({path.stem for path in folder.glob(pattern)})
            if files > MAX_FILES:
                yield f"{folder.relative_to(root)}: {files} {kind}; at most {MAX_FILES}"


def check_cycles(root: Path) -> Iterator[str]:
    """Within each of the packages, imports have no cycles, those for types alone included."""
    for package in ("ddl_core", LAUNCH, ELASTIC, SCHEDULER):
        files = {
            ".".join(path.relative_to(root).with_suffix("").parts): path
            for path in sorted((root / package).rglob("*.py"))
            if path.stem != "__init__"
        }
        imports = {
            name: {
                target
                for node in ast.walk(ast.parse(path.read_text(), str(path)))
                for target in imported(node, tuple(name.split(".")[:-1]))
                if target in files
            }
            for name, path in files.items()
        }
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            yield f"{package}: imports in a cycle: {' <- '.join(error.args[1])}"


def lengths(root: Path) -> Iterator[tuple[str, int]]:
    """Yield each source file, relative to the root, and its number of lines."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in TEXT and path.is_file():
                yield str(path.relative_to(root)), path.read_text().count("\n")


def long_files(root: Path) -> list[str]:
    """Return a line for each file that may hold more than one idea."""
    return [
        f"warning: {where}: {lines} lines"
        for where, lines in lengths(root)
        if lines > LONG and where not in LONGER
    ]


def check_text(root: Path) -> Iterator[str]:
    """Adapters' parts of ddl_elastic stay small; no race is suppressed."""
    for where, lines in lengths(root):
        if ELASTIC_PART.fullmatch(where) and lines > ELASTIC_PART_LINES:
            yield f"{where}: {lines} lines; split above {ELASTIC_PART_LINES}"
    if (root / EMPTY).read_bytes().strip():
        yield f"{EMPTY}: must stay empty"


def check(root: Path) -> list[str]:
    """All violations in the tree."""
    checks = (check_c, check_python, check_folders, check_cycles, check_text)
    found = [violation for each in checks for violation in each(root)]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    tree = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    violations = check(tree)
    print("\n".join([*long_files(tree), *(violations or ["all includes point down"])]))
    sys.exit(1 if violations else 0)
