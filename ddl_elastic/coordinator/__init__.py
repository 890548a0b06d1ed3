# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a job, which starts workers, plans changes of the group, and watches."""
