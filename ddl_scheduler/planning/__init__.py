# SPDX-License-Identifier: Apache-2.0
"""The policy: which job has which slots, as a pure function, and the models that it uses."""
