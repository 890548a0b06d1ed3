# SPDX-License-Identifier: Apache-2.0
"""An elastic loop with TensorFlow, for tests: a worker of `ddl elastic run`. Its argument is a case
as JSON. `kills` members kill themselves in the middle of a step; `patient`: see patient_samples.py.
"""

import json
import os
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from dying_samples import DyingSamples
from patient_samples import PatientSamples

import ddl_tensorflow.elastic as elastic

random = np.random.default_rng(1)
DATA = [
    (random.normal(size=6).astype(np.float32), np.int32(number % 5), np.float32(number % 3))
    for number in range(50)
]


elastic.pin(1)
GENERATOR = tf.random.Generator.from_seed(2)


class Network(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        start = np.random.default_rng(2)
        self.table = tf.Variable(start.normal(size=(5, 4)), dtype=tf.float32)
        self.first = tf.Variable(start.normal(size=(10, 16)) / 3, dtype=tf.float32)
        self.second = tf.Variable(start.normal(size=(16, 1)) / 4, dtype=tf.float32)
        self.mean = tf.Variable(tf.zeros(16), trainable=False)
        self.generator = tf.random.Generator.from_seed(1)

    def __call__(self, x: Any, kind: Any, seed: Any) -> Any:
        hidden = tf.tanh(tf.concat([x, tf.gather(self.table, kind)], 1) @ self.first)
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(hidden, 0))
        kept = tf.random.stateless_uniform(tf.shape(hidden), seed) < 0.8
        noise = 0.1 * (self.generator.normal([16]) + GENERATOR.normal([16]))
        return (tf.where(kept, hidden, 0.0) + noise) @ self.second


def main(case: dict[str, Any]) -> None:
    dies = case.get("kills", 0) > int(os.environ["DDL_ELASTIC_AGENT"].split()[1])
    model, optimizer = Network(), keras.optimizers.Adam(0.01)
    constants = {"batch": 8, "logical": 4, "seed": 5}
    saving = {name: case[name] for name in ("checkpoint", "every") if name in case}
    job = elastic.Job(model, optimizer, generators=[GENERATOR], **constants, **saving)

    @tf.function
    def compute(x: Any, kind: Any, y: Any, seed: Any) -> Any:
        with tf.GradientTape() as tape:
            found = model(x, kind, seed)[:, 0]
            loss = tf.reduce_sum((found - y) ** 2)  # of a weight
        return loss, tape.gradient(loss, model.trainable_variables)

    losses = []
    data = PatientSamples(DATA) if case.get("patient") else DyingSamples(DATA, dies)
    for step in job.steps(data, steps=case.get("steps", 12)):
        for x, kind, y in step:
            step.backward(compute(x, kind, y, job.random_seed), weight=len(y))
        optimizer.apply(job.gradients, model.trainable_variables)
        losses.append(job.loss)
    print("losses", losses[-1] < losses[0], flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
