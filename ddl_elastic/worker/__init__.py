# SPDX-License-Identifier: Apache-2.0
"""The loop of one worker, which takes it from joining the job to the end of the program."""
