# SPDX-License-Identifier: Apache-2.0
"""Simulated clusters, and the comparison of schedulers on them."""
