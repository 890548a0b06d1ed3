// Threads for the callbacks of futures.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ddl_torch
{

// Runs tasks, each on a thread of its own choice. A task may block until another task has run, as a
// callback does that waits for the next collective; therefore no task ever queues behind a busy
// thread: when all are busy there is one more. Threads that stay idle end.
class Executor
{
  public:
    // The one of this process. Never destroyed, so that it needs no order at exit.
    static Executor &instance();

    // Run task soon, which must not throw. Thread-safe, does not block.
    void run(std::function<void()> task);

    // Wait until no task is queued or running; false after the given time. The caller must not hold
    // the GIL, as callbacks need it.
    bool quiesce(double seconds);

  private:
    void work();
    void start_thread();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    size_t idle_ = 0;    // threads that wait for a task
    size_t running_ = 0; // tasks
};

// A thread that gets no signals: Python's handlers belong to the main thread.
std::thread quiet_thread(std::function<void()> body);

} // namespace ddl_torch
