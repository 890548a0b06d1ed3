# SPDX-License-Identifier: Apache-2.0
"""The scheduler of `ddl serve`: decides which job has which slots, and runs the jobs."""
