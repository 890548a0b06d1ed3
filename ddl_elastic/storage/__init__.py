# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: their format, the places that hold them, and how ranks write them."""
