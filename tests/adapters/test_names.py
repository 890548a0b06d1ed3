# SPDX-License-Identifier: Apache-2.0
"""The names of the adapters, and the document that explains them."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parent.parent.parent


def test_document_shows_the_example() -> None:
    example = (ROOT / "examples" / "adapter_numpy.py").read_text()
    text = (ROOT / "docs" / "adapters.md").read_text()
    excerpts = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(excerpts) == 3
    for excerpt in excerpts:
        assert excerpt in example
