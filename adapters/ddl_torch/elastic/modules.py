# SPDX-License-Identifier: Apache-2.0
"""A counter of assignments of parameters, buffers and modules to any module of this process. As
long as the counter does not change, a model has the same tensors. Comparing all tensors instead
would double a step's overhead.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module

changes = 0


def _count(owner: nn.Module, name: str, value: Any) -> None:
    global changes
    # Not getattr, which raises KeyError while torch.compile makes a module.
    known = owner._parameters, owner._buffers, owner._modules
    changes += next((each[name] for each in known if name in each), None) is not value


module.register_module_parameter_registration_hook(_count)
module.register_module_buffer_registration_hook(_count)
module.register_module_module_registration_hook(_count)
