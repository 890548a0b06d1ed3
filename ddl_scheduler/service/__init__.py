# SPDX-License-Identifier: Apache-2.0
"""The service behind `ddl serve`: it carries out what the policy decides."""
