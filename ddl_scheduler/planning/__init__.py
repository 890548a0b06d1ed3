# SPDX-License-Identifier: Apache-2.0
"""The policy, a pure function that decides which job has which slots, and the models that it
uses."""
