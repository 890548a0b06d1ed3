# SPDX-License-Identifier: Apache-2.0
"""The conversion of a tree of arrays to an elastic job's state, by the names of its leaves."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ddl_elastic.frameworks import flat
from ddl_elastic.frameworks.protocol import State


def shapes(state: Any) -> Any:
    """Return the state's tree with shapes and dtypes instead of arrays. `state` is a tree or a
    function that returns one."""
    return jax.eval_shape(state if callable(state) else lambda: state)


def save(tree: Any) -> State:
    return flat.pack({name: _plain(leaf) for name, leaf in _named(tree)})


def load(state: State, like: Any) -> Any:
    """Return a tree of NumPy arrays, with JAX's random keys. Raises ValueError if the state belongs
    to another tree."""
    specs = {name: _spec(leaf) for name, leaf in _named(like)}
    found = flat.unpack(state, specs)
    leaves = [
        jax.random.wrap_key_data(found[name], impl=leaf.dtype._impl)
        if _is_key(leaf)
        else found[name]
        for name, leaf in _named(like)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def check(tree: Any, before: Any) -> None:
    """Raise RuntimeError if the leaves of a state have changed: a joining worker starts with the
    leaves of the initial state."""
    if _form(tree) == _form(before):
        return
    now, then = ({name: _describe(leaf) for name, leaf in _named(each)} for each in (tree, before))
    for name in [*then, *now]:
        if now.get(name) != then.get(name):
            raise RuntimeError(
                f"update_fn changed {name} from {then.get(name, 'missing')} to"
                f" {now.get(name, 'missing')}. Create the whole state before the job, including"
                " parts that are used later"
            )
    raise RuntimeError("update_fn changed the tree of the state; must return the same tree")


def _form(tree: Any) -> Any:
    leaves, form = jax.tree.flatten(tree)
    return form, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _describe(leaf: Any) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}"


def _named(tree: Any) -> list[tuple[str, Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(f"state{jax.tree_util.keystr(path)}", leaf) for path, leaf in leaves]


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _spec(leaf: Any) -> Any:
    return jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
