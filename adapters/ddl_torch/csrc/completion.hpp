// Who hears of the end of asynchronous operations.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "ddl/ddl.h"

namespace ddl_torch
{

// One comm's completion queue. Finished works are taken from it and told by whoever comes by: a
// thread that submits the next operation or has waited for one. That costs next to nothing and
// leaves all the rest to the waiting thread, which moves the data itself. Only while somebody holds
// a future that is not complete, a thread of its own waits for it. The thread starts with the first
// future.
class Completion
{
  public:
    explicit Completion(ddl_comm *comm) : comm_(comm)
    {
    }

    // Take the works that have finished, and tell them. Does not block.
    void poll();

    // A future waits for a work of the queue; and it does no longer.
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
