# SPDX-License-Identifier: Apache-2.0
"""What adapters share that is no public module."""
