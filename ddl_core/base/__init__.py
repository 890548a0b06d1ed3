# SPDX-License-Identifier: Apache-2.0
"""Modules that the whole package uses: the extension modules, paths, settings."""
