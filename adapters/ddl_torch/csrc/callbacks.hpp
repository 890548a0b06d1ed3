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
// Design notes. On a GPU, PyTorch's futures are complete at once, so callbacks run in the thread
// that adds them, and the operations that they start have one order on all ranks. On CPUs a
// callback must wait for the data. Here it waits on a thread of the executor while the thread that
// added it continues. That keeps the order among callbacks, but not the order between them and that
// thread. So the backend matches collectives that callbacks start by name; each name has the
// group's tag and a number (Backend::name_of).
class Callbacks : public std::enable_shared_from_this<Callbacks>
{
  public:
    explicit Callbacks(uint64_t tag) : tag_(tag)
    {
    }

    // Run the callback after all previously added ones have ended; at once in a thread that runs a
    // callback. It may block until other operations have ended. The caller must not hold the GIL.
    void add(std::function<void()> callback);

    // The methods of PyTorch's Future, in this order. `of_callback`: the future is the result of a
    // callback. The caller holds the GIL.
    using FuturePtr = std::shared_ptr<torch::jit::PythonFutureWrapper>;
    pybind11::object then(const FuturePtr &future, pybind11::function callback, bool of_callback);
    void add_done_callback(const FuturePtr &future, pybind11::function callback, bool of_callback);

    // Return the tag of the group whose callback this thread runs; 0 if it runs none.
    static uint64_t current();

  private:
    void open_in_order(const FuturePtr &gate, const FuturePtr &future, bool of_callback);
    void run();

    const uint64_t tag_;
    std::mutex mutex_;
    std::deque<std::function<void()>> waiting_;
    bool running_ = false;
};

// Return the future of an operation for Python, of the class in ../futures.py. In a stream it is
// complete at once; it is then PyTorch's future, whose callbacks run in the thread that adds them.
// It is PyTorch's future, too, if the group does not order its callbacks.
// The caller holds the GIL.
pybind11::object future_of(Work &work);

} // namespace ddl_torch
