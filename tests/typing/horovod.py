# SPDX-License-Identifier: Apache-2.0
"""ddl_horovod for TensorFlow and Keras, as a user with a strict type checker writes it."""

from __future__ import annotations

import keras
import tensorflow as tf

import ddl_horovod.keras as hvd_of_keras
import ddl_horovod.tensorflow as hvd
import ddl_horovod.tensorflow.keras as hvd_keras

hvd.init()
ranks: int = hvd.size() - hvd.rank() + hvd.local_rank()
evens: hvd.ProcessSet = hvd.add_process_set(range(0, hvd.size(), 2))
x = hvd.allreduce(tf.ones(4), op=hvd.Sum, compression=hvd.Compression.fp16, process_set=evens)
hvd.add_process_set("0")  # type: ignore[arg-type]
tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Average)
hvd.broadcast_variables([tf.Variable(x)], root_rank=0)
built: bool = hvd.ddl_built() and hvd.mpi_built()
removed: bool = hvd.remove_process_set(evens)
hvd.shutdown()

hvd_keras.init()
optimizer = hvd_keras.DistributedOptimizer(
    keras.optimizers.SGD(0.1), compression=hvd_keras.Compression.fp16, op=hvd_keras.Sum
)
hvd_keras.DistributedOptimizer(optimizer, op="sum")  # type: ignore[arg-type]
callbacks = [
    hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd_keras.callbacks.MetricAverageCallback(),
    hvd_keras.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=3),
]
hvd_keras.callbacks.BroadcastGlobalVariablesCallback("0")  # type: ignore[arg-type]
hvd_keras.shutdown()

hvd_of_keras.init()
other = hvd_of_keras.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd_of_keras.Average)
value = hvd_of_keras.allreduce(1.0, op=hvd_of_keras.Sum)
hvd_of_keras.shutdown()
