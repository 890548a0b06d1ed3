# SPDX-License-Identifier: Apache-2.0
"""Find private words where the field has its own.

    python tests/check_words.py [TREE]

Names (identifiers and file names) and text (comments, messages, documents) are checked apart: some
words are ordinary English in a sentence, and private as a name. Prints what it finds; the exit code
is 0 if that is nothing. The record of past releases in CHANGELOG.md, ABI names and values on the
wire are exempt.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import check_layers

# A part of a name, as in the_part or ThePart, and what to say instead.
NAMES = {
    **dict.fromkeys(("meet", "meets", "meeting", "meetings"), "wireup, rendezvous, connect"),
    **dict.fromkeys(("door", "doors", "knock", "knocks"), "connection kind, handshake"),
    **dict.fromkeys(("seat", "seats"), "comm slot"),
    **dict.fromkeys(("guest", "guests", "visitor", "visitors"), "accepted, pending connection"),
    **dict.fromkeys(("regret", "regrets"), "create-failure notice"),
    **dict.fromkeys(("vow", "vows"), "authentication label"),
    **dict.fromkeys(("crowd", "crowded", "crowding"), "rate limit, oversubscription"),
    **dict.fromkeys(("bury", "mourn", "mourned", "bereave"), "mark dead, grace, peer died"),
    **dict.fromkeys(("patience", "caution", "haste", "hogged"), "wait policy, backoff"),
    **dict.fromkeys(("braid", "braids", "braiding", "strand", "strands"), "interleaved steps"),
    **dict.fromkeys(("house", "houses", "ladder", "rung", "rungs"), "host group, hierarchy, level"),
    **dict.fromkeys(("culprit", "culprits", "pulse"), "blocking peer, progress snapshot"),
    **dict.fromkeys(("attend", "owes"), "poll, has unread"),
    **dict.fromkeys(("stranger", "strangers"), "unauthenticated client"),
    **dict.fromkeys(("conductor", "ensemble", "contestant", "obey"), "scheduler, worker group"),
    **dict.fromkeys(("goodbye", "goodbyes"), "leave message"),
    **dict.fromkeys(("living",), "live objects"),
}

# Words that no sentence needs.
PHRASES = {
    r"black box": "flight recorder",
    r"(?:last|best) words?\b": "last message",
    r"say(?:s|ing)? goodbye|said goodbye|a goodbye": "leave",
    r"\bmourn\w*|\bbereave\w*": "grace period",
    r"\bknock(?:s|ed|ing)? (?:at|again)": "connect",
    r"at (?:the|its|their|our) doors?\b": "at the endpoint",
    r"\bbraid\w*|\bstrands? of\b": "interleaved steps",
    r"\bconductor|\bensemble\b|\bcontestants?\b": "scheduler, worker group, candidate",
    r"\bstrangers?\b": "unauthenticated client; newcomer",
    r"\bregrets?\b": "create-failure notice",
    r"\bculprits?\b": "blocking peer; the rank that caused it",
    r"who (?:computes|waits|calls|sets|wants|comes) .{0,40}himself": "say it plainly",
    r"\bhe\b (?:is|has|was|does|drives|came|may)\b": "name the object",
    r"\btry(?:ing)? things on\b": "test",
    r"\bhelp tells more": "see ... --help",
    r"\bended well\b": "ended without an error",
    r"\bno word from\b": "has not connected, has not answered",
    r"\bnested by level": "hierarchical",
}

# Like the above, but still so frequent that the number may only decrease: at most this many in the
# tree.
FEWER = {
    r"\bso many\b": ("N, up to N, that many", 88),
    r"\banew\b": ("again; a new one", 32),
    r"\bthose who\b": ("the ranks that", 34),
    r"\bone's own\b": ("your own", 11),
    r"\b(?:is|are|not) served\b": ("is supported", 43),
    r"\bwhich is said\b": ("is logged, is printed", 4),
    r"\bis none of\b": ("the value, and what it must be", 38),
}

# First words of docstrings without a subject or a verb ("Of these."), and the number of docstrings
# in the packages that may begin so.
MARKERS = re.compile(
    r"(?:Of|That|Those|Who|Whose|Whom|Which|Where|Why|What|As|To|For|On|In|With|Without|From|By|At|"
    r"Its|It|They|There|These|So|Some|None|Nobody|Not|Raises|Until|Under|After|Before|Around)\b"
    r"(?! now on)"
)
MOST_MARKERS = 285

SOURCES = {".c", ".h", ".cpp", ".hpp", ".py", ".pyi", ".sh", ".rs", ".go", ".f90"}
TEXTS = SOURCES | {".md", ".toml", ".txt", ".yml"}
FOLDERS = (*check_layers.FOLDERS, "docs")
EXEMPT = {"tests/check_words.py", "tests/test_words.py"}
ABI = re.compile(r"\bddl_mpi_card\w*")

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def parts(name: str) -> list[str]:
    """Return the words of a name in snake_case or CamelCase, in lower case."""
    return [part.lower() for part in PART.findall(name)]


def strip_text(path: Path, text: str) -> str:
    """Return the text without comments and strings, line by line."""
    blank = lambda match: "\n" * match.group().count("\n")  # noqa: E731
    if path.suffix in {".c", ".h", ".cpp", ".hpp", ".rs", ".go"}:
        pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'
    elif path.suffix in {".py", ".pyi"}:
        pattern = (
            r'"""(?:\\.|[^\\])*?"""|#[^\n]*'
            r'|[rbfu]*"(?:\\.|[^"\\\n])*"|[rbfu]*\'(?:\\.|[^\'\\\n])*\''
        )
    else:
        return ""
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def check_names(path: Path, where: Path, text: str) -> Iterator[str]:
    """Private words in the file's name and its identifiers."""
    for part in parts(where.name):
        if part in NAMES:
            yield f"{where}: file name with {part!r}: {NAMES[part]}"
    for number, line in enumerate(strip_text(path, text).split("\n"), 1):
        for name in IDENTIFIER.findall(ABI.sub("", line)):
            for part in parts(name):
                if part in NAMES:
                    yield f"{where}:{number}: {name}: {NAMES[part]}"


def flat(text: str) -> str:
    """Return the text without line ends and the comment marks after them."""
    return re.sub(r"\n[ \t]*(?:\*|#|//)?[ \t]*", " ", text)


def check_phrases(where: Path, text: str) -> Iterator[str]:
    """Yield private words in a text without line ends."""
    for pattern, instead in PHRASES.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield f"{where}: {match.group()!r}: {instead}"


def files(root: Path) -> Iterator[Path]:
    """Return the paths to check: git's files in the project's folders, and the texts at the top
    level."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in listed:
        top = name.split("/")[0]
        if name and (top in FOLDERS or "/" not in name) and name not in EXEMPT:
            path = root / name
            if path.suffix in TEXTS and path.is_file() and "corpus" not in path.parts:
                yield path


def without_record(where: Path, text: str) -> str:
    """Return the text without the parts about past releases."""
    if where.name == "CHANGELOG.md":
        return re.split(r"^## (?=\d)", text, flags=re.MULTILINE)[0]
    return text


def marked_docstrings(where: Path, text: str) -> Iterator[str]:
    """Yield the docstrings of a package's module that begin with one of these words."""
    if where.suffix != ".py" or not re.match(r"ddl|adapters$", where.parts[0]):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node) or ""
            if MARKERS.match(docstring):
                yield f"{where}:{node.body[0].lineno}: {docstring.splitlines()[0]!r}"


def too_many(found: list[str], most: int, what: str) -> list[str]:
    """Return a finding with the places if there are more than `most`."""
    if len(found) <= most:
        return []
    return [f"{what}: {len(found)}; at most {most}, which may only fall:", *found]


def check(root: Path, most_markers: int = MOST_MARKERS) -> list[str]:
    """Return all findings in the tree, of which at most `most_markers` docstrings may be such."""
    found: list[str] = []
    marked: list[str] = []
    fewer: dict[str, list[str]] = {pattern: [] for pattern in FEWER}
    for path in files(root):
        where = path.relative_to(root)
        text = without_record(where, path.read_text())
        found += check_names(path, where, text)
        sentences = flat(text)
        found += check_phrases(where, sentences)
        marked += marked_docstrings(where, text)
        for pattern, places in fewer.items():
            places += [str(where)] * len(re.findall(pattern, sentences, re.IGNORECASE))
    for pattern, (instead, most) in FEWER.items():
        found += too_many(fewer[pattern], most, f"{pattern}, say {instead}")
    found += too_many(marked, most_markers, "docstrings that begin without a verb or noun")
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    findings = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent)
    print("\n".join(findings) or "no private words")
    sys.exit(1 if findings else 0)
