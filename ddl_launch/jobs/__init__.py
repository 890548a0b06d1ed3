# SPDX-License-Identifier: Apache-2.0
"""The processes of a job, on this host or on others: their start, output, failures and end."""
