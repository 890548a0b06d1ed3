# SPDX-License-Identifier: Apache-2.0
"""The parts of the adapters' tests that are specific to PyTensor, Aesara and Theano."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from shims import Arrays

if TYPE_CHECKING:
    from adapter_list import Adapter


class Contract(Arrays):
    """The contract tests' view of PyTensor, Aesara or Theano. It compiles and runs an operation
    when the result is read."""

    def __init__(self, adapter: Adapter) -> None:
        from ddl_pytensor.framework import framework, tensor

        super().__init__(adapter)
        self.framework, self.tensor = framework, tensor
        # Numba, PyTensor's default, compiles for too long; test_pytensor.py tests it.
        self.mode = framework.compile.mode.Mode(linker="cvm", optimizer="fast_run")

    def array(self, value: np.ndarray) -> Any:
        return self.tensor.constant(value)

    def numpy(self, array: Any) -> np.ndarray:
        if isinstance(array, self.tensor.TensorConstant):
            return np.asarray(array.data)
        return np.asarray(self.framework.function([], array, mode=self.mode)())

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        state = {name: self.framework.shared(value) for name, value in values.items()}
        self.ddl.broadcast_parameters(state, root)
        return {name: variable.get_value() for name, variable in state.items()}


# The tests run BEFORE, then the example in docs/heritage.md, then AFTER.
BEFORE = """\
import numpy as np
import pytensor
import pytensor.tensor as pt
x, y = pt.dmatrix("x"), pt.dvector("y")
w = pytensor.shared(np.random.rand(3))
loss = ((x @ w - y) ** 2).mean()
"""
AFTER = """\
for _ in range(3):
    step(np.random.rand(16, 3), np.random.rand(16))
weights = [w.get_value()]
"""
