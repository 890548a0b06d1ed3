# SPDX-License-Identifier: Apache-2.0
"""Horovod's API over libddl.

    import ddl_horovod.torch as hvd  # was: import horovod.torch as hvd

docs/horovod.md lists what is served and what differs. Each framework has a module of its own;
importing this package imports none.
"""
