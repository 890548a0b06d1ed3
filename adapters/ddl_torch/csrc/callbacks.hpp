// SPDX-License-Identifier: Apache-2.0
// The order in which callbacks of futures run.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace ddl_torch
{

class Work;

// Runs the callbacks of one group's futures one at a time, in the order in which they were added.
//
// Design notes. On a GPU, PyTorch's futures are complete at once, so callbacks run where they are
// added, and what they start has one order on all ranks. On CPUs a callback must wait for the data.
// Here it waits on a thread of the executor while the thread that added it continues. That keeps
// the order among callbacks, but not the order between them and that thread. So the backend matches
// the collectives that callbacks start by name; each name has the group's tag and a number
// (Backend::name_of).
class Callbacks : public std::enable_shared_from_this<Callbacks>
{
  public:
    explicit Callbacks(uint64_t tag) : tag_(tag)
    {
    }

    // Run it after those added before have ended; at once in a thread that runs a callback. It may
    // block until other operations have ended. The caller must not hold the GIL.
    void add(std::function<void()> callback);

    // PyTorch's methods of Future, in this order; `of_callback`: the future is that of a callback's
    // result. The caller holds the GIL.
    using FuturePtr = std::shared_ptr<torch::jit::PythonFutureWrapper>;
    pybind11::object then(const FuturePtr &future, pybind11::function callback, bool of_callback);
    void add_done_callback(const FuturePtr &future, pybind11::function callback, bool of_callback);

    // The tag of the group whose callback this thread runs; 0: it runs none.
    static uint64_t current();

  private:
    void open_in_order(const FuturePtr &gate, const FuturePtr &future, bool of_callback);
    void run();

    const uint64_t tag_;
    std::mutex mutex_;
    std::deque<std::function<void()>> waiting_;
    bool running_ = false;
};

// The future of an operation, for Python: ../futures.py's. In a stream it is complete at once; then
// it is PyTorch's, whose callbacks run where they are added. The caller holds the GIL.
pybind11::object future_of(Work &work);

} // namespace ddl_torch
