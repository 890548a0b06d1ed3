# SPDX-License-Identifier: Apache-2.0
"""The user whom a tenant's jobs run as, where the service is root's."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

from ddl_elastic.base import environment
from ddl_elastic.engines import agent


def user_find(name: str) -> pwd.struct_passwd:
    """Raises ValueError."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ValueError(f"there is no user {name!r} on this machine") from None
    if found.pw_uid == 0:
        raise ValueError(f"{name} is root, whose processes can do everything")
    return found


@contextmanager
def acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """What this process does meanwhile it does with the user's rights."""
    groups, group, own = os.getgroups(), os.getegid(), os.geteuid()
    os.initgroups(user.pw_name, user.pw_gid)
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(own)
        os.setegid(group)
        os.setgroups(groups)


def become(user: pwd.struct_passwd) -> None:
    """Make this process, a worker, the user's for good."""
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    agent.end_with_parent()  # which the kernel has forgotten
    os.umask(0o022)
    names = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    environment.give_variables({**names, "SHELL": user.pw_shell})
