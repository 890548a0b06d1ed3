# SPDX-License-Identifier: Apache-2.0
"""Reports of a process about itself: readings, latencies, dumps, its last exception."""
