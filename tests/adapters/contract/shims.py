# SPDX-License-Identifier: Apache-2.0
"""What the contract suite has to know of each framework: its arrays, and what its errors are."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import ml_dtypes  # noqa: F401  makes NumPy know bfloat16 and the float8 types
import numpy as np

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
        """The framework's array with these values, shape and type."""
        raise NotImplementedError

    def numpy(self, array: Any) -> np.ndarray:
        """The reverse. Raises what the operation that made the array failed with."""
        raise NotImplementedError

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        """The named parameters after the adapter's broadcast_parameters."""
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
        if tensor.numel() == 0:  # of these PyTorch makes no views in another type
            return np.empty(0, np.uint8)
        view: np.ndarray = tensor.reshape(-1).view(self.torch.uint8).numpy()
        return view

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

        # A mismatch is a FailedPreconditionError, a dead rank an UnavailableError.
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


class NumPy(Shim):
    """The example of docs/adapters.md."""

    def __init__(self) -> None:
        import sys
        from pathlib import Path

        from ddl_core.errors import CommDead

        sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))
        import adapter_numpy

        self.ddl, self.dead = adapter_numpy, CommDead

    def array(self, value: np.ndarray) -> Any:
        return value.copy()

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        parameters = {name: value.copy() for name, value in values.items()}
        self.ddl.broadcast_parameters(parameters, root)
        return parameters


class Chainer(NumPy):
    """Its arrays are NumPy's."""

    def __init__(self) -> None:
        import ddl_chainer
        from ddl_core.errors import CommDead

        self.ddl, self.dead = ddl_chainer, CommDead


class Caffe(NumPy):
    """Its blobs' values are NumPy's arrays. Caffe itself is not needed."""

    def __init__(self) -> None:
        import ddl_caffe
        from ddl_core.errors import CommDead

        self.ddl, self.dead = ddl_caffe, CommDead


class PyTensor(NumPy):
    """PyTensor, Aesara or Theano: an operation is compiled, and runs, when its result is read."""

    dtypes = ("bool", *INTEGERS, "float16", "float32", "float64", *COMPLEX)

    def __init__(self) -> None:
        import ddl_pytensor
        from ddl_core.errors import CommDead
        from ddl_pytensor.framework import framework, tensor

        self.framework, self.tensor = framework, tensor
        self.ddl, self.dead = ddl_pytensor, CommDead
        missing = [dtype for dtype in FLOATS if dtype not in self.dtypes]
        self.lacks = dict.fromkeys(missing, f"{framework.__name__} has no such type")
        # Numba, which is PyTensor's default, compiles for too long; test_pytensor.py has it.
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


class Other(Shim):
    """A framework that makes arrays of NumPy's, and the reverse, in one call each."""

    framework: str
    reason: str  # why types are missing

    def __init__(self) -> None:
        from ddl_core.errors import CommDead

        self.ddl, self.dead = importlib.import_module(f"ddl_{self.framework}"), CommDead
        known = [*INTEGERS, *FLOATS, *COMPLEX]
        missing = [dtype for dtype in known if dtype not in self.dtypes]
        self.lacks = dict.fromkeys(missing, self.reason)

    def broadcast_parameters(
        self, values: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        state = {name: self.array(value) for name, value in values.items()}
        self.ddl.broadcast_parameters(state, root)
        return {name: self.numpy(array) for name, array in state.items()}


class TinyGrad(Other):
    framework = "tinygrad"
    reason = "tinygrad has no such type, or makes no array of NumPy's of it"
    dtypes = ("bool", *INTEGERS, "float16", "float32", "float64")

    def array(self, value: np.ndarray) -> Any:
        from tinygrad import Tensor

        return Tensor(value)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array.numpy())


class Mlx(Other):
    framework = "mlx"
    reason = "MLX has no such type"
    dtypes = ("bool", *INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64")

    def array(self, value: np.ndarray) -> Any:
        import mlx.core as mx

        if value.dtype.name == "bfloat16":
            return mx.array(np.asarray(value, order="C").view(np.uint16)).view(mx.bfloat16)
        return mx.array(value, mx.float64 if value.dtype == np.float64 else None)

    def numpy(self, array: Any) -> np.ndarray:
        import mlx.core as mx

        if array.dtype == mx.bfloat16:
            return np.array(array.view(mx.uint16)).view("bfloat16")
        return np.array(array)


class Paddle(Other):
    framework = "paddle"
    reason = "paddle.to_tensor takes no such array of NumPy's"
    dtypes = ("bool", "int8", "uint8", "int16", "int32", "int64", *FLOATS[:4], *COMPLEX)

    def array(self, value: np.ndarray) -> Any:
        import paddle

        if value.dtype.name == "bfloat16":
            return paddle.to_tensor(value.view(np.uint16), dtype="bfloat16")
        return paddle.to_tensor(value)

    def numpy(self, array: Any) -> np.ndarray:
        import paddle

        value = np.asarray(array.numpy())
        return value.view("bfloat16") if array.dtype == paddle.bfloat16 else value


class MxNet(Other):
    framework = "mxnet"
    reason = "MXNet has no such type, or makes no array of NumPy's of it"
    dtypes = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64")

    def __init__(self) -> None:
        import mxnet as mx

        mx.npx.set_np()  # arrays without dimensions, and without elements
        super().__init__()

    def array(self, value: np.ndarray) -> Any:
        import mxnet as mx

        return mx.np.array(value, dtype=value.dtype)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array.asnumpy())


SHIMS = {
    "numpy": NumPy,
    "torch": Torch,
    "jax": Jax,
    "tensorflow": TensorFlow,
    "caffe": Caffe,
    "chainer": Chainer,
    **dict.fromkeys(("pytensor", "aesara", "theano"), PyTensor),
    "mlx": Mlx,
    "mxnet": MxNet,
    "paddle": Paddle,
    "tinygrad": TinyGrad,
}
