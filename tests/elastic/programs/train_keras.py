# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs with Keras, for tests: a worker of `ddl elastic run`. Its arguments are a case as
JSON; prints what came of it. `kills` members kill themselves in the middle; `patient`: see
patient_samples.py.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from patient_samples import wait

import ddl_keras.elastic as elastic

random = np.random.default_rng(1)
X = random.normal(size=(50, 6)).astype(np.float32)
Y = (X[:, :1] * 2 + X[:, 1:2] ** 2).astype(np.float32)


class Samples(elastic.Arrays):
    def __init__(self, dies: bool, is_patient: bool) -> None:
        super().__init__(X, Y)
        self.dies, self.is_patient, self.read = dies, is_patient, 0

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        if self.dies and self.read > 40:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.is_patient:
            wait()
        return super().__getitem__(index)


class OwnStep(keras.Sequential):
    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        return super().compute_loss(*arguments, **options) * 1.5


def make_model(case: dict[str, Any]) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = (OwnStep if case.get("own") else keras.Sequential)()
    for layer in (layers.Dense(16, "tanh"), layers.BatchNormalization(), layers.Dropout(0.2)):
        model.add(layer)
    model.add(layers.Dense(1, kernel_regularizer="l2"))
    optimizer = keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.9), clipnorm=1.0
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def main(case: dict[str, Any]) -> None:
    dies = case.get("kills", 0) > int(os.environ["DDL_ELASTIC_AGENT"].split()[1])
    model = make_model(case)
    seen: list[str] = []
    history = elastic.fit(
        model,
        Samples(dies, bool(case.get("patient"))),
        validation_data=(X[:20], Y[:20]),
        callbacks=[
            keras.callbacks.CSVLogger("log.csv"),
            keras.callbacks.EarlyStopping("mae", case.get("least", 0), case.get("wait", 9)),
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: seen.append(f"begin {epoch}"),
                on_epoch_end=lambda epoch, logs: seen.append(f"end {epoch}"),
            ),
        ],
        batch=8,
        logical=4,
        epochs=case.get("epochs", 3),
        seed=5,
        **{name: case[name] for name in ("checkpoint", "every") if name in case},
    )
    print("result", json.dumps({"history": history.history, "seen": seen}), flush=True)
    for name in sorted(Path().glob("*.csv")):
        print(name, len(name.read_text().splitlines()), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
