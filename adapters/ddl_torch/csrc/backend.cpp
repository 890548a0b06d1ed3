// SPDX-License-Identifier: Apache-2.0
#include "backend.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>

#include "errors.hpp"
#include "no_gil.hpp"
#include "shared_memory.hpp"

namespace ddl_torch
{

namespace
{

void require_open(const Group::Use &use, const Group &group, const char *operation)
{
    TORCH_CHECK_WITH(DistBackendError, use, "ddl ", operation, ": ", group.closing_reason());
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
                 int size, Milliseconds timeout, int invariant)
    : c10d::Backend(rank, size), store_(std::move(store)), invariant_(invariant),
      group_(std::move(group)), options_(c10::make_intrusive<Options>("ddl", timeout))
{
    init();
}

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, std::unique_ptr<Roster> roster, int rank,
                 int size, Milliseconds timeout, int invariant)
    : c10d::Backend(rank, size), store_(std::move(store)), invariant_(invariant),
      roster_(std::move(roster)), options_(c10::make_intrusive<Options>("ddl", timeout))
{
    init();
}

Backend::~Backend()
{
    const NoGil no_gil; // callbacks need it to end
    shutdown();
}

// Null where there is none, see group_.
std::shared_ptr<Group> Backend::current_group() const
{
    if (!roster_)
        return group_;
    std::lock_guard<std::mutex> lock(group_mutex_);
    return group_;
}

std::shared_ptr<Group> Backend::group(const char *operation) const
{
    auto found = current_group();
    if (found)
        return found;
    std::lock_guard<std::mutex> lock(group_mutex_);
    TORCH_CHECK_WITH(DistBackendError, false, "ddl ", operation, ": ", no_group_);
}

const std::string Backend::getBackendName() const
{
    return "ddl";
}

c10::intrusive_ptr<Backend::Options> Backend::getBackendOptions()
{
    return options_;
}

int Backend::invariant() const
{
    return invariant_;
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
    return derive("split", ranks, store, options);
}

// A backend for some ranks, this one among them, whose addresses this group knows.
c10::intrusive_ptr<Backend> Backend::derive(const char *operation, const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<c10d::Store> &store,
                                            const c10::intrusive_ptr<Options> &options)
{
    const auto timeout = options ? options->timeout : options_->timeout;
    const auto parent = group(operation);
    auto made = parent->derive(ranks, operation, timeout, invariant_);
    TORCH_CHECK_WITH(DistBackendError, made, "ddl ", operation, ": ", parent->closing_reason());
    const int own = int(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
    return c10::make_intrusive<Backend>(store, std::move(made), own, int(ranks.size()), timeout,
                                        invariant_);
}

bool Backend::supportsShrinking() const
{
    return true;
}

// The members that stay find each other by their addresses, so neither a dead member nor a failed
// comm is in the way.
c10::intrusive_ptr<c10d::Backend> Backend::shrink(const std::vector<int64_t> &excluded, int flags,
                                                  const c10::intrusive_ptr<Options> &options)
{
    constexpr int kAbort = 1; // torch.distributed's SHRINK_ABORT
    for (int64_t rank : excluded)
        require_rank("shrink", "excluded rank", rank, size_);
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; rank++)
        if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end())
            ranks.push_back(rank);
    TORCH_CHECK_VALUE(std::find(ranks.begin(), ranks.end(), rank_) != ranks.end(),
                      "ddl shrink: rank ", rank_, " is excluded; only the others may call it");
    if (flags & kAbort)
        abort();
    return derive("shrink", ranks, store_, options);
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(const c10::intrusive_ptr<c10d::Store> &store,
                                                 const c10::intrusive_ptr<Options> &options,
                                                 const int &rank, const int &size)
{
    const auto timeout = options ? options->timeout : options_->timeout;
    return c10::make_intrusive<Backend>(store, Group::join(*store, rank, size, timeout, invariant_),
                                        rank, size, timeout, invariant_);
}

void Backend::shutdown()
{
    closed_ = true;
    drop_window();
    if (auto group = current_group())
        group->close();
}

// End the window without submitting its calls. They must not outlive the comm, which
// Group::close_all() destroys at the end of the process.
void Backend::drop_window()
{
    std::lock_guard<std::mutex> lock(window_mutex_);
    close_window();
}

// The same, under the lock.
void Backend::close_window()
{
    coalescing_ = false;
    if (!window_)
        return;
    auto work = window_->work; // keeps the group
    auto use = work->group().use();
    if (!use)
        window_->calls.release();
    window_.reset();
}

void Backend::abort()
{
    auto group = current_group();
    if (!group)
        return;
    group->abort("abort of the process group on rank " + std::to_string(rank_));
}

void Backend::addEphemeralTimeout(const Milliseconds &extension)
{
    if (auto group = current_group())
        group->extensions().add(extension);
}

void Backend::registerAbortHook(int64_t id, std::function<void()> hook)
{
    auto shared = std::make_shared<const std::function<void()>>(std::move(hook));
    {
        std::lock_guard<std::mutex> lock(hooks_mutex_);
        abort_hooks_[id].swap(shared);
    } // a hook of the same id is dropped without the lock
    if (auto group = current_group())
        watch_failures(*group);
}

void Backend::unregisterAbortHook(int64_t id)
{
    Hooks::node_type removed;
    {
        std::lock_guard<std::mutex> lock(hooks_mutex_);
        removed = abort_hooks_.extract(id);
    }
    if (auto group = current_group())
        watch_failures(*group);
}

// Have the group run the hooks that are registered now, in the order of their ids.
void Backend::watch_failures(Group &group)
{
    std::shared_ptr<const Hooks> hooks;
    {
        std::lock_guard<std::mutex> lock(hooks_mutex_);
        hooks = std::make_shared<const Hooks>(abort_hooks_);
    }
    group.on_failure(std::move(hooks));
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
c10d::ErrorType Backend::getError()
{
    auto group = current_group();
    // If the group can be reconfigured, an abort that this rank requested is not an error.
    if (group ? roster_ && group->revoked() : !attempted_)
        return c10d::ErrorType::SUCCESS;
    if (!group)
        return c10d::ErrorType::COMM_ERROR; // the last reconfiguration has failed
    auto use = group->use();
    require_open(use, *group, "getError");
    switch (ddl_comm_status(use.comm())) {
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
    auto group = this->group("local");
    auto use = group->use();
    require_open(use, *group, "local");
    return {ddl_comm_local_rank(use.comm()), ddl_comm_local_size(use.comm())};
}

std::tuple<c10::intrusive_ptr<c10d::Store>, uint64_t, Backend::Milliseconds> Backend::store()
{
    return {store_, group("monitored_barrier")->tag(), options_->timeout};
}

// ---- submission ----

// For the operation, or group of calls, of that sequence number.
ddl_options Backend::options_of(const Operation &operation, Group &group, uint64_t sequence) const
{
    const auto timeout = operation.timeout > kNoTimeout ? operation.timeout : options_->timeout;
    ddl_options options{};
    options.struct_size = sizeof options;
    options.timeout_ms = (timeout + group.extensions().begin(sequence)).count();
    options.memory = operation.buffers.stream ? DDL_MEMORY_CUDA : DDL_MEMORY_HOST;
    options.prescale = operation.prescale == 1 ? 0 : operation.prescale; // 0 means none in libddl
    options.wire = operation.wire;
    options.residual = operation.residual;
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

static bool is_message(c10d::OpType type)
{
    return type == c10d::OpType::SEND || type == c10d::OpType::RECV ||
           type == c10d::OpType::RECVANYSOURCE;
}

// Submit the operation, or the calls collected for it; the queue reports its end.
void Backend::start(Work &work, const Operation &operation, const std::string &name,
                    ddl_group *calls)
{
    Group &group = work.group();
    ddl_options options = options_of(operation, group, work.getSequencenumber());
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
    if (group.watches_failures())
        work.watch();
    require_done(work.start([&](ddl_work **handle) {
        return calls ? ddl_group_submit(calls, &options, handle)
                     : operation.parts[0](group.comm(), &options, handle);
    }),
                 operation.name, group);
    if (operation.async)
        work.profile(operation.title, operation.inputs,
                     name.empty() && !calls && !is_message(operation.type));
}

// For holders of a Use of the group.
void Backend::require_done(ddl_status status, const char *operation, Group &group) const
{
    if (status == DDL_OK)
        return;
    auto failure = error(status, operation);
    if (ddl_comm_status(group.comm()) != DDL_OK)
        group.failed();
    std::rethrow_exception(failure);
}

Backend::WorkPtr Backend::submit(Operation operation)
{
    auto group = this->group(operation.name);
    TORCH_CHECK_WITH(DistBackendError, operation.generation == generation_, "ddl ", operation.name,
                     ": the process group was reconfigured when this call had begun");
    auto use = group->use();
    require_open(use, *group, operation.name);
    if (coalescing_)
        if (auto work = collect(operation))
            return work;
    ddl_comm *comm = use.comm();
    group->completion().poll();
    auto work = c10::make_intrusive<Work>(
        group, rank_, operation.type, operation.name, operation.async ? nullptr : operation.title,
        operation.inputs, std::move(operation.buffers), ++sequence_);
    const std::string name = name_of(is_collective(operation));
    if (operation.parts.size() == 1) {
        // A caller that waits at once gets the blocking call, which is the fastest. On a GPU the
        // host does not wait.
        if (operation.async || work->buffers().stream) {
            start(*work, operation, name, nullptr);
        } else {
            ddl_options options = options_of(operation, *group, work->getSequencenumber());
            options.name = name.c_str();
            const ddl_status status = operation.parts[0](comm, &options, nullptr);
            group->extensions().end(work->getSequencenumber());
            require_done(status, operation.name, *group);
            work->done();
        }
        return work;
    }
    GroupOfCalls calls = create_calls(comm, operation.name);
    ddl_options options = options_of(operation, *group, work->getSequencenumber());
    ddl_group *collected = options.group = calls.get();
    for (const Part &part : operation.parts)
        require_done(part(comm, &options, nullptr), operation.name, *group);
    work->own(std::move(calls));
    start(*work, operation, name, collected);
    use.leave(); // a signal handler that runs in wait() may shut the group down
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
    auto group = this->group(name);
    auto use = group->use();
    require_open(use, *group, name);
    std::lock_guard<std::mutex> lock(window_mutex_);
    TORCH_CHECK_WITH(DistBackendError, !window_, "ddl ", name,
                     ": coalescing has been started already; end that first");
    auto work = c10::make_intrusive<Work>(group, rank_, c10d::OpType::COALESCED, "coalesced",
                                          nullptr, Tensors{}, Buffers{}, ++sequence_);
    window_.reset(new Window{std::this_thread::get_id(), create_calls(use.comm(), name), work});
    coalescing_ = true;
}

// Collect the operation if this thread is coalescing; else return null. A failure closes the
// window; otherwise later operations would be collected and never submitted.
Backend::WorkPtr Backend::collect(Operation &operation)
{
    std::lock_guard<std::mutex> lock(window_mutex_);
    if (!window_ || window_->owner != std::this_thread::get_id())
        return nullptr;
    Group &group = window_->work->group(); // an earlier one, after a reconfiguration
    auto use = group.use();
    if (!use) {
        close_window();
        require_open(use, group, operation.name);
    }
    ddl_options options = options_of(operation, group, window_->work->getSequencenumber());
    options.group = window_->calls.get();
    for (const Part &part : operation.parts) {
        ddl_status status = part(use.comm(), &options, nullptr);
        if (status != DDL_OK) {
            auto failure = error(status, operation.name);
            close_window();
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
    Operation operation(generation_, "coalesced", "ddl:coalesced", c10d::OpType::COALESCED);
    std::unique_ptr<Window> window;
    {
        std::lock_guard<std::mutex> lock(window_mutex_);
        window = std::move(window_);
        coalescing_ = false;
    }
    if (!window) {
        auto current = this->group("endCoalescing");
        require_open(current->use(), *current, "endCoalescing");
    }
    TORCH_CHECK_WITH(DistBackendError, window,
                     "ddl endCoalescing: coalescing has not been started");
    Group &group = window->work->group();
    auto use = group.use();
    if (!use)
        window->calls.release();
    require_open(use, group, "endCoalescing");
    group.completion().poll();
    ddl_group *calls = window->calls.get();
    window->work->own(std::move(window->calls));
    start(*window->work, operation, name_of(window->collective), calls);
    return window->work;
}

} // namespace ddl_torch
