# SPDX-License-Identifier: Apache-2.0
"""Compares the runs of `ddl elastic verify`, and finds why they differ."""
