# SPDX-License-Identifier: Apache-2.0
"""One step of a group: shares, ordered sums, the vote, recovery, and changes of the group."""
