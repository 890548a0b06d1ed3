# SPDX-License-Identifier: Apache-2.0
"""How often any module of this process got another parameter, buffer or module.

A model keeps its tensors meanwhile. To look at all of them would take as long as everything else
that a step does besides its computation.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module

changes = 0


def _count(owner: nn.Module, name: str, value: Any) -> None:
    global changes
    changes += getattr(owner, name, None) is not value


module.register_module_parameter_registration_hook(_count)
module.register_module_buffer_registration_hook(_count)
module.register_module_module_registration_hook(_count)
