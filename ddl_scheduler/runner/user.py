# SPDX-License-Identifier: Apache-2.0
"""The user that runs a tenant's jobs, if the service runs as root."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

from ddl_elastic.base import environment
from ddl_elastic.engines import agent


def user_find(name: str) -> pwd.struct_passwd:
    """Return the user of this name. Raises ValueError if it does not exist or is root."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ValueError(f"user {name!r} does not exist on this machine") from None
    if found.pw_uid == 0:
        raise ValueError(f"user {name} is root; choose a user without root's rights")
    return found


@contextmanager
def acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """Act with the user's rights in this context."""
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
    """Make this process, a worker, run as the user permanently."""
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    agent.end_with_parent()  # the kernel forgets it when the user changes
    os.umask(0o022)
    names = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    environment.give_variables({**names, "SHELL": user.pw_shell})
