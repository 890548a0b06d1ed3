# SPDX-License-Identifier: Apache-2.0
"""States in storage: chunks named by their hashes, and a manifest that lists the chunks.

A state is cut into chunks of at most CHUNK bytes, independent of the number of ranks. Any rank can
therefore write any chunk, and an unchanged chunk already exists. A chunk is a safetensors file. The
manifest is written last: without a complete manifest and all of its chunks there is no checkpoint.
All data are compared with their hashes when they are read; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ddl_elastic.frameworks.protocol import State, Tensor

CHUNK = 64 << 20  # bytes

# The names of NumPy's types in safetensors. Tensors of other types are stored as bytes.
_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
}
Bytes = npt.NDArray[np.uint8]
_FORMAT = 1


class DamagedCheckpoint(ValueError):
    """Error: a manifest or chunk is missing, incomplete, or does not match its hash. `file` is the
    chunk that does not match."""

    def __init__(self, text: str, file: str = "") -> None:
        super().__init__(text)
        self.file = file


@dataclass(frozen=True)
class Piece:
    """A range of one tensor's bytes in a chunk."""

    name: str
    begin: int
    end: int


Chunk = tuple[Piece, ...]
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]  # type and shape, by name


class Storage(Protocol):
    """A place for checkpoints: a flat set of named files."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file durably, and completely or not at all. Raises OSError, which names the place
        and the number of bytes."""

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError, or another OSError if the file may exist."""

    def names(self) -> list[str]: ...

    def remove(self, name: str) -> None: ...

    def remove_unfinished(self) -> None:
        """Remove partial files of killed writers. No rank may write at the same time."""


class Folder:
    """A folder of a local or a network file system."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes | memoryview) -> None:
        unfinished = self._path / f".{name}.{socket.gethostname()}.{os.getpid()}"
        try:
            with open(unfinished, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._path / name)
            self._sync()
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            why = f"{len(data)} bytes cannot be written: {error.strerror}"
            raise OSError(error.errno, why, str(self._path / name)) from error

    def _sync(self) -> None:
        """Make the file names durable."""
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def names(self) -> list[str]:
        return [each.name for each in self._path.iterdir() if not each.name.startswith(".")]

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        for pattern in (".*.safetensors.*", ".*.json.*", ".probe-*", ".job-*"):
            for unfinished in self._path.glob(pattern):
                unfinished.unlink(missing_ok=True)


# ---- chunks ----


def cut(state: State, limit: int = CHUNK) -> list[Chunk]:
    """Cut a state into chunks, which depend only on its tensors' names and sizes."""
    chunks: list[list[Piece]] = [[]]
    room = limit
    for name, tensor in sorted(state.items()):
        begin, size = tensor.begin, tensor.begin + tensor.data.nbytes
        while begin < size or begin == tensor.begin:
            if not room:
                chunks.append([])
                room = limit
            end = min(size, begin + room)
            chunks[-1].append(Piece(name, begin, end))
            room -= end - begin
            if end == size:
                break
            begin = end
    return [tuple(chunk) for chunk in chunks if chunk]


def pack(state: State, chunk: Chunk) -> memoryview:
    """Return a chunk as a safetensors file. A tensor that is in one piece keeps its type and shape.
    Copies the data once, in NumPy, so that other Python threads can run."""
    head: dict[str, Any] = {}
    parts, end = list[Bytes](), 0
    for piece in chunk:
        tensor = state[piece.name]
        parts.append(as_bytes(tensor)[piece.begin - tensor.begin : piece.end - tensor.begin])
        begin, end = end, end + parts[-1].size
        is_whole = tensor.dtype in _TYPES and parts[-1].size == _size(tensor)
        head[piece.name if is_whole else _part_name(piece)] = {
            "dtype": _TYPES[tensor.dtype] if is_whole else "U8",
            "shape": tensor.shape if is_whole else parts[-1].shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    text = struct.pack("<Q", len(text)) + text
    file = np.empty(len(text) + end, np.uint8)
    np.concatenate([np.frombuffer(text, np.uint8), *parts], out=file)
    return file.data


def _size(tensor: Tensor) -> int:
    """Return the size of a whole tensor in bytes."""
    return math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize


def _part_name(piece: Piece) -> str:
    return f"{piece.name}[{piece.begin}:{piece.end}]"


def _unpack(data: bytes, chunk: Chunk) -> Iterator[tuple[Piece, bytes]]:
    from safetensors.numpy import load

    found = load(data)
    for piece in chunk:
        part = _part_name(piece)
        yield piece, found[part if part in found else piece.name].tobytes()


def as_bytes(tensor: Tensor) -> Bytes:
    return tensor.data.reshape(-1).view(np.uint8)


def file_name(data: bytes | memoryview) -> str:
    return f"{hashlib.sha256(data).hexdigest()}.safetensors"


# ---- manifests ----


@dataclass(frozen=True)
class Manifest:
    """The manifest of a checkpoint: the state after `steps` steps, as a list of chunk files."""

    steps: int
    constants: Mapping[str, Any]
    tensors: Tensors
    chunks: Sequence[tuple[str, Chunk]]  # the files, and the contents of each

    @property
    def name(self) -> str:
        return manifest_name(self.steps)

    @property
    def description(self) -> str:
        """A text that identifies the checkpoint."""
        return f"after {self.steps} steps ({hashlib.sha256(self.pack()).hexdigest()[:16]})"

    def pack(self) -> bytes:
        fields = {
            "format": _FORMAT,
            "steps": self.steps,
            "constants": dict(self.constants),
            "tensors": {name: [kind, list(shape)] for name, (kind, shape) in self.tensors.items()},
            "chunks": [
                [file, [[each.name, each.begin, each.end] for each in chunk]]
                for file, chunk in self.chunks
            ],
        }
        text = json.dumps(fields, sort_keys=True).encode()
        return json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n" + text


def manifest_name(steps: int) -> str:
    """Return the name of the manifest of a checkpoint after `steps` steps."""
    return f"steps-{steps:012}.json"


def read_manifest(storage: Storage, name: str) -> Manifest:
    """Read a manifest. Raises DamagedCheckpoint, or OSError if the manifest may be intact."""
    try:
        head, _, text = storage.read(name).partition(b"\n")
        if json.loads(head)["sha256"] != hashlib.sha256(text).hexdigest():
            raise DamagedCheckpoint(f"{name} is incomplete or was changed")
        fields = json.loads(text)
        if fields["format"] != _FORMAT:
            raise DamagedCheckpoint(f"{name} has format {fields['format']}, not {_FORMAT}")
        return Manifest(
            fields["steps"],
            fields["constants"],
            {each: (kind, tuple(shape)) for each, (kind, shape) in fields["tensors"].items()},
            [(file, tuple(Piece(*piece) for piece in chunk)) for file, chunk in fields["chunks"]],
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DamagedCheckpoint):
            raise
        raise DamagedCheckpoint(f"{name} cannot be read: {error}") from error


def manifests(storage: Storage) -> list[str]:
    """Return the names of all manifests, the newest first."""
    return sorted((n for n in storage.names() if n.startswith("steps-")), reverse=True)


# ---- complete states ----


def read_state(storage: Storage, manifest: Manifest) -> State:
    """Read a state. Raises DamagedCheckpoint, or OSError if the state may be intact."""
    parts: dict[str, dict[int, bytes]] = {name: {} for name in manifest.tensors}
    for file, chunk in manifest.chunks:
        try:
            data = storage.read(file)
        except FileNotFoundError as error:
            raise DamagedCheckpoint(f"{manifest.name}: {file} cannot be read: {error}") from error
        if file_name(data) != file:
            raise DamagedCheckpoint(f"{manifest.name}: {file} is incomplete or was changed", file)
        for piece, part in _unpack(data, chunk):
            parts[piece.name][piece.begin] = part
    return {
        name: Tensor(kind, shape, _join(parts[name]))
        for name, (kind, shape) in manifest.tensors.items()
    }


def _join(parts: Mapping[int, bytes]) -> Bytes:
    """Join the parts of a tensor into one array. `parts` maps the position of each part to its
    bytes."""
    return np.frombuffer(b"".join(part for _, part in sorted(parts.items())), np.uint8)


def clean(storage: Storage, keep: int, saved: int = 0, needed: Sequence[int] = ()) -> None:
    """Remove all checkpoints but the newest `keep` and the needed ones. Then remove the chunks that
    no remaining checkpoint uses. Removes nothing if a manifest cannot be read now.

    saved   steps of the checkpoint just written, or 0. Checkpoints with more steps are removed,
            too, because the job did not resume from them
    needed  for each number in it, keep the newest checkpoint with at most that many steps
    """
    names, kept, chunks, wanted = manifests(storage), list[str](), set[str](), {*needed}
    for name in names:
        steps = steps_of(name)
        if (len(kept) < keep or steps <= max(wanted, default=-1)) and not 0 < saved < steps:
            try:
                manifest = read_manifest(storage, name)
            except DamagedCheckpoint:
                continue
            except OSError:
                return
            kept.append(name)
            wanted = {each for each in wanted if each < steps}
            chunks.update(file for file, _ in manifest.chunks)
    for name in set(names) - set(kept):
        storage.remove(name)
    for name in storage.names():
        if name.endswith(".safetensors") and name not in chunks:
            storage.remove(name)
    storage.remove_unfinished()


def steps_of(name: str) -> int:
    """Return the number of steps after which the checkpoint of this manifest was written."""
    return int(name.removeprefix("steps-").removesuffix(".json"))
