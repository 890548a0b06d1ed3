// SPDX-License-Identifier: Apache-2.0
#include "completion.hpp"

#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "executor.hpp"
#include "work.hpp"

namespace ddl_torch
{

// Wait for the first finished work, then take some and notify them. Return DDL_ETIMEDOUT if works
// are pending but none has finished, DDL_ESTATE if none is pending.
ddl_status Completion::take(int64_t timeout_ms)
{
    constexpr int kMax = 32;
    void *users[kMax];
    int taken = 0;
    ddl_status status = ddl_comm_completed(comm_, nullptr, users, kMax, timeout_ms, &taken);
    for (int i = 0; status == DDL_OK && i < taken; i++)
        c10::intrusive_ptr<Work>::reclaim(static_cast<Work *>(users[i]))->taken();
    return status;
}

void Completion::poll()
{
    while (take(0) == DDL_OK) {
    }
}

void Completion::watch()
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable() && !stopping_)
        thread_ = quiet_thread([this] { run(); });
    if (++watched_ == 1)
        changed_.notify_one();
}

void Completion::unwatch()
{
    std::lock_guard<std::mutex> lock(mutex_);
    --watched_;
}

bool Completion::drain(double seconds)
{
    constexpr int64_t kSliceMs = 20;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    ddl_status status;
    while ((status = take(kSliceMs)) != DDL_ESTATE) {
        if (std::chrono::steady_clock::now() > deadline)
            return false;
    }
    return true;
}

bool Completion::stop()
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
        changed_.notify_one();
    }
    if (thread_.get_id() == std::this_thread::get_id())
        return false;
    if (thread_.joinable())
        thread_.join();
    return true;
}

void Completion::run()
{
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return watched_ > 0 || stopping_; });
        if (stopping_)
            return;
        lock.unlock();
        // Another thread may have taken the awaited work and may be about to notify it.
        if (take(-1) != DDL_OK)
            std::this_thread::yield();
        lock.lock();
    }
}

} // namespace ddl_torch
