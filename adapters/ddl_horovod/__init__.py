# SPDX-License-Identifier: Apache-2.0
"""Horovod's API over libddl.

    import ddl_horovod.torch as hvd  # was: import horovod.torch as hvd

docs/horovod.md lists the supported functions and the differences. Each framework has its own
module. Importing this package imports no framework.
"""
