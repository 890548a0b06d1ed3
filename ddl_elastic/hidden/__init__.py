# SPDX-License-Identifier: Apache-2.0
"""State of a program that is no part of the job's state, so that joining workers do not get it."""
