# SPDX-License-Identifier: Apache-2.0
"""Many jobs on one cluster: which job has which slots, and when."""
