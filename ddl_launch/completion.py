# SPDX-License-Identifier: Apache-2.0
"""Completion of command lines in shells, by argcomplete."""

from __future__ import annotations

import argparse
import os


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end. Else return: argcomplete is imported only
    when it asks."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
