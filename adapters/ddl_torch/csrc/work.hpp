// One operation of a process group.
#pragma once

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
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
};

// Design notes.
//
// A Work consists of parts: one ddl_work each, all submitted to one comm by one thread, which then
// calls seal(). It ends when its last part has. Whoever notices that first settles it exactly once
// (`settled_`): statuses, copies into the caller's tensors, c10d's own completion. The future, if
// anybody has asked for it, is completed when the last part is taken from the completion queue, by
// the executor, because its callbacks may block.
//
// References: the caller's, and one per part, which whoever takes it from the queue gives back. So
// the tensors outlive the library's use of them also when the caller drops the Work at once.
//
// A Work of an operation that was done at once has no parts.
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

    // ---- for who submits ----

    // One part more: `submit` submits it with options.queued and this as its user pointer.
    template <class Submit> ddl_status add(Submit submit);
    // All parts are submitted.
    void seal();

    // ---- for who takes from the completion queue ----

    void part_ended();

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
    std::vector<ddl_work *> parts_; // unchanged after seal()
    std::atomic<int> remaining_{1}; // parts not yet taken, and 1 until sealed
    std::once_flag settled_;

    std::mutex future_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;   // made when asked for
    std::optional<at::ThreadLocalState> future_state_; // of the thread that asked
    bool future_completed_ = false;
};

template <class Submit> ddl_status Work::add(Submit submit)
{
    // The part may end, and be taken from the queue, before submit returns.
    c10::raw::intrusive_ptr::incref(this);
    remaining_.fetch_add(1, std::memory_order_relaxed);
    ddl_work *part = nullptr;
    ddl_status status = submit(&part);
    if (status == DDL_OK) {
        parts_.push_back(part);
    } else {
        remaining_.fetch_sub(1, std::memory_order_relaxed);
        c10::raw::intrusive_ptr::decref(this);
    }
    return status;
}

} // namespace ddl_torch
