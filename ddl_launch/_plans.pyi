# SPDX-License-Identifier: Apache-2.0
# The cffi module that _build.py generates of csrc/simulation.h.
from typing import Any

ffi: Any
lib: Any
