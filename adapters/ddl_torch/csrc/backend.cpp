#include "backend.hpp"

#include <pybind11/pybind11.h>

#include "errors.hpp"

namespace ddl_torch
{

namespace
{

// Older versions of PyTorch do not say whether the caller waits at once.
template <class Options> auto is_async(const Options &options, int) -> decltype(options.asyncOp)
{
    return options.asyncOp;
}

template <class Options> bool is_async(const Options &, long)
{
    return true;
}

void require_open(const Group::Use &use, const char *operation)
{
    TORCH_CHECK_WITH(DistBackendError, use, "ddl ", operation,
                     ": the process group has been shut down");
}

} // namespace

struct Backend::Call {
    const char *name;
    const char *title; // for the profiler
    c10d::OpType type;
    bool async;
    std::chrono::milliseconds timeout;

    template <class Options>
    Call(const char *its_name, const char *its_title, c10d::OpType its_type, const Options &options)
        : name(its_name), title(its_title), type(its_type), async(is_async(options, 0)),
          timeout(options.timeout)
    {
    }
};

Backend::Backend(c10d::Store &store, int rank, int size, std::chrono::milliseconds timeout)
    : c10d::Backend(rank, size), group_(Group::join(store, rank, size, timeout)),
      options_(c10::make_intrusive<Options>("ddl", timeout))
{
    init();
}

Backend::~Backend()
{
    // Python may drop the last reference with the GIL held, which callbacks need to end.
    if (Py_IsInitialized() && PyGILState_Check()) {
        pybind11::gil_scoped_release no_gil;
        group_->close();
    } else {
        group_->close();
    }
}

const std::string Backend::getBackendName() const
{
    return "ddl";
}

c10::intrusive_ptr<Backend::Options> Backend::getBackendOptions()
{
    return options_;
}

void Backend::setTimeout(std::chrono::milliseconds timeout)
{
    options_->timeout = timeout;
}

void Backend::setSequenceNumberForGroup()
{
}

uint64_t Backend::getSequenceNumberForGroup()
{
    return sequence_;
}

void Backend::shutdown()
{
    group_->close();
}

void Backend::abort()
{
    group_->abort("abort of the process group on rank " + std::to_string(rank_));
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
c10d::ErrorType Backend::getError()
{
    auto use = group_->use();
    require_open(use, "getError");
    switch (ddl_comm_status(group_->comm())) {
    case DDL_OK: return c10d::ErrorType::SUCCESS;
    case DDL_EEXPIRED: return c10d::ErrorType::TIMEOUT;
    case DDL_EABORTED: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
    }
}
#endif

std::pair<int, int> Backend::local()
{
    auto use = group_->use();
    require_open(use, "local");
    return {ddl_comm_local_rank(group_->comm()), ddl_comm_local_size(group_->comm())};
}

// ---- submission ----

template <class Part>
Backend::WorkPtr Backend::run(const Call &call, const Tensors &inputs, Buffers buffers,
                              const std::vector<Part> &parts)
{
    auto use = group_->use();
    require_open(use, call.name);
    ddl_comm *comm = group_->comm();
    group_->completion().poll();
    auto work = c10::make_intrusive<Work>(group_, rank_, call.type, call.name, call.title, inputs,
                                          std::move(buffers), ++sequence_);
    const auto timeout = call.timeout > kNoTimeout ? call.timeout : options_->timeout;
    ddl_options options{};
    options.struct_size = sizeof options;
    options.timeout_ms = timeout.count();

    // A caller who waits at once gets the blocking call, which is the fastest. With several parts
    // one may be refused while another is under way, whose tensors the completion queue keeps
    // alive.
    if (!call.async && parts.size() == 1) {
        check(parts[0](comm, &options, nullptr), call.name);
        work->seal();
        return work;
    }
    options.queued = 1;
    options.user = work.get();
    for (const Part &part : parts)
        check(work->add([&](ddl_work **handle) { return part(comm, &options, handle); }),
              call.name);
    work->seal();
    if (!call.async)
        work->wait();
    return work;
}

template <class Part>
Backend::WorkPtr Backend::run_one(const Call &call, const Tensors &inputs, Buffers buffers,
                                  const Part &part)
{
    return run(call, inputs, std::move(buffers), std::vector<Part>{part});
}

// ---- operations ----

Backend::WorkPtr Backend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &options)
{
    Call call("allreduce", "ddl:all_reduce", c10d::OpType::ALLREDUCE, options);
    at::Tensor tensor = only(call.name, "tensors", tensors);
    ddl_op op = reduction(call.name, options.reduceOp);
    ddl_dtype dtype = reduced_type(call.name, tensor);
    Buffers buffers;
    buffers.outputs = tensors;
    at::Tensor memory = writable(tensor, true, buffers);
    return run_one(call, tensors, std::move(buffers), [=](auto comm, auto how, auto work) {
        return ddl_allreduce(comm, nullptr, memory.data_ptr(), memory.numel(), dtype, op, how,
                             work);
    });
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors &tensors,
                                              const c10d::AllreduceCoalescedOptions &options)
{
    Call call("allreduce_coalesced", "ddl:all_reduce", c10d::OpType::ALLREDUCE_COALESCED, options);
    ddl_op op = reduction(call.name, options.reduceOp);
    for (const auto &tensor : tensors) {
        require_host(call.name, "tensors", tensor);
        reduced_type(call.name, tensor);
    }
    Buffers buffers;
    buffers.outputs = tensors;
    auto part = [&](const at::Tensor &tensor) {
        at::Tensor memory = writable(tensor, true, buffers);
        ddl_dtype dtype = reduced_type(call.name, tensor);
        return [=](ddl_comm *comm, const ddl_options *how, ddl_work **work) {
            return ddl_allreduce(comm, nullptr, memory.data_ptr(), memory.numel(), dtype, op, how,
                                 work);
        };
    };
    std::vector<decltype(part(tensors[0]))> parts;
    for (const auto &tensor : tensors)
        parts.push_back(part(tensor));
    return run(call, tensors, std::move(buffers), parts);
}

Backend::WorkPtr Backend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options)
{
    Call call("broadcast", "ddl:broadcast", c10d::OpType::BROADCAST, options);
    at::Tensor tensor = only(call.name, "tensors", tensors);
    const int64_t root = options.rootRank;
    TORCH_CHECK_VALUE(root >= 0 && root < size_, "ddl broadcast: the root is rank ", root,
                      ", but the group has ", size_, " ranks");
    Buffers buffers;
    buffers.outputs = tensors;
    const bool is_root = root == rank_;
    at::Tensor memory = is_root ? readable(tensor, buffers) : writable(tensor, false, buffers);
    const Cargo load = cargo(memory);
    return run_one(call, tensors, std::move(buffers), [=](auto comm, auto how, auto work) {
        return ddl_broadcast(comm, memory.data_ptr(), load.count, load.dtype, int(root), how, work);
    });
}

Backend::WorkPtr Backend::allgather_rows(const Call &call, const at::Tensor &rows,
                                         const at::Tensor &input, Buffers buffers)
{
    const Cargo load = cargo(input);
    char *to = static_cast<char *>(rows.data_ptr());
    const void *from = input.const_data_ptr();
    if (input.nbytes() && from == to + rank_ * input.nbytes()) {
        from = nullptr; // in place
    } else if (overlap(rows, input)) {
        at::Tensor copy = input.detach().clone();
        from = copy.const_data_ptr();
        buffers.keep.push_back(copy);
    }
    buffers.keep.push_back(rows);
    return run_one(call, {input}, std::move(buffers), [=](auto comm, auto how, auto work) {
        return ddl_allgather(comm, from, to, load.count, load.dtype, how, work);
    });
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                    const c10d::AllgatherOptions &options)
{
    Call call("allgather", "ddl:all_gather", c10d::OpType::ALLGATHER, options);
    at::Tensor input = only(call.name, "inputs", inputs);
    TORCH_CHECK_VALUE(outputs.size() == 1, "ddl allgather: outputs has ", outputs.size(),
                      " lists, but takes one");
    require_alike(call.name, "outputs", outputs[0], input, size_);
    Buffers buffers;
    buffers.outputs = outputs[0];
    at::Tensor from = readable(input, buffers);
    at::Tensor rows = writable_rows(outputs[0], buffers);
    return allgather_rows(call, rows, from, std::move(buffers));
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor &output, at::Tensor &input,
                                          const c10d::AllgatherOptions &options)
{
    Call call("_allgather_base", "ddl:_all_gather_base", c10d::OpType::_ALLGATHER_BASE, options);
    require_multiple(call.name, "output", output, "input", input, size_);
    Buffers buffers;
    buffers.outputs = {output};
    at::Tensor from = readable(input, buffers);
    at::Tensor rows = writable(output, false, buffers);
    return allgather_rows(call, rows, from, std::move(buffers));
}

Backend::WorkPtr Backend::reduce_scatter_rows(const Call &call, const at::Tensor &output,
                                              const at::Tensor &rows, ddl_op op, Buffers buffers)
{
    const ddl_dtype dtype = reduced_type(call.name, output);
    const int64_t count = output.numel();
    const void *from = rows.const_data_ptr();
    char *to = static_cast<char *>(output.data_ptr());
    if (output.nbytes() && to == static_cast<const char *>(from) + rank_ * output.nbytes()) {
        to = static_cast<char *>(rows.data_ptr()); // in place: the result lies in rows
        from = nullptr;
    } else if (overlap(rows, output)) {
        at::Tensor copy = rows.detach().clone();
        from = copy.const_data_ptr();
        buffers.keep.push_back(copy);
    }
    buffers.keep.push_back(output);
    return run_one(call, {rows}, std::move(buffers), [=](auto comm, auto how, auto work) {
        return ddl_reduce_scatter(comm, from, to, count, dtype, op, how, work);
    });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                         const c10d::ReduceScatterOptions &options)
{
    Call call("reduce_scatter", "ddl:reduce_scatter", c10d::OpType::REDUCE_SCATTER, options);
    at::Tensor output = only(call.name, "outputs", outputs);
    TORCH_CHECK_VALUE(inputs.size() == 1, "ddl reduce_scatter: inputs has ", inputs.size(),
                      " lists, but takes one");
    require_alike(call.name, "inputs", inputs[0], output, size_);
    ddl_op op = reduction(call.name, options.reduceOp);
    reduced_type(call.name, output);
    Buffers buffers;
    buffers.outputs = outputs;
    at::Tensor rows = readable_rows(inputs[0], buffers);
    at::Tensor to = writable(output, false, buffers);
    return reduce_scatter_rows(call, to, rows, op, std::move(buffers));
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                               const c10d::ReduceScatterOptions &options)
{
    Call call("_reduce_scatter_base", "ddl:_reduce_scatter_base",
              c10d::OpType::_REDUCE_SCATTER_BASE, options);
    require_multiple(call.name, "input", input, "output", output, size_);
    ddl_op op = reduction(call.name, options.reduceOp);
    reduced_type(call.name, output);
    Buffers buffers;
    buffers.outputs = {output};
    at::Tensor rows = readable(input, buffers);
    at::Tensor to = writable(output, false, buffers);
    return reduce_scatter_rows(call, to, rows, op, std::move(buffers));
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions &options)
{
    Call call("barrier", "ddl:barrier", c10d::OpType::BARRIER, options);
    return run_one(call, {}, {},
                   [](auto comm, auto how, auto work) { return ddl_barrier(comm, how, work); });
}

} // namespace ddl_torch
