# SPDX-License-Identifier: Apache-2.0
"""In the place of Horovod's module for elastic training: says what to use."""

from ddl_horovod.common import no_elastic

__getattr__ = no_elastic("ddl_elastic with a model of Keras")
