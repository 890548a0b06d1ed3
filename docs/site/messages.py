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
PYTHON = ("ddl_core", "ddl_launch", "ddl_elastic", "ddl_scheduler", "adapters")
# Messages that only programmers of libddl, or Python itself, get.
INTERNAL = ("NotImplementedError", "AttributeError", "SystemExit", "KeyError", "StopIteration")

_LITERAL = r'"((?:[^"\\]|\\.)*)"'
# Calls of PyTorch, TensorFlow and XLA that report errors: the number of the argument with which the
# text begins, and the exception in Python. `wrong` is ddl_tensorflow's, `refuse` and `snprintf` are
# ddl_jax's.
_KINDS = {
    "TORCH_CHECK": (1, "RuntimeError"),
    "TORCH_CHECK_VALUE": (1, "ValueError"),
    "TORCH_CHECK_TYPE": (1, "TypeError"),
    "TORCH_CHECK_NOT_IMPLEMENTED": (1, "NotImplementedError"),
    "TORCH_CHECK_WITH": (2, "WITH"),
    "wrong": (1, "InvalidArgumentError"),
    "refuse": (2, "XlaRuntimeError"),
    "snprintf": (2, "XlaRuntimeError"),
}
_NATIVE = re.compile(rf"\b({'|'.join(_KINDS)}|\w+Error)\(")
_SECTION = re.compile(r"^## (.*?)\n(.*?)^<!-- messages\n(.*?)\n-->", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Message:
    """A message, and its place."""

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
    """Return the families in the order of the page: a message belongs to the first one that
    matches."""
    found = []
    for title, body, lines in _SECTION.findall(PAGE.read_text()):
        assert "**Do:**" in body, f"{title}: what is to do?"
        found.append(Family(title, tuple(re.compile(line) for line in lines.splitlines())))
    return found


def family(message: Message, known: list[Family]) -> Family | None:
    """Return the first family that matches."""
    return next((each for each in known if each.has(message)), None)


def messages() -> list[Message]:
    """Return the messages of C, C++ and Python, without those that have no words of their own."""
    found = {m.text: m for m in [*_of_c(), *_of_adapters(), *_of_scheduler(), *_of_python()]}
    said = [m for m in found.values() if re.search("[a-z]{3}", _words(m.text).replace("%s", ""))]
    return sorted(said, key=lambda m: m.text)


def _words(text: str) -> str:
    return text.partition(": ")[2]


def _of_c() -> Iterator[Message]:
    """Yield the format strings of calls of ddl__fail, and of the functions that end a comm."""
    for path in sorted((ROOT / "libddl" / "src").rglob("*.[ch]")):
        text = path.read_text()
        for call in re.finditer(r"ddl__(fail|fail_all|messages_fail|engine_abort)\(", text):
            arguments = text[call.end() : _end(text, call.end())]
            if call[1] == "engine_abort":
                arguments = arguments.replace(', "', ', DDL_EABORTED, "%s aborted: ')
            if call[1] != "fail":
                arguments = arguments.partition(",")[2]  # without the engine
            strings = re.search(rf"{_LITERAL}(?:\s*(?:PRI\w+\s*)?{_LITERAL})*", arguments)
            status = arguments.partition(",")[0].split()[-1]
            if call[1] != "fail" and not status.startswith("DDL_"):
                continue  # passes on a message that another rank or function has composed
            if strings and not status.startswith("DDL__"):  # internal messages are for the library
                words = "".join(re.findall(_LITERAL, strings[0])).replace('\\"', '"')
                words = re.sub(r"%[-+0-9.*]*(?:ll|z)?[a-z]", "%s", words)
                yield Message(str(path.relative_to(ROOT)), f"{status}: {words}")


def _of_adapters() -> Iterator[Message]:
    """Yield the texts of the adapters' native parts, where a value is %s."""
    for path in sorted((ROOT / "adapters").glob("*/csrc/*")):
        text = path.read_text()
        for call in _NATIVE.finditer(text):
            parts = _arguments(text[call.end() : _end(text, call.end())])
            condition, kind = _KINDS.get(call[1], (0, call[1]))
            if kind == "WITH":
                kind, condition = parts[0].strip(), 2
            if call[1] == "snprintf":
                parts = parts[: condition + 1]  # without the values
            words = "".join(map(_joined, parts[condition:]))
            if call[1] == "wrong":
                words = f"ddl %s: {words}"
            if '"' in "".join(parts[condition:]):
                yield Message(str(path.relative_to(ROOT)), f"{kind}: {words}")


def _arguments(text: str) -> list[str]:
    """Return a call's arguments, as they are written."""
    found, depth = [""], 0
    for part in re.finditer(rf"{_LITERAL}|[^\"]", text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(part[0], 0)
        if part[0] == "," and not depth:
            found.append("")
        else:
            found[-1] += part[0]
    return found


def _joined(argument: str) -> str:
    """Return a text of strings and values, which are joined by + or the formats of C."""
    text, last = "", 0
    for part in re.finditer(rf"{_LITERAL}", argument):
        between = argument[last : part.start()].strip(" \n+()")
        text += ("%s" if between else "") + part[1]
        last = part.end()
    text = re.sub(r"%[-+0-9.*]*(?:ll|z)?[a-z]", "%s", text)
    return text + ("%s" if argument[last:].strip(" \n+()") else "")


def _end(text: str, start: int) -> int:
    """Return the position after the arguments of a call."""
    depth = 1
    for part in re.finditer(rf"{_LITERAL}|[()]", text[start:]):
        depth += {"(": 1, ")": -1}.get(part[0], 0)
        if not depth:
            return start + part.start()
    return len(text)


def _of_python() -> Iterator[Message]:
    """Yield the texts of exceptions that are raised, with %s for values."""
    for top in PYTHON:
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    name = ast.unparse(node.exc.func).split(".")[-1]
                    if name not in INTERNAL:
                        text = _text(node.exc.args[0])
                        yield Message(str(path.relative_to(ROOT)), f"{name}: {text}")


def _of_scheduler() -> Iterator[Message]:
    """Yield the responses of the scheduler's API to requests with errors."""
    for path in sorted((ROOT / "ddl_scheduler" / "web").glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for text in _refusals(function):
                    yield Message(str(path.relative_to(ROOT)), f"HttpError: {text}")


def _refusals(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the texts of one function: a text, the texts that its variable may have, or a wrong
    field's."""
    variables: dict[str, list[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = node.value.values if isinstance(node.value, ast.Dict) else [node.value]
            variables.setdefault(node.targets[0].id, []).extend(map(_text, values))
    known = [text for texts in variables.values() for text in texts if text != "%s"]
    for node in ast.walk(function):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or called not in ("HttpError", "no_token"):
            continue
        message = [word.value for word in node.keywords if word.arg == "message"]
        if called == "no_token":
            message = node.args
        if message and isinstance(message[0], ast.Name):
            yield from variables.get(message[0].id, []) + known
        elif message:
            yield _text(message[0])
        else:
            yield f"{_text(node.args[1])} is %s; allowed: {_text(node.args[3])}"


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
    """Return the page's text with the messages of each family instead of its patterns."""
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
