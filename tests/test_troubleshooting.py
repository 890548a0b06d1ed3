# SPDX-License-Identifier: Apache-2.0
"""Each error message of the sources is explained by a section of docs/troubleshooting.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import messages  # noqa: E402

pytestmark = pytest.mark.pure


def test_every_message_has_a_section() -> None:
    known = messages.families()
    found = messages.messages()
    assert len(found) > 500
    without = [f"{m.file}: {m.text}" for m in found if messages.family(m, known) is None]
    assert not without, "\n".join(["docs/troubleshooting.md does not explain:", *without])


def test_every_section_and_pattern_is_needed() -> None:
    known = messages.families()
    found = messages.messages()
    for family in known:
        for pattern in family.patterns:
            assert any(pattern.search(m.text) for m in found), (family.title, pattern.pattern)
        assert any(messages.family(m, known) is family for m in found), family.title


def test_an_unknown_message_is_noticed() -> None:
    strange = messages.Message("x.py", "RuntimeError: the frobnicator is in disarray")
    assert messages.family(strange, messages.families()) is None


def test_values_are_left_out() -> None:
    texts = [m.text for m in messages.messages()]
    assert 'DDL_EINVAL: DDL_ENCRYPT="%s": must be 1 or 0' in texts
    assert not [t for t in texts if t.startswith("DDL_") and re.search("%[dul]", t)]


def test_native_parts_and_the_scheduler_are_read() -> None:
    texts = [m.text for m in messages.messages()]
    for text in (
        "DDL_EPEER: %s left the comm while %s called %s",  # by a function that ends the comm
        "DDL_EABORTED: %s aborted: ddl_comm_destroy while operations were pending",
        "DistBackendError: ddl endCoalescing: coalescing has not been started",  # TORCH_CHECK_WITH
        "ValueError: ddl %s: there are %s inputs, but %s outputs",  # TORCH_CHECK_VALUE
        "InvalidArgumentError: ddl %s: op: %s is unknown",  # OP_REQUIRES
        "XlaRuntimeError: ddl: not initialized: call ddl_jax.init() first",
        "HttpError: the request has no token",
        "HttpError: job %s is %s, not paused or failed",
        "HttpError: %s streams are open already%s; close one first",  # by a variable
        "HttpError: host is %s; allowed: one of %s, in the Host header",  # by a field
    ):
        assert text in texts, text
    native = {m.file for m in messages.messages() if "/csrc/" in m.file}
    for adapter in ("ddl_torch", "ddl_tensorflow", "ddl_jax"):
        assert any(adapter in file for file in native)
