# SPDX-License-Identifier: Apache-2.0
"""The names that programs import from Horovod's module `util`."""

from __future__ import annotations

import tensorflow as tf

from ddl_horovod.tensorflow.functions import refs_to_vars, vars_to_refs

__all__ = ["refs_to_vars", "vars_to_refs"]
_executing_eagerly = tf.executing_eagerly
