# SPDX-License-Identifier: Apache-2.0
"""The names of the adapters, and the document that explains them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parent.parent.parent
RENAMED = [
    ("torch", "all_gather_object", "allgather_object"),
    ("tensorflow", "all_gather_object", "allgather_object"),
    ("tensorflow", "broadcast_variables", "broadcast_parameters"),
    ("jax", "all_reduce_gradients", "allreduce_gradients"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "old", "new"), RENAMED)
def test_old_names(framework: str, old: str, new: str) -> None:
    """They give the same functions, and warn; docs/adapters.md lists them."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"there is no {framework}")
    ddl = importlib.import_module(f"ddl_{framework}")
    said = f"^ddl_{framework}.{old} is deprecated: use ddl_{framework}.{new}$"
    with pytest.warns(DeprecationWarning, match=said) as warned:
        function = getattr(ddl, old)
    assert function is getattr(ddl, new)
    assert Path(warned[0].filename) == Path(__file__)
    assert old not in ddl.__all__
    with pytest.raises(AttributeError, match=f"'ddl_{framework}' has no attribute 'no_such_name'"):
        _ = ddl.no_such_name
    assert f"`{old}` | `{new}` |" in (ROOT / "docs" / "adapters.md").read_text()


def test_document_shows_the_example() -> None:
    """Each piece of Python in docs/adapters.md is in the example as it is."""
    example = (ROOT / "examples" / "adapter_numpy.py").read_text()
    text = (ROOT / "docs" / "adapters.md").read_text()
    excerpts = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(excerpts) == 3
    for excerpt in excerpts:
        assert excerpt in example
