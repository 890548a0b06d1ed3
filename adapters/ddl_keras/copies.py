# SPDX-License-Identifier: Apache-2.0
"""Support for subclasses of Keras' classes. Files contain the original class, but copies in memory
preserve the subclass.

Keras copies an object by saving it, and saves a class by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from itertools import count
from typing import Any, TypeVar

import keras

from ddl_core.errors import InvalidArgument

Class = TypeVar("Class", bound=type)
_numbers = count()


class _Name(str):
    """The name of a subclass, by which Keras finds the subclass in a config in memory.

    As a key of a dictionary, it differs from an equal string. A config in a file contains the plain
    string, which names the original class.
    """

    def __init__(self, _: str) -> None:
        self._number = next(_numbers)

    def __hash__(self) -> int:
        return self._number

    def __deepcopy__(self, _: Any) -> _Name:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidArgument(
            f"the config of a distributed {self} cannot be pickled; pickle the object instead"
        )


def saved_as_base(subclass: Class) -> Class:
    """Make Keras save the objects of a subclass as objects of its base."""
    (base,) = subclass.__bases__
    for name in ("__qualname__", "__module__", "__doc__"):
        setattr(subclass, name, getattr(base, name))
    subclass.__name__ = _Name(base.__name__)
    keras.saving.get_custom_objects()[subclass.__name__] = subclass
    return subclass


class _Shared:
    """Options with communicators. A copy of an object within the process shares them with the
    original."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def __deepcopy__(self, _: Any) -> _Shared:
        return self


def copied_by(original: Any, change: Callable[[Any, Any], Any], options: Any) -> tuple[Any, ...]:
    """Return the result of `__reduce__` for an object whose copy is `change(copy of the original
    class, options)`.

    original  the result of the original class's __reduce__
    """
    _, (saved,) = original
    return _restore, (saved, change, _Shared(options))


def _restore(saved: BytesIO, change: Callable[[Any, Any], Any], shared: _Shared) -> Any:
    return change(keras.optimizers.Optimizer._unpickle_model(saved), shared.options)
