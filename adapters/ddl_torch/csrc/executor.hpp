// SPDX-License-Identifier: Apache-2.0
// Threads for the callbacks of futures.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ddl_torch
{

// Runs tasks on threads. A task may block until another task has run, for example a callback that
// waits for the next collective. So no task waits behind a busy thread: if all threads are busy,
// another thread starts, up to a limit. Idle threads exit after some time.
class Executor
{
  public:
    // name: of its threads; at most 15 characters.
    Executor(const char *name, size_t threads_max, std::chrono::seconds idle_time);

    // Return the executor of this process. It is never destroyed, so that the order of exit does
    // not matter.
    static Executor &instance();

    // Run the task soon. It must not throw. Thread-safe, does not block. Throws std::system_error
    // if there is no thread and none can be started.
    void run(std::function<void()> task);

    // Wait until no task is queued or running. Return false after the given time. The caller must
    // not hold the GIL, because callbacks need it.
    bool quiesce(double seconds);

  private:
    void work();

    const char *const name_;
    const size_t threads_max_;
    const std::chrono::seconds idle_time_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    size_t idle_ = 0;    // threads that wait for a task
    size_t running_ = 0; // running tasks
};

// Return a thread that receives no signals: Python handles them on the main thread.
std::thread quiet_thread(std::function<void()> body);

} // namespace ddl_torch
