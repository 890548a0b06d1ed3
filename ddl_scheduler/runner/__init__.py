# SPDX-License-Identifier: Apache-2.0
"""The process of one job of `ddl serve`, and the process that starts it."""
