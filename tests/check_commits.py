# SPDX-License-Identifier: Apache-2.0
"""Check the subjects of commits: `area: verb ...`, at most 65 characters, one topic.

    python tests/check_commits.py [RANGE]           of those since START unless a range is given
    python tests/check_commits.py --message FILE    as the hook commit-msg of git runs it

Merges and reverts have the subjects that git gives them. Commits before START are older than this.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START = "2026-11-29T03:00:00Z"  # a time, so that branches that were begun before it pass
LONGEST = 65
# No verb, so that what follows is a statement about the world and not what the commit does.
NO_VERBS = "a|an|the|what|who|how|each|all|no|one|of|it|its|those|some"
FORM = re.compile(rf"[a-z_0-9]+: (?!(?:{NO_VERBS})\b)[a-z]")
VAGUE = re.compile(r"\b(?:findings|various|mended|also)\b")


def faults(subject: str) -> list[str]:
    """Return what is wrong with a subject; empty if it is fine."""
    found = []
    if len(subject) > LONGEST:
        found.append(f"has {len(subject)} characters; at most {LONGEST}")
    if not FORM.match(subject):
        found.append("is not of the form `area: verb ...`, in small letters")
    if match := VAGUE.search(subject):
        found.append(f"has {match.group()!r}; name the one topic, or make two commits")
    return found


def subjects(commits: str, root: Path = ROOT) -> list[tuple[str, str]]:
    """Return the short hashes and subjects of a range or since a time, without merges.

    Returns nothing where git does not know the range, as in a shallow clone or a released tree.
    """
    log = ["git", "-C", str(root), "log", "--no-merges", "--format=%h %s", commits]
    listed = subprocess.run(log, capture_output=True, text=True)
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in listed.stdout.splitlines()]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--message"]:
        checked = [("this commit", Path(arguments[1]).read_text().split("\n", 1)[0])]
    else:
        checked = subjects(arguments[0] if arguments else f"--since={START}")
    checked = [each for each in checked if not each[1].startswith(("Merge ", "Revert "))]
    wrong = [f"{commit}: {text!r} {why}" for commit, text in checked for why in faults(text)]
    print("\n".join(wrong) or f"{len(checked)} subjects are fine")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
