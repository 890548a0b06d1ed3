// One operation of a process group.
#pragma once

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddl/ddl.h"

namespace ddl_torch
{

class Group;

// Everything that the library reads and writes for one operation, kept until it has ended.
struct Buffers {
    std::vector<at::Tensor> outputs; // what the caller's tensors get; the future's value
    std::vector<at::Tensor> keep;    // other tensors whose memory is in use
    std::vector<std::pair<at::Tensor, at::Tensor>> copies; // first = second, when all went well
    std::function<void()> finish;                          // then this, if set
    std::vector<std::shared_ptr<int>> senders; // who sent what was received, when that is complete
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
// A Work is one ddl_work: of one call, or of a group of calls, which it then owns. Whoever first
// notices that it has ended settles it exactly once (`settled_`): status, copies into the caller's
// tensors, c10d's own completion. The future, if anybody has asked for it, is completed when the
// ddl_work is taken from the completion queue, by the executor, because its callbacks may block.
//
// References: the caller's, and the queue's, which whoever takes it from there gives back. So the
// tensors outlive the library's use of them also when the caller drops the Work at once. `pending_`
// counts to the moment when it was both submitted and taken from the queue, in any order.
//
// A Work of an operation that was done at once is never submitted. While operations are being
// coalesced they share a Work that is not submitted yet, and to wait for it does nothing.
class Work final : public c10d::Work
{
  public:
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

    // ---- for who submits ----

    Buffers &buffers()
    {
        return buffers_;
    }

    // `submit` submits it with options.queued and this as its user pointer. On failure nothing has
    // happened.
    template <class Submit> ddl_status start(Submit submit);
    // What it consists of, to be kept until it has ended.
    void own(GroupOfCalls calls);
    // It has been done at once: complete it.
    void done();

    // ---- for who takes from the completion queue ----

    void taken();

  private:
    bool ended() const;
    void await(std::chrono::milliseconds timeout);
    void settle();
    void deliver();
    void complete_future(const c10::intrusive_ptr<c10::ivalue::Future> &future);

    const std::shared_ptr<Group> group_;
    const char *const name_;
    const uint64_t sequence_;
    Buffers buffers_;
    GroupOfCalls calls_;
    std::atomic<ddl_work *> work_{nullptr};
    std::atomic<int> pending_{2};
    std::once_flag settled_;

    std::mutex future_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;   // made when asked for
    std::optional<at::ThreadLocalState> future_state_; // of the thread that asked
    bool future_completed_ = false;
};

template <class Submit> ddl_status Work::start(Submit submit)
{
    c10::raw::intrusive_ptr::incref(this); // the queue's
    ddl_work *work = nullptr;
    ddl_status status = submit(&work);
    if (status == DDL_OK) {
        work_.store(work, std::memory_order_release);
        taken(); // one of two
    } else {
        c10::raw::intrusive_ptr::decref(this);
    }
    return status;
}

} // namespace ddl_torch
