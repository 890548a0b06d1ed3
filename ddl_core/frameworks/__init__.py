# SPDX-License-Identifier: Apache-2.0
"""Private modules that adapters share."""
