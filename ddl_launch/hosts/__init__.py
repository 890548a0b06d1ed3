# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job, and the launchers that start its ranks there."""
