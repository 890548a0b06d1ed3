# SPDX-License-Identifier: Apache-2.0
"""Modules that all commands use: numbers with units, help for the parsers."""
