# SPDX-License-Identifier: Apache-2.0
"""Callbacks that write files in one process of a job."""

from __future__ import annotations

from typing import Any

import keras

from ddl_elastic.worker.loop import Loop

_WRITING = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def on_writer(callback: keras.callbacks.Callback, loop: Loop) -> keras.callbacks.Callback:
    """Return the callback. If it writes files, wrap it to run only while this process is the
    writer."""
    return OnWriter(callback, loop) if isinstance(callback, _WRITING) else callback


class OnWriter(keras.callbacks.Callback):
    """A callback that calls another callback only while this process is the writer."""

    def __init__(self, callback: Any, loop: Loop) -> None:
        super().__init__()
        self._callback, self._loop = callback, loop
        self._has_begun = False

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._callback.set_model(model)

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._callback.set_params(params)

    def _call(self, hook: str, *arguments: Any) -> None:
        if not self._loop.is_writer:
            return
        if not self._has_begun:
            self._has_begun = True
            if hook != "on_train_begin":  # the previous writer has died
                if hasattr(self._callback, "append"):
                    self._callback.append = True
                self._callback.on_train_begin()
        getattr(self._callback, hook)(*arguments)

    def on_train_begin(self, logs: Any = None) -> None:
        self._call("on_train_begin", logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._call("on_train_end", logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._call("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._call("on_epoch_end", epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._call("on_train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._call("on_train_batch_end", batch, logs)
