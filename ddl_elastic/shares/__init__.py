# SPDX-License-Identifier: Apache-2.0
"""The samples and shares of a step: which rank computes which, and how samples are read."""
