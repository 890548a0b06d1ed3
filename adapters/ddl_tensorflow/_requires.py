# SPDX-License-Identifier: Apache-2.0
"""The check that TensorFlow is installed. Import it before every module that imports TensorFlow."""

from ddl_core.frameworks.requirement import require

require("ddl_tensorflow", "tensorflow", "TensorFlow")
