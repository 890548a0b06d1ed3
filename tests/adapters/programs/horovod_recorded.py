# SPDX-License-Identifier: Apache-2.0
"""Which names of Horovod's modules a program has used, so that the test knows that none is left
out."""

import functools
import types


class Recorded:
    """A module whose `used` are the names that were of use: of functions those that have returned,
    of all else those that were read."""

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
