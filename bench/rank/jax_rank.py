# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/training_jax.py: creates programs, runs them on command, and sleeps in between.

    python jax_rank.py BACKEND SOCKET

BACKEND is "ddl" or "gloo" for jax's own collectives, or "calls" for ddl_jax's operations. SOCKET is
the path of the scheduler's Unix socket. `Worker` and `Steps` have the commands.
"""

import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from command_loop import WARM_UP, Program, Steps, run_commands

RANK, SIZE = int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"])
LAYERS, WIDTH, HEADS, BYTES = 8, 512, 8, 256  # a byte-level transformer of 25 M weights
PIECES, CONTEXT = 4, 64  # pieces of text in a step on each rank


class Stock:
    """jax's own collectives: one program over all ranks, with one device each."""

    def __init__(self, backend: str) -> None:
        if backend == "ddl":
            import ddl_jax

            ddl_jax.initialize()
        import jax

        if backend == "gloo":
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(
                f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                num_processes=SIZE,
                process_id=RANK,
                cluster_detection_method="deactivate",
            )
        self.version = f"jax {jax.__version__}"
        axes = (jax.sharding.AxisType.Auto,)
        self.mesh = jax.make_mesh((SIZE,), ("ranks",), axis_types=axes)

    def make(self, what: str, **options: Any) -> tuple[dict[str, Program], dict[str, Any]]:
        return {"psum": self._psum, "transformer": self._transformer}[what](**options)

    def _psum(self, bytes: int) -> tuple[dict[str, Program], dict[str, Any]]:
        import jax
        import numpy as np

        x = self._spread(np.full((1, bytes // 4), RANK + 1.0, np.float32))
        functions = {
            "step": self._mapped(lambda v: jax.lax.psum(v, "ranks"), 1),
            "alone": self._mapped(lambda v: v * SIZE, 1),  # a result of the same shape
        }
        got = float(functions["step"](x).addressable_data(0)[0, -1])
        if got != SIZE * (SIZE + 1) / 2:
            raise ValueError(f"psum of {bytes} bytes gives {got}")
        return {name: _calling(function, x) for name, function in functions.items()}, {}

    def _transformer(self) -> tuple[dict[str, Program], dict[str, Any]]:
        import jax
        import numpy as np

        parameters = transformer()
        text = np.random.default_rng(RANK).integers(BYTES, size=(PIECES, CONTEXT + 1))
        batch = self._spread(text.astype(np.int32))

        def mean(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: jax.lax.pmean(leaf, "ranks"), tree)

        def step_of(exchange: Callable[[Any], Any]) -> Callable[..., Any]:
            return lambda state, text: train(state, text, exchange)

        programs = {}
        for name, exchange in (("step", mean), ("alone", lambda gradients: gradients)):
            state = jax.tree.map(self._copies, (parameters, [0 * p for p in parameters]))
            programs[name] = _going_on(
                self._mapped(step_of(exchange), 2, donate=True), state, batch
            )
        gradients = [self._copies(0 * leaf) for leaf in parameters]
        programs["exchange"] = _going_on(self._mapped(mean, 1, donate=True), gradients)
        for _ in range(WARM_UP):
            trained, _ = programs["step"]()
        sums = [float(np.abs(leaf.addressable_data(0)).sum()) for leaf in trained]
        info = {
            "parameters": sum(leaf.size for leaf in parameters),
            "buckets": [leaf.nbytes for leaf in parameters],
            "sums": sums,
        }
        return programs, info

    def _mapped(self, function: Any, arguments: int, donate: bool = False) -> Any:
        """Return the compiled function. The first dimension of its arguments and results is the
        rank."""
        import jax

        each = jax.sharding.PartitionSpec("ranks")
        mapped = jax.shard_map(
            function, mesh=self.mesh, in_specs=(each,) * arguments, out_specs=each, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=(0,) if donate else ())

    def _spread(self, rows: Any) -> Any:
        import jax

        spec = jax.sharding.PartitionSpec("ranks")
        sharding = jax.sharding.NamedSharding(self.mesh, spec)
        return jax.make_array_from_process_local_data(sharding, rows)

    def _copies(self, array: Any) -> Any:
        return self._spread(array.copy())


class Calls:
    """ddl_jax's operations in compiled programs, and the bare call of ddl_core."""

    def __init__(self, _: str) -> None:
        import jax

        import ddl_jax
        from ddl_jax import world

        ddl_jax.init()
        self.comm = world.world()
        self.version = f"jax {jax.__version__}"

    def make(self, what: str, bytes: int) -> tuple[dict[str, Program], dict[str, Any]]:
        import jax
        import numpy as np

        import ddl_jax as ddl

        # Sums of zeros stay zero, even in place. Writing them gives the array its own pages.
        own = np.full(bytes // 4, 0, np.float32)
        x = jax.device_put(own)
        programs = {
            "bare, in place": partial(self.comm.allreduce, own),
            "bare, fresh": lambda: self.comm.allreduce(own, np.empty_like(own)),
        }
        for name, jit in (("ddl_jax.jit", ddl.jit), ("jax.jit", jax.jit)):
            donated = jit(ddl.allreduce, donate_argnums=0)
            programs[f"{name}, in place"] = _going_on(donated, x + 0)
            programs[f"{name}, fresh"] = _calling(jit(ddl.allreduce), x)
        return programs, {"ways": list(programs)}


def _calling(function: Any, *arguments: Any) -> Program:
    import jax

    return lambda: jax.block_until_ready(function(*arguments))


def _going_on(function: Any, state: Any, *arguments: Any) -> Program:
    """Return a program in which each step takes the result of the previous one."""
    import jax

    def step() -> Any:
        nonlocal state
        state = jax.block_until_ready(function(state, *arguments))
        return state

    return step


# ---- the model: plain jax, with its layers in one array of each kind, and SGD with momentum ----


def transformer() -> list[Any]:
    import numpy as np

    random = np.random.default_rng(0)
    shapes = [
        (BYTES, WIDTH),
        (CONTEXT, WIDTH),
        (LAYERS, WIDTH, 3 * WIDTH),
        (LAYERS, WIDTH, WIDTH),
        (LAYERS, WIDTH, 4 * WIDTH),
        (LAYERS, 4 * WIDTH, WIDTH),
    ]
    return [random.normal(0, 0.02, shape).astype(np.float32) for shape in shapes]


def loss(parameters: Any, text: Any) -> Any:
    import jax
    import jax.numpy as jnp

    letters, places, *layers = parameters

    def normal(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def layer(x: Any, weights: Any) -> tuple[Any, None]:
        attention, out, up, down = weights
        shape = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        query, key, value = jnp.moveaxis((normal(x) @ attention).reshape(shape), 2, 0)
        seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + seen.reshape(x.shape) @ out
        return x + jax.nn.gelu(normal(x) @ up) @ down, None

    x, _ = jax.lax.scan(layer, letters[text[:, :-1]] + places, layers)
    chances = jax.nn.log_softmax(normal(x) @ letters.T)
    return -jnp.take_along_axis(chances, text[:, 1:, None], axis=2).mean()


def train(state: Any, text: Any, exchange: Callable[[Any], Any]) -> Any:
    import jax

    parameters, momenta = state
    gradients = exchange(jax.grad(loss)(parameters, text))
    momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
    return [p - 1e-3 * m for p, m in zip(parameters, momenta, strict=True)], momenta


# ---- the commands ----


class Worker(Steps):
    """The commands. Each has one answer.

    prepare  what, and its options: create the programs; the answer has facts about them
    """

    def prepare(self, **options: Any) -> dict[str, Any]:
        self.programs, info = self.backend.make(**options)
        self.warm_up()
        return info


def main() -> None:
    name, control = sys.argv[1:]
    backend = (Calls if name == "calls" else Stock)(name)
    about = {"rank": RANK, "size": SIZE, "host": socket.gethostname(), "version": backend.version}
    run_commands(Worker(backend), control, about)


if __name__ == "__main__":
    main()
