# SPDX-License-Identifier: Apache-2.0
"""Jobs on one machine or many: `ddlrun`, the command `ddl`, and laboratories of hosts.

It uses ddl_core, which does not know it.
"""

from ddl_core._sources import installed_path

__path__ = installed_path(__name__, __path__)
