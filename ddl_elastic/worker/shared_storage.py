# SPDX-License-Identifier: Apache-2.0
"""The check that all ranks write checkpoints to the same storage.

Hosts without a common file system have folders of the same name. Each rank would write its part of
a checkpoint to its own host, and no checkpoint would ever be complete. The names of the files have
a random token. An earlier job may have left its files in both folders.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from ddl_core import Comm
from ddl_elastic.frameworks.protocol import Array, Share
from ddl_elastic.step.admission import AdmissionError
from ddl_elastic.step.reform import RankProgress
from ddl_elastic.step.step import RankGroup
from ddl_elastic.storage.checkpoint import Storage
from ddl_elastic.storage.saving import Saver

OPERATIONS = 4  # the number of operations of all ranks in `check`
NEEDED = (
    "All hosts need the same folder, on a network file system, or object storage such as"
    " s3://bucket/prefix"
)


def check(
    saver: Saver,
    group: RankGroup,
    agree: Callable[[Callable[[int], Share], list[Array], str], list[Array]],
    finish: Callable[[bool], bool],
) -> None:
    """Check that all ranks find a file that the first rank has written. All ranks call it.

    Raises RuntimeError on all ranks if one of them does not find it, and only on that one if it has
    no shares. Checks nothing if a rank with shares cannot write, which the first checkpoint will
    report.

    agree, finish  see Loop
    """
    # No rank has looked for a file of this name before, so no client of a network file system has
    # cached that it does not exist.
    (token,) = agree(lambda _: [np.array([float(secrets.randbits(40))])], [np.zeros(1)], "sum")
    storage, saver.token = saver.storage, int(token[0])
    probe = f"probe-{saver.token}"
    own = f"{probe}-{group.member}"
    is_checked = not finish(not _write(storage, own) or not _write(storage, saver.mark))
    if not is_checked:
        saver.token = 0
    first = group.members[0]
    is_apart = is_checked and not _exists(storage, f"{probe}-{first}")
    any_apart = finish(is_apart)
    with suppress(OSError):
        storage.remove(own)
    if is_apart:
        raise RuntimeError(
            f"rank {group.member} does not find the checkpoint files that rank {first} writes."
            f" {NEEDED}"
        )
    if any_apart:
        raise RuntimeError(f"other ranks do not find this rank's checkpoint files. {NEEDED}")


def share_token(
    comm: Comm, ranks: Sequence[RankProgress], token: int = 0, limit: float | None = None
) -> int:
    """Return the token of the first rank that has the state. All ranks call it. Raises TimedOut if
    one of them does not within `limit` seconds (None: no limit)."""
    found, root = np.array([token]), next(rank for rank, each in enumerate(ranks) if each.whole)
    comm.broadcast_async(found, root).wait(limit)
    return int(found[0])


def check_joining(saver: Saver, member: int) -> None:
    """Check that a joining worker can see the job's checkpoint files. Raises AdmissionError if it
    cannot. Does nothing if the job's first ranks could not write to the storage."""
    if saver.token and not _exists(saver.storage, saver.mark):
        raise AdmissionError(
            f"rank {member} cannot join: it does not find the job's checkpoint files. {NEEDED}"
        )


def _write(storage: Storage, name: str) -> bool:
    try:
        storage.write(name, b"")
    except OSError:
        return False
    return True


def _exists(storage: Storage, name: str) -> bool:
    """Return False if the file certainly does not exist."""
    try:
        storage.read(name)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # it may exist; the next checkpoint reports the error
    return True
