// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace ddl_torch
{

// Releases the GIL in a scope if the thread holds it. PyTorch calls some methods with it, some
// without. A thread that waits for a lock must not hold the GIL if the holder of the lock may need
// it: to run Python, or to copy or drop a tensor that Python knows.
class NoGil
{
  public:
    NoGil()
    {
        if (Py_IsInitialized() && PyGILState_Check())
            released_.emplace();
    }

  private:
    std::optional<pybind11::gil_scoped_release> released_;
};

} // namespace ddl_torch
