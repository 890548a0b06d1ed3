// SPDX-License-Identifier: Apache-2.0
// Extensions of the operations' timeout for a while.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

namespace ddl_torch
{

// The extensions that c10d adds by addEphemeralTimeout(). Each counts for all operations that start
// after it was added, until the first of them ends.
class Extensions
{
  public:
    using Milliseconds = std::chrono::milliseconds;

    void add(Milliseconds extension)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        pending_.push_back({extension, 0});
        any_ = true;
    }

    // Return the extension of the operation with this sequence number, which is above 0.
    Milliseconds begin(uint64_t sequence)
    {
        Milliseconds sum{0};
        if (!any_)
            return sum;
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto &each : pending_) {
            sum += each.extension;
            if (!each.first)
                each.first = sequence;
        }
        return sum;
    }

    // End the operation, which may not have started. 0 stands for no operation.
    void end(uint64_t sequence)
    {
        if (!any_ || !sequence)
            return;
        std::lock_guard<std::mutex> lock(mutex_);
        std::vector<Extension> left;
        for (const auto &each : pending_)
            if (each.first != sequence)
                left.push_back(each);
        pending_.swap(left);
        any_ = !pending_.empty();
    }

  private:
    struct Extension {
        Milliseconds extension;
        uint64_t first; // the first operation that got it; 0: none has started
    };
    std::atomic<bool> any_{false};
    std::mutex mutex_;
    std::vector<Extension> pending_;
};

} // namespace ddl_torch
