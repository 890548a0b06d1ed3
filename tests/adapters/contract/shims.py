# SPDX-License-Identifier: Apache-2.0
"""The properties of each framework that the contract suite needs: its arrays and its errors."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import ml_dtypes  # noqa: F401  makes NumPy know bfloat16 and the float8 types
import numpy as np

from ddl_core.errors import CommDead

TESTS = Path(__file__).resolve().parents[2]
sys.path.append(str(TESTS))
import adapter_list  # noqa: E402
from adapter_list import Adapter  # noqa: E402

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
COMPLEX = ("complex64", "complex128")


class Shim:
    """One framework.

    ddl       the adapter
    dead      what is raised when the world has died
    dtypes    NumPy's names of the element types that can be reduced
    lacks     what the framework cannot do, by the name of the check or type, and why
    """

    ddl: ModuleType
    dead: type[Exception]
    dtypes: tuple[str, ...] = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
    lacks: Mapping[str, str] = MappingProxyType({})

    def array(self, value: np.ndarray) -> Any:
        raise NotImplementedError

    def numpy(self, array: Any) -> np.ndarray:
        """The reverse. Raises what the operation that made the array failed with."""
        raise NotImplementedError

    def writable(self, *shape: int) -> Any:
        """Return an array of float32 that an operation may write to."""
        return np.zeros(shape, np.float32)

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        """Return the named parameters after the adapter's broadcast_parameters."""
        raise NotImplementedError


class Torch(Shim):
    def __init__(self) -> None:
        import torch

        import ddl_torch

        self.torch, self.ddl, self.dead = torch, ddl_torch, torch.distributed.DistBackendError

    def array(self, value: np.ndarray) -> Any:
        tensor = self.torch.empty(value.shape, dtype=getattr(self.torch, value.dtype.name))
        self._bytes(tensor)[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return tensor

    def numpy(self, array: Any) -> np.ndarray:
        dtype = np.dtype(str(array.dtype).removeprefix("torch."))
        return self._bytes(array.contiguous()).view(dtype).reshape(tuple(array.shape)).copy()

    def _bytes(self, tensor: Any) -> np.ndarray:
        if tensor.numel() == 0:  # PyTorch has no views of these in another type
            return np.empty(0, np.uint8)
        view: np.ndarray = tensor.reshape(-1).view(self.torch.uint8).numpy()
        return view

    def writable(self, *shape: int) -> Any:
        return self.torch.zeros(shape)

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        state = {name: self.array(value) for name, value in values.items()}
        self.ddl.broadcast_parameters(state, root)
        return {name: self.numpy(tensor) for name, tensor in state.items()}


class Jax(Shim):
    def __init__(self) -> None:
        import jax

        import ddl_jax

        jax.config.update("jax_enable_x64", True)
        self.jax, self.ddl, self.dead = jax, ddl_jax, jax.errors.JaxRuntimeError

    def array(self, value: np.ndarray) -> Any:
        return self.jax.numpy.asarray(value)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        tree = {name: self.array(value) for name, value in values.items()}
        result = self.ddl.broadcast_parameters(tree, root)
        return {name: self.numpy(array) for name, array in result.items()}


class TensorFlow(Shim):
    def __init__(self) -> None:
        import tensorflow as tf

        import ddl_tensorflow

        # A mismatch raises FailedPreconditionError, a dead rank UnavailableError.
        self.tf, self.ddl, self.dead = tf, ddl_tensorflow, tf.errors.OpError

    def array(self, value: np.ndarray) -> Any:
        return self.tf.constant(value)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array.numpy())

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        state = {name: self.tf.Variable(value) for name, value in values.items()}
        self.ddl.broadcast_parameters(state.values(), root)
        return {name: np.asarray(variable.numpy()) for name, variable in state.items()}


class Arrays(Shim):
    """An adapter whose arrays are NumPy's, unless a subclass in its tests.py defines others."""

    def __init__(self, adapter: Adapter) -> None:
        self.ddl, self.dead = importlib.import_module(adapter.package), CommDead
        self.dtypes = tuple(dtype for dtype in Shim.dtypes if dtype not in adapter.lacks)
        self.lacks = dict.fromkeys(adapter.lacks, adapter.because)

    def array(self, value: np.ndarray) -> Any:
        return value.copy()

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        state = {name: self.array(value) for name, value in values.items()}
        self.ddl.broadcast_parameters(state, root)
        return {name: self.numpy(array) for name, array in state.items()}


class NumPy(Arrays):
    """The example of docs/adapters.md."""

    def __init__(self) -> None:
        sys.path.append(str(TESTS.parent / "examples"))
        self.ddl, self.dead = importlib.import_module("adapter_numpy"), CommDead


NATIVE = {"torch": Torch, "jax": Jax, "tensorflow": TensorFlow}  # these have a native part


def find(framework: str) -> Shim:
    if framework == "numpy":
        return NumPy()
    if framework in NATIVE:
        return NATIVE[framework]()
    adapter = adapter_list.ADAPTER_OF[framework]
    shim: Shim = adapter.tests().get("Contract", Arrays)(adapter)
    return shim
