# SPDX-License-Identifier: Apache-2.0
"""The search for a program's attributes and variables outside the job's state."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from ddl_elastic.hidden.marks import CONTAINERS, is_generator, is_position, is_tensor, mark

DEPTH = 6  # maximum depth of nested objects
ELEMENTS = 64  # elements of a container that are searched for objects
ITEMS = 4000  # maximum number of items
LARGE = 10_000  # elements from which a container is not filtered

# Packages whose objects are not a program's state, or are inspected in another way.
_SKIPPED = {
    *("asyncio", "concurrent", "jax", "jaxlib", "keras", "logging", "matplotlib"),
    *(
        "multiprocessing",
        "socket",
        "tensorflow",
        "threading",
        "tqdm",
        "torch._C",
        "weakref",
        "_thread",
        "argparse",
    ),
}
_OWN = {"ddl", "runpy", "importlib", "builtins"}
_LIBRARIES = tuple(
    path for key, path in sysconfig.get_paths().items() if key in ("stdlib", "purelib", "platlib")
)


@dataclass
class Item:
    """An attribute of an object, or a variable of a function or a module.

    room   the place where it was found: data, model, program, callbacks
    kind   generator, tensor, number, text, container, position, stateful
    owner  the object of the attribute, or the code of the function, or the module
    field  the name of the attribute or variable
    """

    name: str
    room: str
    kind: str
    owner: Any
    field: str
    value: Any

    @property
    def mark(self) -> str:
        """A digest of the current value, or "" if the value cannot be read."""
        try:
            return mark(self.value.state_dict() if self.kind == "stateful" else self.value)
        except Exception:  # raised by the program's object
            return ""


@dataclass
class Root:
    """The start of a walk: an object, or the variables of a function or module."""

    room: str
    name: str
    value: Any
    owner: Any = None  # of variables: the function's code or the module


def is_user_code(frame: FrameType) -> bool:
    """Return True for a frame of the program, not of a library."""
    package = str(frame.f_globals.get("__name__", "")).split(".")[0]
    file = frame.f_code.co_filename
    return not (
        package.startswith("ddl_")
        or package in _OWN
        or file.startswith(("<frozen", *_LIBRARIES))
        or "site-packages" in file
    )


def program_roots(frame: FrameType | None) -> Iterator[Root]:
    """Yield the variables of the program's active functions, the innermost first, and then the
    variables of its main module."""
    while frame:
        if is_user_code(frame):
            is_module = frame.f_locals is frame.f_globals
            names = {**(frame.f_globals if is_module else frame.f_locals)}
            yield Root("program", "", names, frame.f_code)
        frame = frame.f_back
    main = sys.modules.get("__main__")
    if main:
        yield Root("program", "", dict(vars(main)), main)


class Walk:
    """One pass over all items that are reachable from some roots.

    known  the parts of the job's state, which are skipped
    """

    def __init__(self, known: Iterable[Any]) -> None:
        self._held = list(known)
        self._known = frozenset(id(each) for each in self._held)
        self._seen = set(self._known)
        self._count = 0

    def items(self, roots: Iterable[Root]) -> Iterator[Item]:
        """Yield the items, each once."""
        for root in roots:
            if root.owner is not None and isinstance(root.value, Mapping):
                for name, value in root.value.items():
                    if not name.startswith("__"):
                        yield from self._field(root, root.owner, name, value, name, 0)
            elif classify(root.value) in ("object", "skipped"):
                if id(root.value) not in self._seen:
                    self._seen.add(id(root.value))
                    self._held.append(root.value)
                    yield from self._object(root, root, root.name, root.value, root.name, 0)
            else:
                yield from self._value(root, root, root.name, root.value, root.name, 0)

    def _field(
        self, root: Root, owner: Any, field: str, value: Any, name: str, depth: int
    ) -> Iterator[Item]:
        """Yield an attribute or variable, and the items reachable from it."""
        self._count += 1
        if self._count < ITEMS:
            yield from self._value(root, owner, field, value, name, depth)

    def _value(
        self, root: Root, owner: Any, field: str, value: Any, name: str, depth: int
    ) -> Iterator[Item]:
        kind = classify(value)
        if kind in ("number", "text"):
            yield Item(name, root.room, kind, owner, field, value)
            return
        if kind == "skipped" or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._held.append(value)  # keep it alive, so that its id stays unique
        if kind == "function":
            yield from self._function(root, value, name, depth)
        elif kind == "object":
            if depth < DEPTH:
                yield from self._object(root, owner, field, value, name, depth)
        else:
            own = self._without_known(value) if kind == "container" else value
            if own is not None and not (kind == "container" and _is_structure(field)):
                yield Item(name, root.room, kind, owner, field, own)
            if kind == "container" and depth < DEPTH:
                yield from self._elements(root, owner, field, value, name, depth)

    def _without_known(self, value: Any) -> Any:
        """Return a container without the parts of the job's state, or None if nothing is left."""
        if len(value) > LARGE:
            return value
        if isinstance(value, Mapping):
            own: Any = {key: each for key, each in value.items() if id(each) not in self._known}
        else:
            own = [each for each in value if id(each) not in self._known]
        return value if len(own) == len(value) else own or None

    def _object(
        self, root: Root, owner: Any, field: str, value: Any, name: str, depth: int
    ) -> Iterator[Item]:
        if root.room == "program" and is_stateful(value):
            if not self._is_known(value):
                yield Item(name, root.room, "stateful", owner, field, value)
            return
        for attribute, each in fields_of(value):
            path = name if _is_structure(attribute) else f"{name}.{attribute}"
            yield from self._field(root, value, attribute, each, path, depth + 1)

    def _is_known(self, value: Any) -> bool:
        """Return True for a wrapper or a part of the model."""
        if not hasattr(value, "parameters") or not hasattr(value, "buffers"):
            return False
        tensors = [*value.parameters(), *value.buffers()]
        return bool(tensors) and all(id(each) in self._known for each in tensors)

    def _elements(
        self, root: Root, owner: Any, field: str, value: Any, name: str, depth: int
    ) -> Iterator[Item]:
        """Yield the items that are reachable from the objects in a container."""
        if isinstance(value, Mapping):
            parts = list(value.items())[:ELEMENTS]
        else:
            parts = list(enumerate(value))[:ELEMENTS]
        for key, each in parts:
            if classify(each) in ("object", "function", "generator"):
                path = f"{name}.{key}" if _is_structure(field) else f"{name}[{key}]"
                yield from self._field(root, owner, field, each, path, depth + 1)

    def _function(self, root: Root, value: Any, name: str, depth: int) -> Iterator[Item]:
        if isinstance(value, functools.partial):
            parts: list[tuple[str, Any]] = [("func", value.func)]
            parts += [*enumerate(value.args), *value.keywords.items()]  # type: ignore[list-item]
            for key, each in parts:
                yield from self._field(root, value, str(key), each, f"{name}({key})", depth + 1)
        elif isinstance(value, MethodType):
            yield from self._field(root, value, name, value.__self__, name, depth + 1)
        elif isinstance(value, FunctionType) and value.__closure__:
            for variable, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
                try:
                    each = cell.cell_contents
                except ValueError:  # not assigned yet
                    continue
                yield from self._field(root, value.__code__, variable, each, variable, depth + 1)


def classify(value: Any) -> str:
    """Return the kind of a value."""
    try:
        return _classify(value)
    except Exception:  # raised by an object that computes its attributes
        return "skipped"


def _classify(value: Any) -> str:
    if isinstance(value, bool | int | float | complex):
        return "number"
    if isinstance(value, str | bytes | None):
        return "text"
    if isinstance(value, type | ModuleType | BuiltinFunctionType | FrameType):
        return "skipped"
    if isinstance(value, FunctionType | MethodType | functools.partial):
        return "function"
    checks: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("generator", is_generator),
        ("container", lambda each: isinstance(each, CONTAINERS)),
        ("tensor", is_tensor),
        ("position", is_position),
    )
    for kind, check in checks:
        if check(value):
            return kind
    package = type(value).__module__
    if package.split(".")[0] in _SKIPPED or package in _SKIPPED or package.startswith("ddl_"):
        return "skipped"
    return "object"


def is_stateful(value: Any) -> bool:
    """Return True for an object that could be in `also`."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, and the mutable attributes of its classes in __main__."""
    own: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    for name in getattr(type(value), "__slots__", ()):
        if isinstance(name, str) and hasattr(value, name):
            own[name] = getattr(value, name)
    for each in type(value).__mro__:
        if each.__module__ == "__main__":
            for name, shared in vars(each).items():
                if isinstance(shared, CONTAINERS) or is_generator(shared) or is_tensor(shared):
                    own.setdefault(name, shared)
    # Skip the internal attributes of modules, such as hooks.
    hidden = {"_parameters", "_buffers", "training"} if "_modules" in own else set()
    is_keras = any(each.__module__.split(".")[0] == "keras" for each in type(value).__mro__)
    prefix = "_" if is_keras else "__"
    for name, each in own.items():
        if name not in hidden and not name.startswith(prefix) and "hooks" not in name:
            yield name, each


def _is_structure(name: str) -> bool:
    """Return True for the name of a container that holds only the parts of an object."""
    return name in ("_modules", "_layers")
