# SPDX-License-Identifier: Apache-2.0
"""Profiles of hypothesis: `make test` tries some examples, `make simulate-jobs` more."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile("sample", max_examples=40, deadline=None)
hypothesis.settings.register_profile("full", max_examples=400, deadline=None)
hypothesis.settings.load_profile("sample")
