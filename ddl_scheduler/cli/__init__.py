# SPDX-License-Identifier: Apache-2.0
"""The commands `ddl serve`, `ddl top`, `ddl simulate --jobs`, and those about jobs."""
