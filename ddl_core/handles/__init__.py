# SPDX-License-Identifier: Apache-2.0
"""The objects of the library: their lifetimes, and the works that run."""
