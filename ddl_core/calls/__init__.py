# SPDX-License-Identifier: Apache-2.0
"""The conversion of an operation's arguments to a call of the library."""
