// SPDX-License-Identifier: Apache-2.0
#include "executor.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <limits>
#include <system_error>

namespace ddl_torch
{

std::thread quiet_thread(std::function<void()> body)
{
    struct BlockSignals {
        sigset_t before;
        BlockSignals()
        {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
        }
        ~BlockSignals()
        {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
        }
    } blocked; // threads inherit the signal mask
    return std::thread(std::move(body));
}

Executor::Executor(const char *name, size_t threads_max, std::chrono::seconds idle_time)
    : name_(name), threads_max_(threads_max), idle_time_(idle_time)
{
}

Executor &Executor::instance()
{
    // A forked child has the object but not its threads, so it creates a new executor.
    static std::mutex mutex;
    static Executor *executor = nullptr;
    static pid_t owner = 0;
    std::lock_guard<std::mutex> lock(mutex);
    if (!executor || owner != getpid()) {
        executor = new Executor("ddl callbacks", std::numeric_limits<size_t>::max(),
                                std::chrono::seconds(5));
        owner = getpid();
    }
    return *executor;
}

void Executor::run(std::function<void()> task)
{
    std::unique_lock<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() <= idle_ || idle_ + running_ >= threads_max_) {
        changed_.notify_all();
        return;
    }
    try {
        quiet_thread([this] { work(); }).detach();
    } catch (const std::system_error &) {
        // The task waits for an existing thread. If there is none, it would never run.
        if (idle_ + running_ > 0)
            return;
        task = std::move(tasks_.back());
        tasks_.pop_back();
        lock.unlock(); // freeing the task's captures may need the GIL
        throw;
    }
}

void Executor::work()
{
    pthread_setname_np(pthread_self(), name_);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        if (tasks_.empty()) {
            ++idle_;
            bool called = changed_.wait_for(lock, idle_time_, [this] { return !tasks_.empty(); });
            --idle_;
            if (!called)
                return;
        }
        std::function<void()> task = std::move(tasks_.front());
        tasks_.pop_front();
        ++running_;
        lock.unlock();
        task();
        task = nullptr; // freeing its captures may need the GIL, so not under the lock
        lock.lock();
        --running_;
        changed_.notify_all();
    }
}

bool Executor::quiesce(double seconds)
{
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [this] { return tasks_.empty() && running_ == 0; });
}

} // namespace ddl_torch
