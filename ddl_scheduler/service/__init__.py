# SPDX-License-Identifier: Apache-2.0
"""The service behind `ddl serve`, which carries out the policy's decisions."""
