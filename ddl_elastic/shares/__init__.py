# SPDX-License-Identifier: Apache-2.0
"""The samples and shares of a step: their assignment to ranks, and the reading of samples."""
