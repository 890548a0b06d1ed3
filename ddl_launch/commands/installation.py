# SPDX-License-Identifier: Apache-2.0
"""The findings of `ddl doctor` about this installation: the library, its network interfaces, Python
packages, and the adapters' native parts."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.metadata
import importlib.util
import ipaddress
import os
import platform
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ddl_core
from ddl_core import native
from ddl_core.endpoint import Endpoint
from ddl_core.errors import DdlError, InvalidArgument, Unsupported
from ddl_core.frameworks import native_recipe
from ddl_core.joining.environment import detect, metrics_port
from ddl_launch.base.packages import find_version
from ddl_launch.commands.finding import Finding, note, ok, wrong

# The format of an endpoint's address, see libddl/src/comm/address.c.
_MAGIC, _FORMAT = 0x61644464, 3
_HEAD = struct.Struct("<IHQQQHBBBI")
_IP = struct.Struct("<BBB16sI16s")
_SLOW = 4  # times slower than the fastest interface

# The adapter, its framework's package, and the first part of its native part's folder name.
_ADAPTERS = (
    ("ddl_torch", "torch", "torch"),
    ("ddl_tensorflow", "tensorflow", "tensorflow"),
    ("ddl_jax", "jax", "jaxlib"),
)
_OTHERS = ("keras", "mpi4py")


@dataclass(frozen=True)
class Interface:
    """An address of a network interface; speed in Mbit/s, 0 if unknown."""

    name: str
    address: str
    speed: int
    loopback: bool

    def __str__(self) -> str:
        rate = f", {self.speed / 1000:g} Gbit/s" if self.speed else ""
        return f"{self.name} {self.address}{rate}"


def interfaces(address: bytes) -> list[Interface]:
    """Return the interfaces in an endpoint's address, in the order of use. Raises ValueError for
    another format."""
    try:
        magic, form, _, _, _, _, _, count, host, _ = _HEAD.unpack_from(address)
        if (magic, form) != (_MAGIC, _FORMAT):
            raise ValueError(f"addresses have format {form}, but ddl doctor reads format {_FORMAT}")
        found = []
        for i in range(count):
            at = _HEAD.size + host + i * _IP.size
            family, prefix, loopback, name, speed, raw = _IP.unpack_from(address, at)
            ip = ipaddress.ip_address(raw[:4] if family == 4 else raw)
            text = name.rstrip(b"\0").decode()
            found.append(Interface(text, f"{ip}/{prefix}", speed, bool(loopback)))
    except struct.error as error:
        raise ValueError(f"an address is truncated: {error}") from None
    return found


def libcrypto() -> Iterator[Finding]:
    """Check that libcrypto can be used, with which ranks prove that they know the job's secret."""
    try:
        with Endpoint(secret="doctor", host="127.0.0.1", ports="", sockets=1, encrypt=False):
            used = _mapped("libcrypto.so")
            yield ok("libcrypto", f"usable, {used}" if used else "usable")
    except Unsupported:
        yield wrong(
            "libcrypto",
            "libcrypto.so.3 is missing: a job with a secret cannot start",
            "install OpenSSL 3 (Debian: libssl3), or set DDL_SECRET= to use no secret",
        )
    except DdlError as error:
        yield wrong("libcrypto", str(error), "follow the message")


def ucx() -> Iterator[Finding]:
    """Report UCX and the RDMA devices. libddl uses UCX only if DDL_LINKS requests it."""
    folder = Path("/sys/class/infiniband")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    devices = f"RDMA devices: {', '.join(names) or 'none'}"
    try:
        library = ctypes.CDLL("libucp.so.0")
        library.ucp_get_version_string.restype = ctypes.c_char_p
        version = library.ucp_get_version_string().decode()
    except (OSError, AttributeError) as error:
        if names:
            yield note("UCX", f"not usable: {error}; {devices}", "install UCX (Debian: libucx0)")
        else:
            yield ok("UCX", f"not installed; {devices}")
        return
    used = "used" if "ucx" in os.environ.get("DDL_LINKS", "").split(",") else "not used"
    yield ok("UCX", f"{version}, {_mapped('libucp.so')}; {devices}; {used} (DDL_LINKS)")


def _mapped(name: str) -> str:
    """Return the mapped file of this process whose name begins with `name`, or ""."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if path.rpartition("/")[2].startswith(name):
            return f"/{path}"
    return ""


def network() -> Iterator[Finding]:
    """List the interfaces that libddl finds, and check the interfaces that it uses."""
    chosen_by = os.environ.get("DDL_INTERFACES", "")
    names = ",".join(name for _, name in socket.if_nameindex())
    try:
        with Endpoint(interfaces=names or None) as endpoint:
            there = interfaces(endpoint.address)
        with Endpoint() as endpoint:
            chosen = interfaces(endpoint.address)
    except (DdlError, ValueError) as error:
        change = (
            f'DDL_INTERFACES is "{chosen_by}": correct it' if chosen_by else "follow the message"
        )
        yield wrong("network", str(error), change)
        return
    fastest = max((i.speed for i in chosen), default=0)
    for interface in there:
        if interface not in chosen:
            yield ok("interface", f"{interface}, not used")
        elif 0 < interface.speed * _SLOW < fastest:
            yield note(
                *("interface", f"{interface}, much slower than the fastest"),
                f"DDL_INTERFACES=^{interface.name}, or find out why it is slow (ethtool)",
            )
        else:
            yield ok("interface", str(interface))
    because = f' (DDL_INTERFACES="{chosen_by}")' if chosen_by else ""
    outward = sorted({i.name for i in chosen if not i.loopback})
    if outward:
        yield ok("network", f"{', '.join(outward)} is used{because}")
    else:
        yield note(
            *("network", f"no other host can be reached, only loopback is used{because}"),
            "to use several hosts, bring an interface up (ip link) or correct DDL_INTERFACES",
        )


def environment(env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the launcher's variables."""
    try:
        world = detect(env)
        metrics_port(env)
    except InvalidArgument as error:
        yield wrong("environment", str(error), "correct or unset it")
        return
    if world.warning:
        yield note("environment", world.warning, "follow the message")
    else:
        rank = f"rank {world.rank} of {world.size}" if world.size else "a rank of an MPI's job"
        yield ok("environment", "not started by a launcher" if world.launcher == "alone" else rank)


def library() -> Iterator[Finding]:
    """Check the loaded libddl and the packages that it needs."""
    loaded, path = ddl_core.version(), Path(ddl_core.library_path())
    told = f"{loaded}, ABI {path.name}, {path.parent}"
    installed = find_version("libddl")
    if installed not in (None, loaded):
        yield wrong(
            *("libddl", f"{told}; but the package is {installed}"),
            "pip install --force-reinstall libddl",
        )
    else:
        yield ok("libddl", told)
    yield ok("Python", platform.python_version())
    for package in ("numpy", "cffi"):
        yield _package(package)


def frameworks() -> Iterator[Finding]:
    """Check the installed frameworks that have adapters, and the adapters' native parts."""
    for package in _OTHERS:
        if find_version(package):
            yield _package(package)
    for adapter, package, folder in _ADAPTERS:
        if find_version(package):
            yield _package(package)
            yield _native(adapter, folder)


def _native(adapter: str, folder: str) -> Finding:
    what = f"{adapter}'s native part"
    build = f"python -m {adapter} build"
    prebuilt = _prebuilt(adapter, folder)
    if prebuilt:
        return ok(what, f"prebuilt, {prebuilt}")
    try:
        cache = native.cache_folder() / adapter
        pattern = f"{folder}-{find_version(folder)}*-libddl-{ddl_core.version()}-*/*.so"
        if any(cache.glob(pattern)) and _is_built(adapter):
            return ok(what, f"built, in {cache}")
        compiler = " ".join(native.compiler())
    except native.BuildError as error:
        return wrong(what, f"not built, and cannot be built: {error}", f"after that, run {build}")
    return note(
        what, f"not built; the first use builds it, which may take minutes ({compiler})", build
    )


def _is_built(adapter: str) -> bool:
    """Return True if the cache contains the adapter's native part, built from exactly these
    sources."""
    return re.search(r"  built$", _info(adapter), re.MULTILINE) is not None


def _info(adapter: str) -> str:
    command = [sys.executable, "-m", adapter, "info"]  # imports the framework
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _prebuilt(adapter: str, folder: str) -> str:
    """Return the name of the native part that the adapter's wheel has for the installed framework
    and Python, or "" if it has none."""
    spec, framework = importlib.util.find_spec(adapter), importlib.util.find_spec(folder)
    if not (spec and spec.submodule_search_locations and framework and framework.origin):
        return ""
    if adapter == "ddl_jax":
        interface = native_recipe.xla_interface(Path(framework.origin).parent / "include")
        pattern = f"{interface}-*"
    else:
        abi = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
        pattern = f"{folder}-{str(find_version(folder)).partition('+')[0]}-*-{abi}-*"
    parts = Path(spec.submodule_search_locations[0], native_recipe.PREBUILT).glob(pattern)
    return next((part.name for part in parts), "")


def _package(name: str) -> Finding:
    """Compare the version of a package with the lowest one that libddl supports."""
    version, least = find_version(name), _least(name)
    if version is None:
        return wrong(name, "not installed", f"pip install {name}")
    if least and _numbers(version) < _numbers(least):
        return wrong(name, f"{version} is older than {least}", f"pip install '{name}>={least}'")
    return ok(name, version)


def _least(name: str) -> str | None:
    try:
        needs = importlib.metadata.requires("libddl") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (re.match(rf"{re.escape(name)}\s*>=\s*([\d.]+)", need) for need in needs)
    return next((match[1] for match in found if match), None)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]
