# SPDX-License-Identifier: Apache-2.0
"""The search for the line of a program that changes an attribute or a variable."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ddl_elastic.hidden.walk import Item


def locate(item: Item) -> str:
    """Return FILE:LINE of the statement that changes an item, or else of the statement that creates
    it. Return "" if neither is found."""
    file, scope = _scope(item.owner)
    file = file or getattr(sys.modules.get("__main__"), "__file__", "") or ""
    tree = _parse(file) if file else None
    if tree is None:
        return ""
    node = _find_scope(tree, scope) or tree
    attribute = not isinstance(item.owner, CodeType | ModuleType)
    lines = [*_changes(node, item.field, attribute)]
    if not lines:
        lines = [*_changes(tree, item.field, True), *_changes(tree, item.field, False)]
    changing = [line for line, is_first in lines if not is_first] or [line for line, _ in lines]
    return f"{Path(file).name}:{changing[0]}" if changing else ""


def is_made_again(item: Item) -> bool:
    """Return True for a variable that each iteration of a loop assigns before it reads it. Such a
    variable keeps no state."""
    if not isinstance(item.owner, CodeType | ModuleType):
        return False
    file, scope = _scope(item.owner)
    tree = _parse(file) if file else None
    if tree is None:
        return False
    return item.field in _loop_variables(file, scope)


@lru_cache(maxsize=64)
def _loop_variables(file: str, scope: tuple[str, int]) -> frozenset[str]:
    tree = _parse(file)
    assert tree
    node = _find_scope(tree, scope) or tree
    assigned: set[str] = set()
    kept: set[str] = set()
    for loop in (each for each in _own(node) if isinstance(each, ast.For | ast.While)):
        if isinstance(loop, ast.For):
            assigned |= _names(loop.target)
        for each in ast.walk(loop):
            if isinstance(each, ast.Assign):
                names = {name for target in each.targets for name in _plain(target)}
                assigned |= names
                kept |= names & _names(each.value)
            elif isinstance(each, ast.AugAssign):
                kept |= _names(each.target)
    return frozenset(assigned - kept)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, but not the nodes of its functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from _own(child)


def _plain(target: ast.AST) -> set[str]:
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Tuple | ast.List | ast.Starred):
        return {name for child in ast.iter_child_nodes(target) for name in _plain(child)}
    return set()


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _scope(owner: Any) -> tuple[str, tuple[str, int]]:
    """Return the file of an owner, and the name and first line of its code there."""
    if isinstance(owner, CodeType):
        return owner.co_filename, (owner.co_name, owner.co_firstlineno)
    if isinstance(owner, ModuleType):
        return getattr(owner, "__file__", "") or "", ("<module>", 1)
    kind = type(owner)
    module = sys.modules.get(kind.__module__)
    try:
        file = getattr(module, "__file__", "") or inspect.getsourcefile(kind) or ""
    except TypeError:
        file = ""
    if "site-packages" in file:
        return "", ("", 0)
    return file, (kind.__name__, 0)


@lru_cache(maxsize=64)
def _parse(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def _find_scope(tree: ast.Module, scope: tuple[str, int]) -> ast.AST | None:
    name, line = scope
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [each for each in ast.walk(tree) if isinstance(each, kinds) and each.name == name]
    exact = [each for each in found if line in (each.lineno, *_decorated(each))]
    return next(iter(exact or found), None)


def _decorated(node: Any) -> list[int]:
    return [each.lineno for each in node.decorator_list]


def _changes(node: ast.AST, field: str, attribute: bool) -> Iterator[tuple[int, bool]]:
    """Yield each line that sets the field, with True if the line only creates the field, as in
    __init__."""
    inits = [
        each
        for each in ast.walk(node)
        if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__new__")
    ]
    first = {n for each in inits for n in range(each.lineno, (each.end_lineno or 0) + 1)}
    seen = False
    for each in sorted(ast.walk(node), key=lambda n: getattr(n, "lineno", 0)):
        for target, is_change in _targets(each):
            if _is_field(target, field, attribute):
                line = target.lineno
                yield line, line in first or (not attribute and not is_change and not seen)
                seen = True


def _targets(node: ast.AST) -> Iterator[tuple[Any, bool]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, isinstance(target, ast.Subscript)
    elif isinstance(node, ast.AugAssign):
        yield node.target, True
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, False
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node.func.value, True


def _is_field(target: Any, field: str, attribute: bool) -> bool:
    while isinstance(target, ast.Subscript):
        target = target.value
    if attribute:
        return isinstance(target, ast.Attribute) and target.attr == field
    return isinstance(target, ast.Name) and target.id == field
