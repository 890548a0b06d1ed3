# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in S3, with the real server moto in a separate process."""

import json
import os
import random
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import clean_environment

from ddl_elastic.frameworks.protocol import State, Tensor, digest
from ddl_elastic.storage import checkpoint, saving
from ddl_elastic.storage.checkpoint import DamagedCheckpoint, Manifest
from ddl_elastic.storage.object_storage import ObjectStorage, storage_at

PROGRAM = Path(__file__).parent / "programs" / "train.py"
KEY, SECRET, TOKEN = (
    "AKIA5UDAFFAEDASVQUZD",
    "ru2Xeeyohs7Ooph7EiC5quaiphaeR4ooSh8eemai",
    "aeP0ieng1o",
)
SECRETS = (KEY, SECRET, TOKEN)
BUCKET = "checkpoints"
LIMIT = 60  # seconds


class Server:
    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        with open(self._log, "wb") as log:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        while not (found := re.search(r"Running on (http://\S+:\d+)", self._log.read_text())):
            with pytest.raises(subprocess.TimeoutExpired):  # it is alive
                self._process.wait(0.05)
        self.environment = {
            "AWS_ENDPOINT_URL": found[1],
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": TOKEN,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def requests(self) -> list[str]:
        return re.findall(r'"([A-Z]+ \S+) HTTP', self._log.read_text())

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        started = Server(tmp_path_factory.mktemp("server"))
        for name, value in started.environment.items():
            patch.setenv(name, value)
        files(f"s3://{BUCKET}").mkdir(BUCKET)
        yield started
        started.close()


def files(url: str) -> Any:
    return ObjectStorage(url)._open()[0]


def make_state(value: float) -> State:
    data = [np.full(400, value + n, np.float32).view(np.uint8) for n in range(3)]
    return {f"w{n}": Tensor("float32", (400,), each) for n, each in enumerate(data)}


def save(storage: ObjectStorage, steps: int) -> Manifest:
    state, named = make_state(steps), []
    for chunk in checkpoint.cut(state, 2000):
        data = checkpoint.pack(state, chunk)
        named.append((checkpoint.file_name(data), chunk))
        storage.write(named[-1][0], data)
    tensors = {name: (each.dtype, each.shape) for name, each in state.items()}
    manifest = Manifest(steps, {"seed": 1}, tensors, named)
    storage.write(manifest.name, manifest.pack())
    return manifest


def test_objects(server: Server) -> None:
    storage = ObjectStorage(f"s3://{BUCKET}/objects/")
    assert storage.names() == []
    storage.write("a", b"first")
    storage.write("a", np.arange(3, dtype=np.uint8).data)
    storage.write("b", b"")
    assert sorted(storage.names()) == ["a", "b"]
    assert storage.read("a") == bytes([0, 1, 2])
    ObjectStorage(f"s3://{BUCKET}/objects").remove("a")
    assert storage.names() == ["b"]
    storage.remove("a")
    with pytest.raises(FileNotFoundError, match=f"s3://{BUCKET}/objects/a: cannot be read"):
        storage.read("a")


@pytest.mark.parametrize("harm", ["torn", "changed", "missing"])
def test_damage_is_found(server: Server, harm: str) -> None:
    storage = ObjectStorage(f"s3://{BUCKET}/{harm}")
    save(storage, 1)
    newest = save(storage, 2)
    file = newest.chunks[1][0]
    data = storage.read(file)
    if harm == "missing":
        storage.remove(file)
    else:
        storage.write(file, data[:-5] if harm == "torn" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedCheckpoint, match=file):
        checkpoint.read_state(storage, newest)
    found = saving.newest(storage, {"seed": 1})
    assert found
    assert (found[0].steps, digest(found[1])) == (1, digest(make_state(1)))


def test_a_manifest_is_put_at_once(server: Server) -> None:
    save(ObjectStorage(f"s3://{BUCKET}/once"), 7)
    puts = [each for each in server.requests() if "/once/" in each and not each.startswith("GET")]
    assert [each.split()[0] for each in puts] == ["PUT"] * 4
    assert "/once/steps-000000000007.json" in puts[-1]


def test_errors_tell_the_place_and_the_bytes(server: Server) -> None:
    storage = ObjectStorage("s3://nobody-has-made-it/job")
    with pytest.raises(OSError, match="s3://nobody-has-made-it/job: cannot be listed"):
        storage.names()
    with pytest.raises(OSError, match="s3://nobody-has-made-it/job/a: 3 bytes cannot be written"):
        storage.write("a", b"abc")


@pytest.mark.parametrize("url", [f"s3://{KEY}:{SECRET}@bucket/job", f"s3://bucket?key={SECRET}"])
def test_keys_are_no_part_of_a_url(url: str) -> None:
    with pytest.raises(ValueError, match="a URL of s3 with a key or options in it") as caught:
        storage_at(url)
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_folders_need_no_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    storage_at(str(tmp_path)).write("name", b"data")
    assert (tmp_path / "name").read_bytes() == b"data"
    with pytest.raises(ImportError, match=r"s3://a/b, which needs fsspec .* pip install"):
        storage_at("s3://a/b")


def test_checkpoint_without_safetensors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a job could write its checkpoints, but could not resume from them."""
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"needs safetensors: pip install 'libddl\[elastic\]'"):
        storage_at(str(tmp_path))


class Overloaded(BaseHTTPRequestHandler):
    """A store that accepts only every second object."""

    protocol_version = "HTTP/1.1"  # it sends "100 Continue"
    server: "OverloadedServer"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests += 1
        self.send_response(503 if self.server.requests % 2 else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()


class OverloadedServer(ThreadingHTTPServer):
    requests = 0


@pytest.fixture
def overloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[OverloadedServer]:
    with OverloadedServer(("127.0.0.1", 0), Overloaded) as started:
        thread = Thread(target=started.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{started.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield started
        started.shutdown()
        thread.join(LIMIT)


@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
def test_retries_draw_no_random_number_of_the_program(
    overloaded: OverloadedServer, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Retries wait for a random time. Samples are random, too, and must not depend on the store."""
    monkeypatch.setenv("AWS_RETRY_MODE", mode)
    state = random.getstate()
    ObjectStorage(f"s3://{BUCKET}/retries").write("a", b"data")
    assert overloaded.requests == 2
    drawn = random.getstate() != state
    assert not drawn


def test_libraries_have_a_generator_of_their_own(server: Server) -> None:
    ObjectStorage(f"s3://{BUCKET}/generators").write("a", b"data")  # which loads all that it needs
    names = {"aiobotocore", "aiohttp", "botocore", "fsspec", "gcsfs", "s3fs", "urllib3"}
    loaded = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in names and isinstance(module, ModuleType)
    ]
    assert {"aiobotocore", "aiohttp", "botocore", "s3fs"} <= {module.__name__ for module in loaded}
    assert not [module.__name__ for module in loaded if random in vars(module).values()]


def commands(ancestor: int) -> dict[int, bytes]:
    found, parents = {}, {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(each.name)] = (each / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
    own = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return {pid: found[pid] for pid in own & found.keys()}


def train(
    server: Server, folder: Path, *cases: dict[str, Any]
) -> tuple[list[Any], str, dict[int, bytes]]:
    texts = [json.dumps(case) for case in cases]
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, PROGRAM, *texts],
            cwd=folder,
            env=clean_environment({"DDL_LOG": "debug", **server.environment}),
            stdout=out,
            stderr=err,
        )
    seen: dict[int, bytes] = {}
    ended = os.pidfd_open(process.pid)
    while not select.select([ended], [], [], 0.1)[0]:
        seen |= commands(process.pid)
    os.close(ended)
    shown = (folder / "err").read_text()
    assert process.wait() == 0, shown
    printed = (folder / "out").read_text()
    return [json.loads(line) for line in printed.splitlines()], printed + shown, seen


@pytest.mark.slow
def test_a_job_is_resumed(server: Server, tmp_path: Path) -> None:
    saved = {"checkpoint": f"s3://{BUCKET}/job", "every": 10, "passes": 12}
    killed = {**saved, "workers": 3, "kill": [[20, 0], [20, 1], [20, 2]], "changes": 0}
    alone = {"workers": 1, "passes": 12}
    reports, shown, seen = train(server, tmp_path, killed, {**saved, "workers": 2}, alone)
    assert [each["state"] for each in reports] == ["failed", "done", "done"]
    assert reports[1]["hash"] == reports[2]["hash"]
    assert re.search(r"resumed after [1-7]0 steps", shown)
    assert len(seen) > 3  # the caller, a fork server, agents and workers
    storage = ObjectStorage(f"s3://{BUCKET}/job")
    names = storage.names()
    assert len([name for name in names if name.startswith("steps-")]) == 3
    stored = b"".join(name.encode() + storage.read(name) for name in names)
    for secret in SECRETS:
        assert secret not in shown
        assert secret.encode() not in stored
        assert not any(secret.encode() in each for each in seen.values())
