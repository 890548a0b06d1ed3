# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in S3 and other object stores, through fsspec.

An object store cannot rename, but it writes an object completely or not at all, so the manifest can
still be written last. The store's library finds keys and tokens itself (environment, configuration,
machine roles). They are never part of a location, so no message or file contains them.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from ddl_elastic.storage.checkpoint import Folder, Storage

NEEDED = "which needs fsspec and, for S3, s3fs: pip install 'libddl[s3]'"

_LIBRARIES = {"aiobotocore", "aiohttp", "botocore", "fsspec", "gcsfs", "s3fs", "urllib3"}


def storage_at(location: str) -> Storage:
    """Return the storage at a folder or URL such as s3://bucket/prefix. Raises ValueError, or
    ImportError if a package is missing, even if only reading needs it."""
    if not importlib.util.find_spec("safetensors"):
        raise ImportError(
            f"checkpoint is {location}, which needs safetensors: pip install 'libddl[elastic]'"
        )
    return ObjectStorage(location) if "://" in location else Folder(location)


class ObjectStorage:
    """The objects below a URL."""

    def __init__(self, url: str) -> None:
        protocol, _, rest = url.partition("://")
        if "@" in rest or "?" in rest:
            raise ValueError(
                f"checkpoint is a URL of {protocol} with a key or options in it, which messages"
                " would show; set them in the environment, as the store's library expects"
            )
        self._url = url.rstrip("/")
        self._opened: tuple[Any, str] | None = None
        try:
            import fsspec

            fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            raise ImportError(f"checkpoint is {url}, {NEEDED}: {error}") from error

    def _open(self) -> tuple[Any, str]:
        """Return the store and the path in it. The store has a thread, which does not survive a
        fork, so each process opens its own store."""
        if self._opened is None:
            import fsspec

            # Disable caches, so that objects of other processes are visible.
            options = {"skip_instance_cache": True, "use_listings_cache": False}
            self._opened = fsspec.core.url_to_fs(self._url, **options)
            _separate_generators()
        return self._opened

    def write(self, name: str, data: bytes | memoryview) -> None:
        with self._errors(name, f"{len(data)} bytes cannot be written"):
            files, root = self._open()
            files.pipe_file(f"{root}/{name}", bytes(data))

    def read(self, name: str) -> bytes:
        with self._errors(name, "cannot be read"):
            files, root = self._open()
            data: bytes = files.cat_file(f"{root}/{name}")
        return data

    def names(self) -> list[str]:
        with self._errors("", "cannot be listed"):
            files, root = self._open()
            try:
                found = files.ls(root, detail=False)
            except FileNotFoundError:
                files.info(root.split("/")[0])  # fails if the bucket does not exist
                found = []
        return [each.rsplit("/", 1)[-1] for each in found]

    def remove(self, name: str) -> None:
        with self._errors(name, "cannot be removed"), suppress(FileNotFoundError):
            files, root = self._open()
            files.rm_file(f"{root}/{name}")

    def remove_unfinished(self) -> None:
        """Do nothing: an object is put completely or not at all."""

    @contextmanager
    def _errors(self, name: str, what: str) -> Iterator[None]:
        """Convert errors of the store's library to OSError."""
        try:
            yield
        except Exception as error:
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
            where = f"{self._url}/{name}".rstrip("/")
            raise kind(f"{where}: {what}: {type(error).__name__}: {error}") from error


def _separate_generators() -> None:
    """Give the stores' libraries their own random generator. Otherwise they would draw from
    Python's generator whenever they repeat a request, in parallel with samples that have seeded it,
    and the bits of a job would depend on the load of the store."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _LIBRARIES and isinstance(module, ModuleType):
            _replace(module)
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    _replace(value)


def _replace(scope: ModuleType | type) -> None:
    """Replace the module `random` and its functions in a module or class: in its variables, and in
    the default arguments of its functions."""
    others = _replacements()
    for name, value in list(vars(scope).items()):
        if id(value) in others:
            setattr(scope, name, others[id(value)])
        elif isinstance(value, FunctionType) and value.__defaults__:
            value.__defaults__ = tuple(others.get(id(each), each) for each in value.__defaults__)


@cache
def _replacements() -> dict[int, Any]:
    """Return the replacement of the module `random` and of its functions, by their ids. They belong
    to a second instance of that module with its own generator."""
    spec = importlib.util.find_spec("random")
    assert spec is not None
    assert spec.loader is not None
    second = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(second)
    functions = {
        id(value): getattr(second, name)
        for name, value in vars(random).items()
        if isinstance(getattr(value, "__self__", None), random.Random)
    }
    return {id(random): second, **functions}
