# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of libddl and other libraries: `python -m bench --help`."""
