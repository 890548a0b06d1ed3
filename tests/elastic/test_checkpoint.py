# SPDX-License-Identifier: Apache-2.0
"""Checkpoints have the same chunks for any number of ranks, and damaged ones are never loaded."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_elastic.frameworks.protocol import State, Tensor, digest
from ddl_elastic.storage import checkpoint, saving
from ddl_elastic.storage.checkpoint import DamagedCheckpoint, Folder, Manifest

pytestmark = pytest.mark.pure

DTYPES = {"float32": np.float32, "bfloat16": np.uint16, "int64": np.int64, "float": np.float64}


def make_state(sizes: list[int], seed: int = 0) -> State:
    random = np.random.default_rng(seed)
    state = {}
    for number, size in enumerate(sizes):
        dtype, kind = list(DTYPES.items())[number % len(DTYPES)]
        data = random.integers(0, 256, size * np.dtype(kind).itemsize, np.uint8)
        state[f"model.{number}"] = Tensor(dtype, (size,), data)
    state["model.a[0].b"] = Tensor("float32", (1,), np.zeros(4, np.uint8))  # like some names
    state["scalar"] = Tensor("float32", (), np.zeros(4, np.uint8))
    return state


def save(folder: Folder, state: State, steps: int, limit: int = 1000) -> Manifest:
    files = []
    for chunk in checkpoint.cut(state, limit):
        data = checkpoint.pack(state, chunk)
        files.append((checkpoint.file_name(data), chunk))
        folder.write(files[-1][0], data)
    tensors = {name: (each.dtype, each.shape) for name, each in state.items()}
    manifest = Manifest(steps, {"batch": 8}, tensors, files)
    folder.write(manifest.name, manifest.pack())
    return manifest


@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(1, 2000))
def test_chunks_are_the_whole_state(sizes: list[int], limit: int) -> None:
    state = make_state(sizes)
    chunks = checkpoint.cut(state, limit)
    for chunk in chunks:
        assert sum(piece.end - piece.begin for piece in chunk) <= limit
    pieces = [piece for chunk in chunks for piece in chunk]
    for name, tensor in state.items():
        own = [piece for piece in pieces if piece.name == name]
        ends = [0, *(piece.end for piece in own)]
        assert [piece.begin for piece in own] == ends[:-1]
        assert ends[-1] == tensor.data.nbytes


@pytest.mark.parametrize("limit", [7, 1000, 1 << 20])
def test_a_state_comes_back(tmp_path: Path, limit: int) -> None:
    folder, state = Folder(tmp_path), make_state([100, 0, 700, 3, 5])
    manifest = save(folder, state, 12, limit)
    found = checkpoint.read_manifest(folder, manifest.name)
    assert found == manifest
    loaded = checkpoint.read_state(folder, found)
    assert digest(loaded) == digest(state)


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    state = make_state([4])
    save(Folder(tmp_path), state, 1)
    (file,) = tmp_path.glob("*.safetensors")
    assert load_file(file)["model.0"].tobytes() == state["model.0"].data.tobytes()
    assert load_file(file)["model.0"].dtype == np.float32


@pytest.mark.parametrize("harm", ["torn", "changed", "missing"])
@pytest.mark.parametrize("what", ["*.safetensors", "*.json"])
def test_damage_is_found(tmp_path: Path, what: str, harm: str) -> None:
    folder, state = Folder(tmp_path), make_state([500, 500])
    manifest = save(folder, state, 3)
    file = next(iter(tmp_path.glob(what)))
    data = file.read_bytes()
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-5] if harm == "torn" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedCheckpoint, match=file.name):
        checkpoint.read_state(folder, checkpoint.read_manifest(folder, manifest.name))


def test_old_ones_are_removed_but_not_what_others_need(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    states = [make_state([300, 300], seed=0), make_state([300, 300], seed=1)]
    states.append({**states[1], "model.0": states[0]["model.0"]})  # has a chunk of the first one
    for steps, state in enumerate(states):
        save(folder, state, steps, limit=1200)
    checkpoint.clean(folder, keep=2)
    names = checkpoint.manifests(folder)
    assert names == ["steps-000000000002.json", "steps-000000000001.json"]
    for name, state in zip(names, states[:0:-1], strict=True):
        manifest = checkpoint.read_manifest(folder, name)
        assert digest(checkpoint.read_state(folder, manifest)) == digest(state)
    needed = {file for n in names for file, _ in checkpoint.read_manifest(folder, n).chunks}
    assert {file.name for file in tmp_path.glob("*.safetensors")} == needed


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """os.fsync fails as on a full disk; test_disk_full.py has a real one."""
    folder = Folder(tmp_path)

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="4 bytes cannot be written: No space left .*/name"):
        folder.write("name", b"data")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_this_machine_does_not_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jobs.db.jobs" / "1"  # made by the service before the first worker starts
    monkeypatch.setenv("DDL_ELASTIC_CHECKPOINTS", str(folder / "checkpoints"))
    with pytest.raises(ValueError, match="must be on a file system that all machines share"):
        saving.policy_find(None, 1, 1)
    assert not folder.exists()
    folder.mkdir(parents=True)
    assert saving.policy_find(None, 1, 1)
