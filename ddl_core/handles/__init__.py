# SPDX-License-Identifier: Apache-2.0
"""The handles of the library's objects, with their lifetimes, and pending operations."""
