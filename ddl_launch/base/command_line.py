# SPDX-License-Identifier: Apache-2.0
"""Support for the parsers of both commands: shell completion, suggestions for misspelt words."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Collection

_ALIKE = 0.75  # how similar a suggestion must be, from 0 to 1
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)$", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)$", re.DOTALL)


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell's request for completions, and exit. If there is no such request, return
    without importing argcomplete."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def find_similar(word: str, known: Collection[str]) -> str:
    """Return the known option or command that `word` resembles most, or "" if none does.

    The number of dashes is ignored, and so is the difference between - and _.
    """
    plain = {_plain(each): each for each in known if len(_plain(each)) > 2}
    found = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=_ALIKE)
    return plain[found[0]] if found else ""


def with_suggestion(message: str, options: Collection[str]) -> str:
    """Return a message of argparse, with a suggestion if an option or a choice is misspelt."""
    similar = ""
    if found := _UNKNOWN.search(message):
        words = (word.partition("=")[0] for word in found[1].split())
        similar = next(
            (near for word in words if word[0] == "-" and (near := find_similar(word, options))), ""
        )
    elif found := _CHOICE.search(message):
        similar = find_similar(found[1], [word.strip("' ") for word in found[2].split(",")])
    return f"{message}: did you mean {similar}?" if similar else message


def _plain(word: str) -> str:
    return word.lstrip("-").replace("_", "-")
