# SPDX-License-Identifier: Apache-2.0
"""Doxygen's input filter: the plain comments of our headers as documentation.

    python comments.py ddl.h > what Doxygen reads

A comment in front of declarations is that of each of them, up to the next blank line; one at the
end of a line is that of its field or value; a line of dashes with a name begins a group, to which
comments belong that stand alone. Aligned and indented lines are kept as they are. Lines keep their
numbers only roughly, so warnings name the declaration.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
SECTION = re.compile(r"/\* -{8,} (\w+) \*/")
MARK = re.compile(r"/\* ---- ddl: .*? \*/")
# Declarations after one comment: functions or macros in a row, or two fields of one type.
SHARED = re.compile(r"(?:\n(?:DDL_API [^;/]*;|#define [^\n/]*))+|\n +\w+ \w+, \w+;")
# The comment of every struct; elsewhere a field's comment describes it.
FIELDS = {"struct_size": "sizeof(the struct)", "reserved": "0"}


def body(comment: str) -> str:
    """Return the comment's text in Doxygen's language."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in comment[2:-2].strip().splitlines()]
    text, kept = [], False
    for line in lines:
        if line.startswith("SPDX-"):
            continue
        indented = line.startswith("  ")
        if line and indented != kept:
            text.append("@verbatim" if indented else "@endverbatim")
            kept = indented
        # In prose, Doxygen removes one star from each line, in kept lines none.
        text.append(line if kept else f" * {escape(line)}")
    if kept:
        text.append("@endverbatim")
    return "\n".join(text).removeprefix(" * ")


def escape(line: str) -> str:
    """Return a line of prose in which nothing is a command; `name` is code."""
    line = re.sub(r"[\\@<>#%&]", r"\\\g<0>", line)
    return re.sub(r"`([^`]*)`", r"<tt>\1</tt>", line)


def documented(text: str) -> str:
    """Return a part of the header without section lines, with its comments as documentation."""
    out, at = [], 0
    for found in COMMENT.finditer(text):
        out.append(text[at : found.start()])
        at = found.end()
        words = body(found[0])
        if text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip():
            out.append(f"/**< {words} */")
            continue
        shared = SHARED.match(text, at)
        each = split(shared[0]) if shared else [""]
        out.append("\n".join(f"/** {words} */{declaration}" for declaration in each))
        at = shared.end() if shared else at
    return "".join([*out, text[at:]])


def split(shared: str) -> list[str]:
    """Return the single declarations of those that share a comment, each with its line's
    beginning."""
    several = re.fullmatch(r"(\n +\w+) (\w+), (\w+);", shared)
    if several:
        return [f"{several[1]} {name};" for name in several.groups()[1:]]
    return ["\n" + line for line in re.findall(r"DDL_API [^;]*;|#define [^\n]*", shared)]


def spread(text: str) -> str:
    """Move comments on enumerators to where Doxygen looks for them: a comment on its own line, to
    each of the enumerators down to the next blank line. Write an enum without a name as constants,
    since the site would name it by a number."""

    def constants(found: re.Match[str]) -> str:
        comment = found[2] or ""
        return "\n".join(f"static const int {each};{comment}" for each in found[1].split(", "))

    text = re.sub(r"^enum \{ (.*) \};( /\*.*?\*/)?$", constants, text, flags=re.MULTILINE)

    def each(found: re.Match[str]) -> str:
        for_all = found[1].strip("/* ")
        lines = re.findall(r"( +DDL_\w+ = -?\d+,?)(?: +/\* (.*) \*/)?\n", found[2])
        return "".join(
            f"    /* {own[:1].upper()}{own[1:]}{'. ' * bool(own)}{for_all} */\n{line}\n"
            for line, own in lines
        )

    return re.sub(r"^    (/\*.*?\*/)\n((?:    DDL_\w+ = .*\n)+)", each, text, flags=re.MULTILINE)


def sections(header: str) -> list[tuple[str, str]]:
    """Return (name, text) of each section; the first, without a name, is the text before them."""
    parts = SECTION.split(header)
    return [("", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]


def alone(text: str) -> list[str]:
    """Return the comments that belong to no declaration: a blank line or nothing follows them."""
    found = re.findall(r"^(/\*(?:(?!\*/).)*\*/)\n(?=\s*\n|$)", text, re.DOTALL | re.MULTILINE)
    return [comment for comment in found if not MARK.fullmatch(comment)]


def filtered(header: str, name: str) -> str:
    """Return the whole header in the form for Doxygen."""
    out = []
    for section, text in sections(header):
        text = spread(MARK.sub("", text))
        for field, meaning in FIELDS.items():
            text = re.sub(rf"^(    \w+ {field};)$", rf"\1 /* {meaning} */", text, flags=re.M)
        if not section:  # the file's own comment comes first
            rest = text.removeprefix(COMMENT.findall(text)[0])
            out.append(
                f"/** @file {name}\n * {body(COMMENT.findall(text)[0])} */{documented(rest)}"
            )
            continue
        intro = alone(text)
        for comment in intro:
            text = text.replace(comment, "", 1)
        words = "\n *\n * ".join(map(body, intro))
        out.append(f"/** @defgroup {section} {section.capitalize()}\n{words}\n@{{ */\n")
        out.append(
            documented(text).replace("\n#ifdef __cplusplus", "\n/** @} */\n#ifdef __cplusplus")
        )
        if "#ifdef __cplusplus" not in text:
            out.append("/** @} */\n")
    return "".join(out)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.stdout.write(filtered(path.read_text(), path.name))
