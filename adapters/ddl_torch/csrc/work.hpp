// SPDX-License-Identifier: Apache-2.0
// One operation of a process group.
#pragma once

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ddl/ddl.h"

namespace ddl_torch
{

class Group;

// A copy to = from. On an accelerator it runs in a stream, which is waited for.
struct Copy {
    at::Tensor to, from;
    std::optional<c10::Stream> stream;
};

// Everything that the library reads and writes for one operation, kept until the operation has
// ended.
struct Buffers {
    std::vector<at::Tensor> outputs;           // the results in the caller's tensors
    std::vector<at::Tensor> keep;              // other tensors whose memory is in use
    std::vector<Copy> copies;                  // copies to make if all went well
    std::function<void()> finish;              // called after the copies, if set
    std::vector<std::shared_ptr<int>> senders; // the ranks that sent the received messages
    // The stream of the operation, if its memory is on a GPU. The copies follow in it.
    std::optional<c10::Stream> stream;
};

struct DestroyGroup {
    void operator()(ddl_group *group) const
    {
        ddl_group_destroy(group);
    }
};
using GroupOfCalls = std::unique_ptr<ddl_group, DestroyGroup>;

// Design notes.
//
// A Work is one ddl_work, either of one call or of a group of calls, which it then owns. The first
// thread that notices its end settles it exactly once (`settled_`): status, copies into the
// caller's tensors, c10d's own completion. If a future was requested, a thread that waits for the
// work completes it, so that it has its value when wait() returns. If none waits, the executor
// completes it after the ddl_work was taken from the completion queue: its callbacks may block.
//
// There are two references: the caller's, and the queue's, which is dropped when the work is taken
// from the queue. So the tensors outlive the library's use of them even if the caller drops the
// Work at once. `pending_` reaches 0 when the work was both submitted and taken from the queue, in
// either order.
//
// An operation on a GPU runs in a stream of the group. `followed_` is its end in this stream,
// including the copies, which are queued at the submission. wait() lets the current stream wait for
// that, and the host only if it sets a limit; a future is complete at once, as PyTorch's futures in
// a stream are.
//
// An operation that completes at once has a Work that is never submitted. Operations that are being
// coalesced share a Work that is not submitted yet; waiting for it does nothing.
class Work final : public c10d::Work
{
  public:
    // The profiling title is null for an operation for which the calling thread does not wait.
    Work(std::shared_ptr<Group> group, int rank, c10d::OpType type, const char *name,
         const char *profiling_title, const std::vector<at::Tensor> &inputs, Buffers buffers,
         uint64_t sequence);
    ~Work() override;

    bool isCompleted() override;
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    std::vector<at::Tensor> result() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    uint64_t getSequencenumber() const override;

    int sourceRank() const override;

    Group &group() const
    {
        return *group_;
    }

    // ---- for the submitter ----

    Buffers &buffers()
    {
        return buffers_;
    }

    // Submit the work with `submit`, with options.queued and this as the user pointer. A failure
    // drops its calls, which must not outlive the comm.
    template <class Submit> ddl_status start(Submit submit);
    // Keep the calls of the work until it has ended.
    void own(GroupOfCalls calls);
    // Show the submitted operation to a profiler, if there is one, on another thread, because
    // slices of one thread must nest. wait() returns when the slice has ended.
    // ordered: it runs after the operations before it, so it belongs on the group's track
    void profile(const char *title, const std::vector<at::Tensor> &inputs, bool ordered);
    // Complete an operation that needed no submission.
    void done();
    // Have the completion thread notice its end, so that a failure is reported without a wait().
    void watch();

    // ---- for the completion queue ----

    void taken();

  private:
    bool ended() const;
    void await(std::chrono::milliseconds timeout);
    std::exception_ptr follow();
    void settle();
    void unwatch();
    std::exception_ptr copy_results();
    void deliver();
    std::vector<at::Tensor> value() const;
    c10::intrusive_ptr<c10::ivalue::Future> claim_future();
    void complete_claimed(const c10::intrusive_ptr<c10::ivalue::Future> &future);
    void complete_future(const c10::intrusive_ptr<c10::ivalue::Future> &future);
    void await_future();

    const std::shared_ptr<Group> group_;
    const char *const name_;
    const uint64_t sequence_;
    Buffers buffers_;
    GroupOfCalls calls_;
    std::atomic<ddl_work *> work_{nullptr};
    std::atomic<int> pending_{2};
    std::once_flag settled_;
    std::optional<c10::Event> followed_;
    std::shared_future<void> profiled_; // set before the submitter gets the work

    std::mutex future_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;   // created when requested
    std::optional<at::ThreadLocalState> future_state_; // of the requesting thread
    bool future_completed_ = false;
    bool watched_ = false; // set before the submission
};

template <class Submit> ddl_status Work::start(Submit submit)
{
    c10::raw::intrusive_ptr::incref(this); // the queue's reference
    ddl_work *work = nullptr;
    ddl_status status = submit(&work);
    if (status != DDL_OK) {
        calls_.reset();
        unwatch();
        c10::raw::intrusive_ptr::decref(this);
        return status;
    }
    auto failure = follow(); // before another thread can settle it
    work_.store(work, std::memory_order_release);
    taken(); // one of two calls
    if (failure)
        std::rethrow_exception(failure);
    return DDL_OK;
}

} // namespace ddl_torch
