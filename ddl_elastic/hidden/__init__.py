# SPDX-License-Identifier: Apache-2.0
"""Hidden state: state of a program outside the job's state, which joining workers do not get."""
