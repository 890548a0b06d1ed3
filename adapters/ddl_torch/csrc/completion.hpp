// SPDX-License-Identifier: Apache-2.0
// How the end of asynchronous operations is noticed.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "ddl/ddl.h"

namespace ddl_torch
{

// One comm's completion queue. Finished works are taken from it and notified by the threads that
// submit the next operation or have waited for one. That costs next to nothing, and the waiting
// thread moves the data itself. Only while a future is incomplete does a thread of this class wait
// for it; the thread starts with the first future.
class Completion
{
  public:
    explicit Completion(ddl_comm *comm) : comm_(comm)
    {
    }

    // Take the finished works and notify them. Does not block.
    void poll();

    // A future starts to wait for a work of the queue; it stops waiting.
    void watch();
    void unwatch();

    // Take works until none is pending; false if one still is after the given time.
    bool drain(double seconds);

    // End the thread. No work may be pending.
    void stop();

  private:
    ddl_status take(int64_t timeout_ms);
    void run();

    ddl_comm *const comm_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int watched_ = 0;
    bool stopping_ = false;
    std::thread thread_;
};

} // namespace ddl_torch
