# SPDX-License-Identifier: Apache-2.0
"""Records the names of Horovod's modules that a program uses, so that the test finds missing
ones."""

import functools
import types


class Recorded:
    """A module that records in `used` the names that have worked: functions that returned, and
    other names that were read."""

    def __init__(self, module, prefix="", used=None):
        self._module, self._prefix = module, prefix
        self.used = set() if used is None else used

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if isinstance(value, types.ModuleType):
            return Recorded(value, f"{name}.", self.used)
        if isinstance(value, type) or not callable(value):
            self.used.add(self._prefix + name)
            return value

        @functools.wraps(value)
        def call(*arguments, **options):
            result = value(*arguments, **options)
            self.used.add(self._prefix + name)
            return result

        return call
