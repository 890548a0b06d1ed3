# SPDX-License-Identifier: Apache-2.0
"""From the arguments of an operation to its call of the library."""
