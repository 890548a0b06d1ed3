# SPDX-License-Identifier: Apache-2.0
"""Find the meaning of a package's name in the sources, without importing anything.

A name is followed through imports, through assignments (`size = _world.size` is a method of the
class of `_world`), and through the bases of classes, as far as they are in this repository.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOPS = (ROOT, ROOT / "adapters")
# Choices that are made at run time: ddl_keras uses the adapter of Keras's backend. One is shown for
# all.
CHOSEN = {
    ("ddl_keras._adapter", "adapter"): "ddl_tensorflow",
    ("ddl_keras.elastic.pins", "_backend"): "ddl_tensorflow.elastic.pins",
}
# The functions that small adapters export: methods of the class of their `_world`.
FUNCTIONS = "ddl_core.array_functions"

Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Module:
    """A module of this repository."""

    name: str


@dataclass(frozen=True)
class Value:
    """The value that a module assigns, as it is written; or, with `of`, another package's name."""

    text: str
    module: str = ""
    of: str = ""


@dataclass(frozen=True)
class Named:
    """A definition, and the module in which its names mean something."""

    node: Definition
    module: str


Found = Named | Module | Value


@cache
def path(module: str) -> Path | None:
    """Return a module's file."""
    for top in TOPS:
        base = top.joinpath(*module.split("."))
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.exists():
                return file
    return None


@cache
def tree(module: str) -> ast.Module:
    """Return a module's source."""
    file = path(module)
    assert file, module
    return ast.parse(file.read_text())


def public(module: str) -> list[str]:
    """Return the names in `__all__`; without it, the names that the module itself defines."""
    listed: list[str] = []
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed += ast.literal_eval(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Attribute):
            other = _of_expression(module, node.value.value)  # += other.__all__
            assert isinstance(other, Module), ast.unparse(node)
            listed += public(other.name)
    if listed:
        return sorted(listed)
    names = [n.name for n in tree(module).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return [name for name in dict.fromkeys(names) if name[0] != "_"]


def find(module: str, name: str) -> Found | None:
    """Return the meaning of the name in the module."""
    chosen = CHOSEN.get((module, name))
    if chosen:
        return Module(chosen)
    found: Found | None = None
    for node in _statements(tree(module).body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            if not isinstance(found, Named) or not ast.get_docstring(found.node):
                found = Named(node, module)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            if node.module == FUNCTIONS and name in public(FUNCTIONS):
                found = _of_expression(module, ast.parse(f"_world.{name}", mode="eval").body)
            elif node.module and path(node.module) and name in public(node.module):
                found = find(node.module, name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found = _imported(node, name) or found
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            found = _assigned(module, node, name) or found
    if found is None and path(f"{module}.{name}"):
        return Module(f"{module}.{name}")
    return found


def bases(found: Named) -> Iterator[Named]:
    """Return the classes of this repository that are bases of a class, the nearest first."""
    if isinstance(found.node, ast.ClassDef):
        for written in found.node.bases:
            base = _of_expression(found.module, written)
            if isinstance(base, Named):
                yield base
                yield from bases(base)


def method(found: Named, name: str) -> Named | None:
    """Return a method of the class, or of its bases: the last one with its name, which has the
    docstring."""
    for each in (found, *bases(found)):
        nodes = [n for n in each.node.body if isinstance(n, ast.FunctionDef) and n.name == name]
        if nodes:
            return Named(nodes[-1], each.module)
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse])


def _imported(node: ast.ImportFrom | ast.Import, name: str) -> Found | None:
    for alias in node.names:
        if (alias.asname or alias.name.partition(".")[0]) != name:
            continue
        if isinstance(node, ast.Import):
            whole = alias.name if alias.asname else name
            return Module(whole) if path(whole) else Value(whole, of=whole)
        assert node.module
        if path(f"{node.module}.{alias.name}"):
            return Module(f"{node.module}.{alias.name}")
        if path(node.module):
            return find(node.module, alias.name)
        return Value(f"{node.module}.{alias.name}", of=node.module.partition(".")[0])
    return None


def _assigned(module: str, node: ast.Assign | ast.AnnAssign, name: str) -> Found | None:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        pairs: list[tuple[ast.expr, ast.expr | None]] = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [*zip(target.elts, node.value.elts, strict=True)]
        for left, right in pairs:
            if isinstance(left, ast.Name) and left.id == name and right is not None:
                if isinstance(right, ast.Name | ast.Attribute):
                    return _of_expression(module, right) or Value(ast.unparse(right), module)
                return Value(ast.unparse(right), module)
    return None


def _of_expression(module: str, node: ast.expr) -> Found | None:
    """Return the meaning of a name, or of an attribute of something that is found."""
    if isinstance(node, ast.Name):
        return find(module, node.id)
    if isinstance(node, ast.Subscript):  # a generic class
        return _of_expression(module, node.value)
    if not isinstance(node, ast.Attribute):
        return None
    owner = _of_expression(module, node.value)
    if isinstance(owner, Module):
        return find(owner.name, node.attr)
    if isinstance(owner, Value) and not owner.of:  # an object that a call of its class has created
        call = ast.parse(owner.text, mode="eval").body
        if isinstance(call, ast.Call):
            owner = _of_expression(owner.module, call.func)
            found = method(owner, node.attr) if isinstance(owner, Named) else None
            return _bound(found) if found else None
    return None


def _bound(found: Named) -> Named:
    """Return a method in the form of a function of an object."""
    node = copy.deepcopy(found.node)
    assert isinstance(node, ast.FunctionDef)
    node.args.args = node.args.args[1:]
    return Named(node, found.module)
