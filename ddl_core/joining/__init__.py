# SPDX-License-Identifier: Apache-2.0
"""Detection of a process's job, and joining it: launchers, environment, MPI."""
