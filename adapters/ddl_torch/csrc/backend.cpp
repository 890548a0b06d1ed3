// SPDX-License-Identifier: Apache-2.0
#include "backend.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>

#include "errors.hpp"
#include "shared_memory.hpp"

namespace ddl_torch
{

namespace
{

void require_open(const Group::Use &use, const char *operation)
{
    TORCH_CHECK_WITH(DistBackendError, use, "ddl ", operation,
                     ": the process group has been shut down");
}

void append(Tensors &to, const Tensors &from)
{
    to.insert(to.end(), from.begin(), from.end());
}

GroupOfCalls create_calls(ddl_comm *comm, const char *operation)
{
    ddl_group *calls = nullptr;
    check(ddl_group_create(comm, &calls), operation);
    return GroupOfCalls(calls);
}

} // namespace

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Group> group, int rank,
                 int size, Milliseconds timeout)
    : c10d::Backend(rank, size), store_(std::move(store)), group_(std::move(group)),
      options_(c10::make_intrusive<Options>("ddl", timeout))
{
    init();
}

Backend::~Backend()
{
    drop_window();
    // Python may drop the last reference while it holds the GIL, which callbacks need to complete.
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

void Backend::setTimeout(Milliseconds timeout)
{
    TORCH_CHECK_VALUE(timeout > kNoTimeout, "ddl set_timeout: timeout is ", timeout.count(),
                      " ms; must be positive");
    options_->timeout = timeout;
}

void Backend::setSequenceNumberForGroup()
{
}

uint64_t Backend::getSequenceNumberForGroup()
{
    return sequence_;
}

bool Backend::supportsSplitting() const
{
    return true;
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store> &store,
                                                 const std::vector<int> &ranks,
                                                 const c10::intrusive_ptr<Options> &options)
{
    for (int rank : ranks)
        require_rank("split", "member", rank, size_);
    auto own = std::find(ranks.begin(), ranks.end(), rank_);
    if (own == ranks.end())
        return nullptr;
    auto timeout = options ? options->timeout : options_->timeout;
    auto group = group_->derive(ranks, "split", timeout);
    TORCH_CHECK_WITH(DistBackendError, group, "ddl split: the process group has been shut down");
    return c10::make_intrusive<Backend>(store, std::move(group), int(own - ranks.begin()),
                                        int(ranks.size()), timeout);
}

void Backend::shutdown()
{
    drop_window();
    group_->close();
}

// End the window without submitting its calls. They must not outlive the comm, which
// Group::close_all() destroys at the end of the process.
void Backend::drop_window()
{
    std::lock_guard<std::mutex> lock(window_mutex_);
    if (window_ && group_->closed())
        window_->calls.release();
    window_.reset();
    coalescing_ = false;
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

bool Backend::supportsTensorAlloc(c10::DeviceIndex)
{
    return shared() != Sharing::none;
}

at::Tensor Backend::allocateTensor(long elements, at::TensorOptions options)
{
    at::Tensor memory = empty_shared(elements, options);
    // PyTorch's Reducer expects real numbers in a bucket of complex ones, but does not convert the
    // view itself.
    return memory.is_complex() ? at::view_as_real(memory).reshape({-1}) : memory;
}

std::pair<int, int> Backend::local()
{
    auto use = group_->use();
    require_open(use, "local");
    return {ddl_comm_local_rank(group_->comm()), ddl_comm_local_size(group_->comm())};
}

std::tuple<c10::intrusive_ptr<c10d::Store>, uint64_t, Backend::Milliseconds> Backend::store() const
{
    return {store_, group_->tag(), options_->timeout};
}

// ---- submission ----

ddl_options Backend::options_of(const Operation &operation) const
{
    const auto timeout = operation.timeout > kNoTimeout ? operation.timeout : options_->timeout;
    ddl_options options{};
    options.struct_size = sizeof options;
    options.timeout_ms = timeout.count();
    options.memory = operation.buffers.stream ? DDL_MEMORY_CUDA : DDL_MEMORY_HOST;
    options.prescale = operation.prescale == 1 ? 0 : operation.prescale; // 0 means none in libddl
    return options;
}

// Run the operation in the memory of this tensor if libddl supports it, else on the host. Callbacks
// always use the host: libddl does not match operations on a GPU by name.
void Backend::place(Operation &operation, const at::Tensor &tensor)
{
    if (!Callbacks::current())
        operation.buffers.stream = streams_.on(tensor.device());
}

static bool is_collective(const Operation &operation)
{
    using Type = c10d::OpType;
    return operation.type != Type::SEND && operation.type != Type::RECV &&
           operation.type != Type::RECVANYSOURCE;
}

// Return the name by which ranks match a collective that a callback starts; empty for all others,
// which are matched by order. See Callbacks.
std::string Backend::name_of(bool collective)
{
    const uint64_t tag = Callbacks::current();
    if (!tag || !collective)
        return "";
    std::lock_guard<std::mutex> lock(names_mutex_);
    return "callbacks of group " + std::to_string(tag) + ", operation " +
           std::to_string(++named_[tag]);
}

// Submit the operation, or the calls collected for it; the queue reports its end.
void Backend::start(Work &work, const Operation &operation, const std::string &name,
                    ddl_group *calls)
{
    ddl_options options = options_of(operation);
    options.name = name.c_str();
    if (const auto &stream = work.buffers().stream) {
        let_wait(*stream);
        options.memory = DDL_MEMORY_CUDA;
        options.stream = handle_of(*stream);
    }
    options.queued = 1;
    options.user = &work;
    if (calls)
        options.prescale = 0; // each call has its own
    check(work.start([&](ddl_work **handle) {
        return calls ? ddl_group_submit(calls, &options, handle)
                     : operation.parts[0](group_->comm(), &options, handle);
    }),
          operation.name);
    if (operation.async)
        work.profile(operation.title, operation.inputs);
}

Backend::WorkPtr Backend::submit(Operation operation)
{
    auto use = group_->use();
    require_open(use, operation.name);
    if (coalescing_)
        if (auto work = collect(operation))
            return work;
    ddl_comm *comm = group_->comm();
    group_->completion().poll();
    ddl_options options = options_of(operation);
    auto work = c10::make_intrusive<Work>(
        group_, rank_, operation.type, operation.name, operation.async ? nullptr : operation.title,
        operation.inputs, std::move(operation.buffers), ++sequence_);
    const std::string name = name_of(is_collective(operation));
    if (operation.parts.size() == 1) {
        // A caller that waits at once gets the blocking call, which is the fastest. On a GPU the
        // host does not wait.
        if (operation.async || work->buffers().stream) {
            start(*work, operation, name, nullptr);
        } else {
            options.name = name.c_str();
            check(operation.parts[0](comm, &options, nullptr), operation.name);
            work->done();
        }
        return work;
    }
    GroupOfCalls calls = create_calls(comm, operation.name);
    ddl_group *group = options.group = calls.get();
    for (const Part &part : operation.parts)
        check(part(comm, &options, nullptr), operation.name);
    work->own(std::move(calls));
    start(*work, operation, name, group);
    if (!operation.async)
        work->wait();
    return work;
}

// ---- coalescing ----

// supportsCoalescing() is not overridden: with it, c10d returns one Work for a whole batch of
// batch_isend_irecv, but users of Gloo expect one for each message.

void Backend::startCoalescing()
{
    static constexpr const char *name = "startCoalescing";
    auto use = group_->use();
    require_open(use, name);
    std::lock_guard<std::mutex> lock(window_mutex_);
    TORCH_CHECK_WITH(DistBackendError, !window_, "ddl ", name,
                     ": coalescing has been started already; end that first");
    auto work = c10::make_intrusive<Work>(group_, rank_, c10d::OpType::COALESCED, "coalesced",
                                          nullptr, Tensors{}, Buffers{}, ++sequence_);
    window_.reset(new Window{std::this_thread::get_id(), create_calls(group_->comm(), name), work});
    coalescing_ = true;
}

// Collect the operation if this thread is coalescing; else return null. A failure closes the
// window; otherwise later operations would be collected and never submitted.
Backend::WorkPtr Backend::collect(Operation &operation)
{
    std::lock_guard<std::mutex> lock(window_mutex_);
    if (!window_ || window_->owner != std::this_thread::get_id())
        return nullptr;
    ddl_options options = options_of(operation);
    options.group = window_->calls.get();
    for (const Part &part : operation.parts) {
        ddl_status status = part(group_->comm(), &options, nullptr);
        if (status != DDL_OK) {
            coalescing_ = false;
            auto failure = error(status, operation.name);
            window_.reset();
            std::rethrow_exception(failure);
        }
    }
    window_->collective = window_->collective && is_collective(operation);
    Buffers &from = operation.buffers, &to = window_->work->buffers();
    TORCH_CHECK_WITH(NotImplementedError, !from.finish, "ddl ", operation.name,
                     " cannot be coalesced");
    if (from.stream)
        to.stream = from.stream;
    append(to.outputs, from.outputs);
    append(to.keep, from.keep);
    to.copies.insert(to.copies.end(), from.copies.begin(), from.copies.end());
    to.senders.insert(to.senders.end(), from.senders.begin(), from.senders.end());
    return window_->work;
}

Backend::WorkPtr Backend::endCoalescing()
{
    Operation operation("coalesced", "ddl:coalesced", c10d::OpType::COALESCED);
    auto use = group_->use();
    require_open(use, "endCoalescing");
    std::unique_ptr<Window> window;
    {
        std::lock_guard<std::mutex> lock(window_mutex_);
        window = std::move(window_);
        coalescing_ = false;
    }
    TORCH_CHECK_WITH(DistBackendError, window,
                     "ddl endCoalescing: coalescing has not been started");
    group_->completion().poll();
    ddl_group *group = window->calls.get();
    window->work->own(std::move(window->calls));
    start(*window->work, operation, name_of(window->collective), group);
    return window->work;
}

} // namespace ddl_torch
