"""python -m bench COMMAND ...: see COMMANDS."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence

from bench.cases import UsageError

# A module of this package each, with main(argv) -> exit code.
COMMANDS = {
    "creation": "how long it takes to join and to make groups, libddl beside Gloo",
    "collectives": "time and bandwidth of operations, libddl beside other libraries",
    "targets": "libddl's targets: what is wanted, what was measured",
    "training": "training steps per second, and how much of the communication is hidden",
}


def usage() -> str:
    """What there is."""
    lines = [f"  {name:13}{what}" for name, what in COMMANDS.items()]
    head = "usage: python -m bench COMMAND [OPTION ...], in the project's folder"
    return "\n".join([head, "", *lines, "", "COMMAND --help tells more."])


def main(argv: Sequence[str]) -> int:
    """Run a command; the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        print(f"bench: no command {argv[0]!r}\n{usage()}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: ranks are ended
    try:
        return int(importlib.import_module(f"bench.{argv[0]}").main(argv[1:]))
    except UsageError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
