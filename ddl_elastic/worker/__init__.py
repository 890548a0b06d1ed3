# SPDX-License-Identifier: Apache-2.0
"""The training loop of one worker, from joining the job to the end of the program."""
