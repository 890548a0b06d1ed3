// The c10d backend "ddl".
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "group.hpp"
#include "tensors.hpp"
#include "work.hpp"

#if __has_include(<torch/version.h>)
#include <torch/version.h>
#endif

namespace ddl_torch
{

// A process group over one libddl comm. An operation that is not overridden here ends in c10d's own
// error "Backend ddl does not support ...".
//
// Operations check their arguments before anything is sent: ValueError or TypeError, with the
// argument and its value. A failure later on (a dead peer, ranks that call different things, a
// timeout) is a DistBackendError from wait() and in the future.
//
// Tensors that are not contiguous are copied. Methods without `override` are virtual only in newer
// versions of PyTorch.
class Backend final : public c10d::Backend
{
  public:
    using Tensors = std::vector<at::Tensor>;
    using WorkPtr = c10::intrusive_ptr<c10d::Work>;

    // Joins the group: blocks until all ranks have, at most `timeout`.
    Backend(c10d::Store &store, int rank, int size, std::chrono::milliseconds timeout);
    ~Backend() override;

    const std::string getBackendName() const override;
    c10::intrusive_ptr<Options> getBackendOptions();
    void setTimeout(std::chrono::milliseconds timeout);
    void setSequenceNumberForGroup() override;
    uint64_t getSequenceNumberForGroup() override;
    void shutdown();
    void abort();
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
    c10d::ErrorType getError() override;
#endif

    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &options) override;
    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override;
    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &options) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &options) override;
    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &options) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &options) override;
    WorkPtr barrier(const c10d::BarrierOptions &options) override;

    // Rank and number among the ranks that share this one's memory.
    std::pair<int, int> local();

  private:
    struct Call; // an operation's names, and how and for how long to run it

    // Start `parts`, functions (comm, const ddl_options *, ddl_work **) -> ddl_status, as one Work.
    template <class Part>
    WorkPtr run(const Call &call, const Tensors &inputs, Buffers buffers,
                const std::vector<Part> &parts);
    template <class Part>
    WorkPtr run_one(const Call &call, const Tensors &inputs, Buffers buffers, const Part &part);

    WorkPtr allgather_rows(const Call &call, const at::Tensor &rows, const at::Tensor &input,
                           Buffers buffers);
    WorkPtr reduce_scatter_rows(const Call &call, const at::Tensor &output, const at::Tensor &rows,
                                ddl_op op, Buffers buffers);

    std::shared_ptr<Group> group_;
    c10::intrusive_ptr<Options> options_;
    std::atomic<uint64_t> sequence_{0};
};

} // namespace ddl_torch
