# SPDX-License-Identifier: Apache-2.0
"""Modules that all other packages use: environment, messages, waiting, and the timeline."""
