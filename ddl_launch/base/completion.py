# SPDX-License-Identifier: Apache-2.0
"""Completion of command lines in shells, with argcomplete."""

from __future__ import annotations

import argparse
import os


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell's request for completions, and exit. Otherwise return without importing
    argcomplete."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
