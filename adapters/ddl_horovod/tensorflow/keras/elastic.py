# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Horovod's elastic module: its names raise an error that says what to use."""

from ddl_horovod.common import no_elastic

__getattr__ = no_elastic("ddl_keras")
