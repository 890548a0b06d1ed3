# SPDX-License-Identifier: Apache-2.0
"""The error messages in the sources, and the families of docs/troubleshooting.md that explain them.

A family is a section of that page. It ends with a comment that has regular expressions, one a line:

    <!-- messages
    DDL_ETIMEDOUT: .*
    -->

A message is matched as "STATUS: text" or "Exception: text", with %s where values are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
PYTHON = ("ddl_core", "ddl_launch", "ddl_elastic", "adapters")
# What only programmers of libddl, or Python itself, meet.
INTERNAL = ("NotImplementedError", "AttributeError", "SystemExit", "KeyError", "StopIteration")

_LITERAL = r'"((?:[^"\\]|\\.)*)"'
_SECTION = re.compile(r"^## (.*?)\n(.*?)^<!-- messages\n(.*?)\n-->", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Message:
    """A message, and where it comes from."""

    file: str
    text: str


@dataclass(frozen=True)
class Family:
    """A section of the page."""

    title: str
    patterns: tuple[re.Pattern[str], ...]

    def has(self, message: Message) -> bool:
        return any(pattern.search(message.text) for pattern in self.patterns)


def families() -> list[Family]:
    """In the order of the page: a message belongs to the first one that matches."""
    found = []
    for title, body, lines in _SECTION.findall(PAGE.read_text()):
        assert "**Do:**" in body, f"{title}: what is to do?"
        found.append(Family(title, tuple(re.compile(line) for line in lines.splitlines())))
    return found


def family(message: Message, known: list[Family]) -> Family | None:
    """The first that matches."""
    return next((each for each in known if each.has(message)), None)


def messages() -> list[Message]:
    """Of C and Python, without those that have no words of their own."""
    found = {m.text: m for m in [*_of_c(), *_of_python()]}
    said = [m for m in found.values() if re.search("[a-z]{3}", _words(m.text).replace("%s", ""))]
    return sorted(said, key=lambda m: m.text)


def _words(text: str) -> str:
    return text.partition(": ")[2]


def _of_c() -> Iterator[Message]:
    """The format strings given to ddl__fail."""
    for path in sorted((ROOT / "libddl" / "src").rglob("*.[ch]")):
        text = path.read_text()
        for call in re.finditer(r"ddl__fail\(", text):
            arguments = text[call.end() : _end(text, call.end())]
            strings = re.search(rf"{_LITERAL}(?:\s*(?:PRI\w+\s*)?{_LITERAL})*", arguments)
            if strings:
                status = arguments.partition(",")[0].split()[-1]
                words = "".join(re.findall(_LITERAL, strings[0])).replace('\\"', '"')
                words = re.sub(r"%[-+0-9.*]*(?:ll|z)?[a-z]", "%s", words)
                yield Message(str(path.relative_to(ROOT)), f"{status}: {words}")


def _end(text: str, start: int) -> int:
    """Behind the arguments of a call."""
    depth = 1
    for part in re.finditer(rf"{_LITERAL}|[()]", text[start:]):
        depth += {"(": 1, ")": -1}.get(part[0], 0)
        if not depth:
            return start + part.start()
    return len(text)


def _of_python() -> Iterator[Message]:
    """The texts of exceptions that are raised, with %s for values."""
    for top in PYTHON:
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    name = ast.unparse(node.exc.func).split(".")[-1]
                    if name not in INTERNAL:
                        text = _text(node.exc.args[0])
                        yield Message(str(path.relative_to(ROOT)), f"{name}: {text}")


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.IfExp):
        return _text(node.body) or _text(node.orelse)
    return "%s"


def with_messages(page: str) -> str:
    """The page's text with the messages of each family instead of its patterns."""
    known = families()
    by_family: dict[str, list[str]] = {}
    for message in messages():
        if found := family(message, known):
            by_family.setdefault(found.title, []).append(message.text)

    def section(match: re.Match[str]) -> str:
        title, body, _ = match.groups()
        texts = by_family.get(title, [])
        listed = "\n".join(sorted({text.replace("%s", "…") for text in texts}))
        head = f"## {title}\n{body}"
        count = f"{len(texts)} message" + ("s" if len(texts) != 1 else "")
        return f"{head}<details><summary>{count}</summary>\n\n```text\n{listed}\n```\n\n</details>"

    return _SECTION.sub(section, page)
