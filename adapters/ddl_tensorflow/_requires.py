# SPDX-License-Identifier: Apache-2.0
"""Imported before everything that imports TensorFlow."""

from ddl_core.frameworks import require

require("ddl_tensorflow", "tensorflow", "TensorFlow")
