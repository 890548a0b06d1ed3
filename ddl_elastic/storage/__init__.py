# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: their format, the storage that holds them, and how ranks write them."""
