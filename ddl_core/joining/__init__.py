# SPDX-License-Identifier: Apache-2.0
"""How a process finds and joins its job: launchers, environment, MPI."""
