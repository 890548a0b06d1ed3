# SPDX-License-Identifier: Apache-2.0
"""The particular functions of some small adapters, as a user with a strict type checker writes
them."""

from __future__ import annotations

from typing import Any

import ddl_caffe
import ddl_chainer
import ddl_mlx
import ddl_paddle


def of_any(array: Any) -> None:
    ddl_caffe.allreduce_gradients([array], op="sum")
    ddl_chainer.create_communicator()
    ddl_mlx.allreduce_gradients({"weight": array})
    ddl_paddle.allreduce_gradients({"weight": array})  # type: ignore[arg-type]
