# SPDX-License-Identifier: Apache-2.0
"""Modules that all other packages use: job specifications, folders and logs, and the store."""
