# SPDX-License-Identifier: Apache-2.0
"""The adapters of frameworks that are not installed here, as a user with a strict type checker
writes them."""

from __future__ import annotations

from typing import Any

import ddl_caffe
import ddl_chainer
import ddl_mlx
import ddl_mxnet
import ddl_paddle
import ddl_pytensor
import ddl_tinygrad


def of_any(array: Any) -> None:
    ddl_caffe.allreduce(array, op="max")
    ddl_chainer.allreduce(array, op="max")
    ddl_mlx.allreduce(array, op="max")
    ddl_mxnet.allreduce(array, op="max")
    ddl_paddle.allreduce(array, op="max")
    ddl_pytensor.allreduce(array, op="max")
    ddl_tinygrad.allreduce(array, op="max")
    ddl_caffe.allreduce(array, op="maximum")  # type: ignore[arg-type]
    ddl_chainer.allreduce(array, op="maximum")  # type: ignore[arg-type]
    ddl_mlx.allreduce(array, op="maximum")  # type: ignore[arg-type]
    ddl_mxnet.allreduce(array, op="maximum")  # type: ignore[arg-type]
    ddl_paddle.allreduce(array, op="maximum")  # type: ignore[arg-type]
    ddl_pytensor.allreduce(array, op="maximum")  # type: ignore[arg-type]
    ddl_tinygrad.allreduce(array, op="maximum")  # type: ignore[arg-type]
    ddl_caffe.allreduce_gradients([array], op="sum")
    ddl_chainer.create_communicator()
    rank: int = ddl_paddle.rank() + ddl_tinygrad.size()
    assert rank
    ddl_mlx.allreduce_gradients({"weight": array})
    ddl_tinygrad.allreduce_gradients({"weight": array})  # type: ignore[arg-type]
