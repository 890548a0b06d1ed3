# SPDX-License-Identifier: Apache-2.0
"""Jobs whose state is sharded: each rank holds ranges of the optimizer's state."""
