# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a job, which starts and monitors workers, and plans changes of the group."""
