// SPDX-License-Identifier: Apache-2.0
// The c10d backend "ddl".
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpu.hpp"
#include "group.hpp"
#include "operation.hpp"
#include "roster.hpp"
#include "tensors.hpp"
#include "work.hpp"

#if __has_include(<torch/version.h>)
#include <torch/version.h>
#endif

namespace ddl_torch
{

// A process group over one libddl comm. An operation that is not overridden here fails with c10d's
// own error "Backend ddl does not support ...".
//
// Operations check their arguments before anything is sent: ValueError or TypeError, with the
// argument and its value. A later failure (a dead peer, mismatched calls, a timeout) is a
// DistBackendError from wait() and in the future.
//
// Tensors on NVIDIA GPUs are passed to libddl directly, and the host does not wait for them.
// Tensors on other accelerators, and messages, use copies on the host.
//
// Tensors that are not contiguous are copied. Methods without `override` are virtual only in newer
// versions of PyTorch.
class Backend final : public c10d::Backend
{
  public:
    using WorkPtr = c10::intrusive_ptr<c10d::Work>;
    using Milliseconds = std::chrono::milliseconds;

    // `group` has already been joined; `timeout` applies to its operations. The groups that are
    // made from this one have its `invariant`, see ddl_comm_config.
    Backend(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Group> group, int rank, int size,
            Milliseconds timeout, int invariant);
    // A backend without members until reconfigure() is called.
    Backend(c10::intrusive_ptr<c10d::Store> store, std::unique_ptr<Roster> roster, int rank,
            int size, Milliseconds timeout, int invariant);
    ~Backend() override;

    // ---- backend.cpp ----

    const std::string getBackendName() const override;
    c10::intrusive_ptr<Options> getBackendOptions();
    int invariant() const;
    void setTimeout(Milliseconds timeout);
    void setSequenceNumberForGroup() override;
    uint64_t getSequenceNumberForGroup() override;
    bool supportsSplitting() const override;
    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                            const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<Options> &options);
    void shutdown();
    void abort();
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
    c10d::ErrorType getError() override;
#endif
    // Memory for DistributedDataParallel's buckets, and for other callers that request it from the
    // process group.
    bool supportsTensorAlloc(c10::DeviceIndex device);
    at::Tensor allocateTensor(long elements, at::TensorOptions options);
    // Return the rank and the number of ranks among the ranks that share this one's memory.
    std::pair<int, int> local();
    // For ../barriers.py: the store, a number that distinguishes the groups that use it, and the
    // timeout.
    std::tuple<c10::intrusive_ptr<c10d::Store>, uint64_t, Milliseconds> store();
    void addEphemeralTimeout(const Milliseconds &extension);
    bool supportsShrinking() const;
    c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t> &excluded, int flags,
                                             const c10::intrusive_ptr<Options> &options);
    c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store> &store,
                                            const c10::intrusive_ptr<Options> &options,
                                            const int &rank, const int &size);
    // Functions that run once when an operation finds that the comm has failed, before its error is
    // raised. On any thread.
    void registerAbortHook(int64_t id, std::function<void()> hook);
    void unregisterAbortHook(int64_t id);

    // ---- reconfigure.cpp ----

#ifdef C10D_BACKEND_HAS_RECONFIGURE
    bool supportsReconfigure() const override;
    c10d::ReconfigureHandle get_reconfigure_handle() const override;
    WorkPtr reconfigure(const c10d::ReconfigureOptions &options) override;
#endif

    void startCoalescing() override;
    WorkPtr endCoalescing() override;

    // ---- reductions.cpp ----

    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &options) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override;
    WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                           const c10d::ReduceScatterOptions &options) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &options) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &options) override;
    // Set the output to the ordered sum of all ranks' parts, or with `scatters` to this rank's
    // block of it. The order is only used during the call. All tensors are contiguous, on the host.
    WorkPtr reduce_parts(const Tensors &parts, const at::Tensor &output, ddl_order *order,
                         ddl_op op, bool scatters);
    // Sum or average a tensor, which is sent between hosts in this wire format. The residual has as
    // many elements. Both are of float32, contiguous, on the host.
    WorkPtr allreduce_packed(const at::Tensor &tensor, const at::Tensor &residual, ddl_op op,
                             uint32_t wire);
    // Set the output to this rank's block of the sum or average of the inputs, in the same way.
    WorkPtr reduce_scatter_packed(const at::Tensor &input, const at::Tensor &output,
                                  const at::Tensor &residual, ddl_op op, uint32_t wire);

    // ---- sparse.cpp ----

    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override;

    // ---- movements.cpp ----

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override;
    WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &options) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &options) override;
    WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &options) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &options) override;
    WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::GatherOptions &options) override;
    WorkPtr gather_into_tensor(at::Tensor &output, at::Tensor &input,
                               const c10d::GatherOptions &options);
    WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                    const c10d::ScatterOptions &options) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs,
                     const c10d::AllToAllOptions &options) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_sizes,
                          std::vector<int64_t> &input_sizes,
                          const c10d::AllToAllOptions &options) override;

    // ---- messages.cpp ----

    WorkPtr send(Tensors &tensors, int to, int tag) override;
    WorkPtr recv(Tensors &tensors, int from, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;
    WorkPtr barrier(const c10d::BarrierOptions &options) override;

  private:
    // Operations that are collected between startCoalescing and endCoalescing and submitted
    // together.
    struct Window {
        std::thread::id owner; // only calls of this thread are collected
        GroupOfCalls calls;
        c10::intrusive_ptr<Work> work;
        bool collective = true; // true if it contains no messages
    };

    std::shared_ptr<Group> group(const char *operation) const;
    std::shared_ptr<Group> current_group() const;
    void watch_failures(Group &group);
    void require_done(ddl_status status, const char *operation, Group &group) const;
    c10::intrusive_ptr<Backend> derive(const char *operation, const std::vector<int> &ranks,
                                       const c10::intrusive_ptr<c10d::Store> &store,
                                       const c10::intrusive_ptr<Options> &options);
    void place(Operation &operation, const at::Tensor &tensor);
    WorkPtr submit(Operation operation);
    WorkPtr collect(Operation &operation);
    void drop_window();
    void close_window();
    void start(Work &work, const Operation &operation, const std::string &name, ddl_group *calls);
    ddl_options options_of(const Operation &operation, Group &group, uint64_t sequence) const;
    std::string name_of(bool collective);

    // Each of these adds one part to the operation.
    void reduce_scatter_part(Operation &operation, const at::Tensor &output, const Blocks &input,
                             ddl_op op) const;
    void allgather_part(Operation &operation, const Blocks &output, const at::Tensor &input) const;

    const c10::intrusive_ptr<c10d::Store> store_;
    const int invariant_;
    const std::unique_ptr<Roster> roster_; // null: the members are fixed
    mutable std::mutex group_mutex_;       // unused if they are fixed
    std::shared_ptr<Group> group_;         // null before the first reconfiguration succeeds
    std::string no_group_ = "the process group has no members yet: with enable_reconfigure=True, "
                            "call torch.distributed._reconfigure() first"; // why it is null
    // Grows twice when the members change: before the old ones are removed, and when the new ones
    // are set.
    std::atomic<uint64_t> generation_{0};
    std::atomic<bool> attempted_{false}; // reconfigure() has changed the members, or has tried to
    std::atomic<bool> closed_{false};
    std::mutex hooks_mutex_;
    Hooks abort_hooks_;
    c10::intrusive_ptr<Options> options_;
    Streams streams_;
    std::atomic<uint64_t> sequence_{0};
    std::mutex names_mutex_;
    // operations that callbacks have started, by the group's tag
    std::map<uint64_t, uint64_t> named_;
    std::atomic<bool> coalescing_{false};
    std::mutex window_mutex_;
    std::unique_ptr<Window> window_;
};

} // namespace ddl_torch
