# SPDX-License-Identifier: Apache-2.0
"""A stand-in for pycaffe: the part of its documented interface that ddl_caffe uses.

A net of two InnerProduct layers that share one bias, with a ReLU in between and a EuclideanLoss.
`make test-heritage` builds the real Caffe and tries the same.
"""

from collections.abc import Callable

import numpy as np

WIDTH = 4


class Blob:
    def __init__(self, values: np.ndarray) -> None:
        self.data = values.astype(np.float32)
        self.diff = np.zeros_like(self.data)


class Net:
    """passes: the (start, end) of each backward pass."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        first, second = (Blob(random.standard_normal((WIDTH, WIDTH))) for _ in range(2))
        bias = Blob(random.standard_normal(WIDTH))
        self.params = {"first": [first, bias], "second": [second, bias]}
        names = ("images", "labels", "first", "active", "second", "loss")
        self.layer_dict = dict.fromkeys(names)
        self.blobs = {name: Blob(np.zeros((1, WIDTH))) for name in names}
        self.passes: list[tuple[str | None, str | None]] = []

    def clear_param_diffs(self) -> None:
        for layer in self.params.values():
            for blob in layer:
                blob.diff[...] = 0

    def forward(self) -> None:
        values, ((first, bias), (second, _)) = self.blobs, self.params.values()
        values["first"].data = values["images"].data @ first.data + bias.data
        values["active"].data = np.maximum(values["first"].data, 0)
        values["second"].data = values["active"].data @ second.data + bias.data

    def backward(self, start: str | None = None, end: str | None = None) -> None:
        self.passes.append((start, end))
        names = list(self.layer_dict)
        last = names.index(start) if start else len(names) - 1
        for index in range(last, names.index(end) - 1 if end else -1, -1):
            self._backward(names[index])

    def _backward(self, layer: str) -> None:
        values, ((first, bias), (second, _)) = self.blobs, self.params.values()
        if layer == "loss":
            error = values["second"].data - values["labels"].data
            values["second"].diff = error / len(error)
        elif layer == "second":
            second.diff += values["active"].data.T @ values["second"].diff
            bias.diff += values["second"].diff.sum(0)
            values["active"].diff = values["second"].diff @ second.data.T
        elif layer == "active":
            values["first"].diff = values["active"].diff * (values["first"].data > 0)
        elif layer == "first":
            first.diff += values["images"].data.T @ values["first"].diff
            bias.diff += values["first"].diff.sum(0)


class Solver:
    """Plain gradient descent, in a build without callbacks."""

    def __init__(self, seed: int) -> None:
        self.net = Net(seed)
        self.iter = self.snapshots = 0

    def apply_update(self) -> None:
        for blob in {id(b): b for layer in self.net.params.values() for b in layer}.values():
            blob.data -= 0.1 * blob.diff
        self.iter += 1

    def snapshot(self) -> None:
        self.snapshots += 1


class SolverWithCallbacks(Solver):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._callbacks: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def add_callback(
        self, on_start: Callable[[], None], on_gradients_ready: Callable[[], None]
    ) -> None:
        self._callbacks.append((on_start, on_gradients_ready))

    def step(self, iterations: int) -> None:
        for _ in range(iterations):
            self.net.clear_param_diffs()
            for on_start, _ in self._callbacks:
                on_start()
            self.net.forward()
            self.net.backward()
            for _, on_gradients_ready in self._callbacks:
                on_gradients_ready()
            self.apply_update()
