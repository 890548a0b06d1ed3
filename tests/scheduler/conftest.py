# SPDX-License-Identifier: Apache-2.0
"""The scheduler of many jobs: its policy alone, and its service with real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import properties  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent / "programs"))
