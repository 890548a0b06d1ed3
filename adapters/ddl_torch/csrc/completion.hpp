// SPDX-License-Identifier: Apache-2.0
// Detection of the end of asynchronous operations.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "ddl/ddl.h"

namespace ddl_torch
{

// A comm's completion queue. Threads that submit an operation, or have waited for one, take
// finished works from it and notify them. That costs next to nothing, and the waiting thread moves
// the data itself. A thread of this class waits only while a future is incomplete; it starts with
// the first future.
class Completion
{
  public:
    explicit Completion(ddl_comm *comm) : comm_(comm)
    {
    }

    // Take the finished works and notify them. Does not block.
    void poll();

    // watch(): a future starts to wait for a work of the queue. unwatch(): it stops waiting.
    void watch();
    void unwatch();

    // Take works until none is pending. Return false if one is still pending after the given time.
    bool drain(double seconds);

    // End the thread. No work may be pending. Return false in that thread, which ends later.
    bool stop();

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
