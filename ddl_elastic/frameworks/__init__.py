# SPDX-License-Identifier: Apache-2.0
"""The protocol of a framework's adapter, and the parts that adapters share."""
