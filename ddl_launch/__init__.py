# SPDX-License-Identifier: Apache-2.0
"""Jobs on one machine or many: `ddlrun`, the command `ddl`, and labs, which are simulated hosts.
This package uses ddl_core. ddl_core does not use this package.
"""

from ddl_core.base._sources import installed_path

__path__ = installed_path(__name__, __path__)
