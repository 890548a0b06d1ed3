# SPDX-License-Identifier: Apache-2.0
"""ddl_tensorflow: operations, gradients, graphs, and error messages."""

import contextlib
import importlib.util
import random
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Finished, Run

if importlib.util.find_spec("tensorflow") is None:  # an import takes seconds
    pytest.skip("there is no tensorflow", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("tensorflow_native")

PROGRAMS = Path(__file__).parent / "programs"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    return {**QUIET, "CXX": "no-such-compiler", "DDL_CACHE": str(tmp_path / "empty")}


# The lines that each program prints, and the lines among them that need a compiler.
PARTS = {
    "operations": (("eager", "graph", "jit", ""), "jit"),
    "graphs": (("function", "graph", "loops", "threads", "helpers"), "graph"),
    "tapes": (("eager", "graph", "jit", "second"), "jit"),
    "communicators": (
        ("eager", "graph", "jit", "members", "unequal", "both_at_once", "training", ""),
        "jit",
    ),
}


@pytest.mark.parametrize(
    ("programs", "size", "word"),
    [
        ("operations tapes graphs", 2, "sample"),  # some of the types and steps
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("operations", 2, "whole"), ("operations", 2, "interpreted")),
                *(("graphs", 3, "whole"), ("graphs", 3, "interpreted")),
                *(("tapes", 2, "whole"), ("tapes", 3, "interpreted")),
                *(("communicators", size, "whole") for size in (2, 3, 4)),
                ("communicators", 3, "interpreted"),
            )
        ),
    ],
)
def test_programs(
    ddlrun: Run, no_compiler: dict[str, str], programs: str, size: int, word: str
) -> None:
    """The programs run in the same processes. interpreted: without a compiler, and so without the
    lines that need one."""
    parts = [
        part
        for name in programs.split()
        for part in PARTS[name][0]
        if word != "interpreted" or part != PARTS[name][1]
    ]
    env = no_compiler if word == "interpreted" else QUIET
    files = " ".join(f"tensorflow_{name}" for name in programs.split())
    ended = ddlrun(size, PROGRAMS / "several.py", files, word, env=env, limit=300).expect_success()
    for rank in range(size):
        assert ended.lines(rank) == [f"done {part}".strip() for part in parts]
    said = "RuntimeWarning: no C++ compiler was found (CXX is 'no-such-compiler'"
    assert (said in ended.err) == (word == "interpreted")


MANY_GRADIENTS = """
import tensorflow as tf
import ddl_tensorflow as ddl

tf.config.threading.set_inter_op_parallelism_threads(2)
ddl.init(timeout=30)
function = tf.function(lambda x: [ddl.allreduce(x * i) for i in range(30)], autograph=False)
x = tf.ones(5)
for step in range(20):
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = function(x)
    assert tape.gradient(values, x).numpy()[0] == sum(range(30)) * ddl.size()
ddl.shutdown()
"""


@pytest.mark.slow
def test_many_gradients_without_compiler(ddlrun: Run, no_compiler: dict[str, str]) -> None:
    """More operations than TensorFlow has threads, in a function without an order of operations."""
    ddlrun(2, MANY_GRADIENTS, env=no_compiler, limit=120).expect_success()


FAILURES = """
import os, signal, sys, threading, time
import numpy as np
import tensorflow as tf
import ddl_core
import ddl_keras
import ddl_tensorflow as ddl
import keras

def refused(error, texts, function, *arguments):
    started = time.monotonic()
    try:
        function(*arguments)
    except error as raised:
        for text in texts:
            assert text in str(raised), raised
        assert time.monotonic() - started < 15
        return
    raise AssertionError(f"{error} was not raised")

mode = sys.argv[1]
native = mode != "interpreted"
ddl.init(timeout=60)
rank, size = ddl.rank(), ddl.size()
Mismatch, Lost = tf.errors.FailedPreconditionError, tf.errors.UnavailableError

def again():
    ddl.shutdown()
    ddl_core.init()
    ddl_core.finalize()  # all are here
    ddl.init(timeout=60)

#### mismatches: different calls, in each way of running them
elements = tf.ones([3 + rank])
types = tf.cast(1, tf.float32 if rank else tf.int32)
for jit in (None, False, True)[: 2 + native]:
    def call(x, op="sum"):
        return ddl.allreduce(x, op, name="one name")
    function = call if jit is None else tf.function(call, jit_compile=jit, autograph=False)
    said = ["all-reduce(f32, 3, sum)", "all-reduce(f32, 4, sum)"]
    refused(Mismatch, said, function, elements)
    refused(Mismatch, said, function, tf.ones([1]))  # it stays dead
    again()
    refused(Mismatch, ["all-reduce(f32, 1, sum)", "all-reduce(i32, 1, sum)"], function, types)
    again()
    refused(Mismatch, ["min", "max"], function, tf.ones(2), "max" if rank else "min")
    again()
# Different operations, called one by one.
operation = ddl.allgather if rank else ddl.alltoall
refused(Mismatch, ["all-gather", "all-to-all"], operation, tf.ones([size]))
again()
# What only one rank calls, by name: nobody can know it but by the time that passes.
ddl.shutdown()
ddl.init(timeout=2)
refused(tf.errors.DeadlineExceededError, ["one of many"],
        ddl.allreduce, tf.ones(1), "sum", "one of many" if rank else "another one of many")
again()
print("done mismatches", flush=True)

#### leaving: while an operation is pending
ddl.barrier()
if rank == 0:
    leaver = threading.Thread(target=lambda: (time.sleep(0.5), ddl.shutdown()))
    leaver.start()
    refused(tf.errors.AbortedError, ["shut down with operations pending"], ddl.barrier)
    leaver.join()
else:
    time.sleep(2.5)  # to leave would end that barrier as well
again()
print("done leaving", flush=True)

#### compiled: functions know the world that they were compiled in
def compiled(function, *arguments):
    return tf.function(lambda x: function(x, *arguments), jit_compile=True, autograph=False)

rows = [1, 2]
gather, equal = compiled(ddl.allgather, rows), compiled(ddl.allgather)
scatter = compiled(lambda x: ddl.reduce_scatter(x, rows=rows))
part = tf.ones([rows[rank]])
assert gather(part).shape == [3] and equal(tf.ones(2)).shape == [4]
assert scatter(tf.ones(3)).shape == [rows[rank]]
unknown = tf.TensorSpec([None])
wrong = tf.function(lambda x: ddl.allgather(x, rows), [unknown], jit_compile=True, autograph=False)
refused(tf.errors.InvalidArgumentError, [f"rows is {rows[rank]} for this rank"], wrong,
        tf.ones(7))
ddl.shutdown()
os.environ["DDL_RANK"] = str(1 - rank)
ddl.init(timeout=60)
for call, given in ((gather, part), (scatter, tf.ones(3))):
    refused(Exception, [f"was compiled for another rank than {1 - rank}"], call, given)
ddl.shutdown()
os.environ |= {"DDL_RANK": "0", "DDL_SIZE": "1"}
ddl.init()
for call, given in ((gather, part), (equal, tf.ones(2)), (scatter, tf.ones(3))):
    refused(Exception, ["was compiled for 2 ranks, but there are 1 now"], call, given)
os.environ |= {"DDL_RANK": str(rank), "DDL_SIZE": str(size)}
again()
print("done compiled", flush=True)

#### dying: the last rank, in the midst of training
class Dies(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3 and rank == size - 1:
            with open("died", "w") as file:
                print(time.time(), file=file, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
how = {"eager": {"run_eagerly": True}, "jit": {"jit_compile": True}}.get(mode, {})
model.compile(ddl_keras.DistributedOptimizer("sgd"), "mse", **how)
x, y = np.ones((64, 4), "f"), np.ones((64, 2), "f")
refused(Lost, [f"rank {size - 1}"],
        lambda: model.fit(x, y, batch_size=8, callbacks=[Dies()], verbose=0))
with open("died") as file:  # the other rank was told in 0.2 s; the rest is Keras, on a busy machine
    assert time.time() - float(file.read()) < 2
refused(Lost, [f"rank {size - 1}"], ddl.barrier)
refused(Lost, [f"rank {size - 1}"], tf.function(ddl.allreduce, autograph=False), tf.ones(3))
# Of a function that XLA compiled, called directly, TensorFlow renames this error.
compiled = tf.function(ddl.allreduce, jit_compile=True, autograph=False)
if native:
    refused(tf.errors.InternalError, [f"rank {size - 1}", "UnavailableError"], compiled, tf.ones(3))
print("done dying", flush=True)
"""


def quiet_port() -> int:
    """Return a free port that the system does not give to clients: the ranks close and open it
    repeatedly, and no other process may take it in between."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["graph", "eager", "jit", "interpreted"])
def test_failures(run_here: Run, tmp_path: Path, no_compiler: dict[str, str], mode: str) -> None:
    """Run on two ranks without ddlrun, so that each exits by itself."""
    program = tmp_path / "program.py"
    parts = FAILURES.split("\n#### ")
    # Running these in one mode is enough; XLA compiles only the native operations.
    left_out = {"graph": (), "interpreted": ("compiled",)}.get(
        mode, ("mismatches", "leaving", "compiled")
    )
    text = "\n# ".join(part for part in parts if part.split(":")[0] not in left_out)
    program.write_text(text)
    url = f"tcp://127.0.0.1:{quiet_port()}"
    without = no_compiler if mode == "interpreted" else {}
    common = {**QUIET, **without, "DDL_SIZE": "2", "DDL_RENDEZVOUS": url, "OMP_NUM_THREADS": "1"}

    def start_rank(rank: int) -> Finished:
        env = {**common, "DDL_RANK": str(rank)}
        command = [sys.executable, program, mode]
        ended: Finished = run_here(command, env=env, limit=180)
        return ended

    with ThreadPoolExecutor(2) as pool:
        survivor, victim = pool.map(start_rank, range(2))
    done = [f"done {part.split(':')[0]}" for part in parts[1:]]
    expected = [line for line in done if line.split()[1] not in left_out]
    assert survivor.expect_success().out.splitlines() == expected
    assert victim.code == -signal.SIGKILL, victim


@pytest.mark.slow
def test_ranks_that_start_together_build_once(
    ddlrun: Run, tmp_path: Path, tensorflow_native: Path
) -> None:
    """One process calls the compiler, which fails after a moment, and all processes get the
    error."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'the disk is on fire'\nsleep 2\nexit 3\n")
    compiler.chmod(0o755)
    cache = tmp_path / "cache"
    text = """
import ddl_tensorflow as ddl
from ddl_core.native import BuildError
try:
    ddl.init()
except BuildError as error:
    assert "the disk is on fire" in str(error), error
    print("told", flush=True)
"""
    env = {**QUIET, "DDL_CACHE": str(cache), "CXX": str(compiler)}
    ended = ddlrun(2, text, env=env, limit=120).expect_success()
    assert ended.lines(0) == ended.lines(1) == ["told"]
    assert ended.err.count("libddl: building ddl_tensorflow for TensorFlow") == 1
    assert not list(cache.rglob("*.so"))


@pytest.mark.slow
def test_info(run_here: Run, tensorflow_native: Path) -> None:
    command = [sys.executable, "-m", "ddl_tensorflow", "info"]
    ended = run_here(command, env=QUIET).expect_success()
    assert f"{tensorflow_native}  built" in ended.out
