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


OUTER = "outer"  # the names' prefix of an outer optimizer's state


def save(tree: Any, outer: Any = ()) -> State:
    """Return the job's state, including the outer optimizer's state."""
    named = [*_named(tree), *_named(outer, OUTER)]
    return flat.pack({name: plain(leaf) for name, leaf in named})


def load(state: State, tree: Any, outer: Any = ()) -> tuple[Any, Any]:
    """Return the trees of the job's state and of the outer optimizer's state, with NumPy arrays and
    JAX's random keys. Raises ValueError if the state does not fit these trees."""
    named = [*_named(tree), *_named(outer, OUTER)]
    found = flat.unpack(state, {name: _spec(leaf) for name, leaf in named})
    leaves = [like(leaf, found[name]) for name, leaf in named]
    forms = [jax.tree.structure(each) for each in (tree, outer)]
    cut = forms[0].num_leaves
    return jax.tree.unflatten(forms[0], leaves[:cut]), jax.tree.unflatten(forms[1], leaves[cut:])


def is_own(name: str) -> bool:
    """Return False if the name belongs to the outer optimizer's state."""
    return not name.startswith(OUTER)


def names(tree: Any) -> list[str]:
    """Return the names of the tree's leaves."""
    return [name for name, _ in _named(tree)]


def plain(leaf: Any) -> flat.Values:
    """Return a leaf as a NumPy array. If the leaf is a random key, return its data."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def like(leaf: Any, value: flat.Values) -> Any:
    """Return a value that `plain` has returned. Convert it to a random key if `leaf` is one."""
    return jax.random.wrap_key_data(value, impl=leaf.dtype._impl) if _is_key(leaf) else value


def check(tree: Any, before: Any) -> None:
    """Raise RuntimeError if the tree has other leaves than the tree `before`, because a joining
    worker starts with the leaves of the initial state."""
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


def _named(tree: Any, prefix: str = "state") -> list[tuple[str, Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(f"{prefix}{jax.tree_util.keystr(path)}", leaf) for path, leaf in leaves]


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _spec(leaf: Any) -> Any:
    return jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
