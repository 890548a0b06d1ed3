# SPDX-License-Identifier: Apache-2.0
"""What a process tells about itself: readings, latencies, dumps, its last exception."""
