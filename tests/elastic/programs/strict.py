# SPDX-License-Identifier: Apache-2.0
"""Train with Job.train on samples with hidden state: `strict.py torch|jax [strict]`."""

import sys
from typing import Any

import numpy as np

FRAMEWORK, STRICT = sys.argv[1], "strict" in sys.argv
CONSTANTS: dict[str, Any] = {"batch": 8, "logical": 2, "steps": 4, "workers": 1, "strict": STRICT}


class Samples:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return self.generator.normal(size=8).astype(np.float32), np.float32(index % 3)


def train_torch() -> None:
    import torch
    from torch import nn

    import ddl_torch.elastic  # noqa: F401
    from ddl_elastic import Job

    def compute_loss(outputs: Any, targets: Any) -> Any:
        return nn.functional.mse_loss(outputs[:, 0], targets)

    def make_optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, 0.1)

    Job(
        model=lambda: nn.Linear(8, 1),
        data=Samples(),
        loss=compute_loss,
        optimizer=make_optimizer,
        **CONSTANTS,
    ).train()


def train_jax() -> None:
    import jax
    import jax.numpy as jnp

    import ddl_jax.elastic as elastic

    def compute_loss(state: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ state - batch[1]) ** 2)

    def grad_fn(state: Any, batch: Any, _key: Any) -> Any:
        return jax.value_and_grad(compute_loss)(state, batch)

    def update_fn(state: Any, gradients: Any) -> Any:
        return state - 0.1 * gradients

    elastic.train(np.zeros(8, "f4"), grad_fn, update_fn, Samples(), **CONSTANTS)


if __name__ == "__main__":
    {"torch": train_torch, "jax": train_jax}[FRAMEWORK]()
    print("trained")
