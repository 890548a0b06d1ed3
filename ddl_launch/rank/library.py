# SPDX-License-Identifier: Apache-2.0
"""The version of libddl that a host has, read from its files, and the comparison of two hosts.

Scripts import this module, so it imports no other module of the project.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re

# libddl/src/api/api_comm.c has this text.
_IDENTITY = re.compile(rb"libddl (\d+\.\d+\.\d+), (ABI \d+, protocol \d+)\0")


def identify_library() -> dict[str, str]:
    """Describe the libddl in the ddl_core next to this package.

    version  such as "0.2.0"; "of an unknown version" if its files name none; "" without a library
    speaks   such as "ABI 1, protocol 11"; "" if unknown
    build    the processor, and a digest of the library and of its compiled Python modules
    """
    packages = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    core = os.path.join(packages, "ddl_core")
    version, speaks = "", ""
    digest = hashlib.sha256()
    for path in sorted(glob.glob(f"{glob.escape(core)}/**/*.so*", recursive=True)):
        with open(path, "rb") as file:
            data = file.read()
        digest.update(data)
        identity = _IDENTITY.search(data)
        if identity:
            version, speaks = identity[1].decode(), identity[2].decode()
        version = version or "of an unknown version"
    build = f"{os.uname().machine} {digest.hexdigest()[:12]}" if version else ""
    return {"version": version, "speaks": speaks, "build": build}


def describe_library(library: dict[str, str]) -> str:
    """Return a text such as "libddl 0.2.0 (ABI 1, protocol 11)"."""
    if not library["version"]:
        return "no libddl next to ddlrun"
    return f"libddl {library['version']} ({library['speaks'] or 'unknown ABI and protocol'})"


def compare_libraries(first: str, one: dict[str, str], second: str, other: dict[str, str]) -> str:
    """Return a note that the two hosts have different builds that work together, or "" if the
    builds are equal or for different processors."""
    machines = {library["build"].partition(" ")[0] for library in (one, other)}
    if one["build"] == other["build"] or (len(machines) > 1 and one["version"] == other["version"]):
        return ""
    return (
        f"{first} has {describe_library(one)}, build {one['build']}, and {second} has"
        f" {describe_library(other)}, build {other['build']}: they work together"
    )
