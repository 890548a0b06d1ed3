# SPDX-License-Identifier: Apache-2.0
"""The commands `ddl serve`, `ddl top`, `ddl job`, `ddl token` and `ddl simulate --jobs`."""
