// SPDX-License-Identifier: Apache-2.0
#include "work.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Logging.h>
#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "errors.hpp"
#include "executor.hpp"
#include "gpu.hpp"
#include "group.hpp"
#include "no_gil.hpp"

namespace ddl_torch
{

namespace
{

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kSlice(200); // longest delay of Ctrl-C

// Raise KeyboardInterrupt and similar exceptions. Only Python's main thread, which is the process's
// main thread, handles signals.
void check_signals()
{
    if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized())
        return;
    pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0)
        throw pybind11::error_already_set();
}

// Return the devices that a future must know, in order.
std::vector<c10::Device> accelerators_of(const std::vector<at::Tensor> &tensors)
{
    std::vector<c10::Device> devices;
    for (const auto &tensor : tensors)
        if (!tensor.is_cpu())
            devices.push_back(tensor.device());
    std::sort(devices.begin(), devices.end(),
              [](const auto &a, const auto &b) { return a.index() < b.index(); });
    devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
    return devices;
}

} // namespace

Work::Work(std::shared_ptr<Group> group, int rank, c10d::OpType type, const char *name,
           const char *profiling_title, const std::vector<at::Tensor> &inputs, Buffers buffers,
           uint64_t sequence)
    : c10d::Work(rank, type, profiling_title, inputs), group_(std::move(group)), name_(name),
      sequence_(sequence), buffers_(std::move(buffers))
{
}

Work::~Work()
{
    group_->extensions().end(sequence_); // it may not have been submitted
    ddl_work_destroy(work_);
}

void Work::own(GroupOfCalls calls)
{
    calls_ = std::move(calls);
}

void Work::profile(const char *title, const std::vector<at::Tensor> &inputs, bool ordered)
{
    constexpr auto kScope = at::RecordScope::USER_SCOPE;
    if (!at::getStepCallbacksUnlessEmpty(kScope))
        return;
    auto ended = std::make_shared<std::promise<void>>();
    profiled_ = ended->get_future().share();
    auto self = c10::intrusive_ptr<Work>::reclaim_copy(this);
    Executor &track = ordered ? group_->profile_track() : Executor::instance();
    track.run([self, title, ended, state = at::ThreadLocalState(),
               shown = std::vector<c10::IValue>(inputs.begin(), inputs.end())] {
        {
            at::ThreadLocalStateGuard guard(state);
            at::RecordFunction record(kScope);
            record.before(title, c10::ArrayRef<const c10::IValue>(shown.data(), shown.size()));
            self->await(kNoTimeout);
        }
        ended->set_value();
    });
}

void Work::done()
{
    settle();
}

void Work::watch()
{
    watched_ = true;
    group_->completion().watch();
}

void Work::unwatch()
{
    if (watched_)
        group_->completion().unwatch();
    watched_ = false;
}

void Work::taken()
{
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1)
        deliver();
}

bool Work::ended() const
{
    ddl_work *work = work_.load(std::memory_order_acquire);
    return work && ddl_work_test(work) != DDL_INPROGRESS;
}

// Wait until the work has ended, successfully or not.
void Work::await(std::chrono::milliseconds timeout)
{
    const bool limited = timeout > kNoTimeout;
    const auto deadline = Clock::now() + (limited ? timeout : kNoTimeout);
    while (!ended()) {
        auto slice = kSlice;
        if (limited) {
            auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
            TORCH_CHECK_WITH(DistBackendError, left.count() > 0, "ddl ", name_,
                             ": not complete after ", timeout.count(),
                             " ms (timed out), and still pending");
            slice = std::min(slice, left);
        }
        if (auto use = group_->use()) {
            if (ddl_work_wait(work_, slice.count()) != DDL_ETIMEDOUT)
                continue;
        } else { // closing, which ends all works
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        check_signals();
    }
}

std::exception_ptr Work::copy_results()
{
    if (buffers_.copies.empty() && !buffers_.finish)
        return nullptr;
    try {
        // The caller's tensor may be a leaf that requires grad, or an inference tensor.
        at::AutoDispatchBelowADInplaceOrView guard;
        for (auto &[to, from, stream] : buffers_.copies) {
            c10::OptionalStreamGuard in_stream(stream);
            to.copy_(from, buffers_.stream.has_value());
        }
        if (buffers_.finish)
            buffers_.finish();
    } catch (...) {
        return std::current_exception();
    }
    return nullptr;
}

// Queue the rest of an operation on a GPU in its stream.
std::exception_ptr Work::follow()
{
    if (!buffers_.stream)
        return nullptr;
    auto failure = copy_results();
    try {
        for (const auto &copy : buffers_.copies)
            for (const auto &tensor : {copy.to, copy.from})
                keep_for(*buffers_.stream, tensor);
        followed_.emplace(end_of(*buffers_.stream));
    } catch (...) {
        return std::current_exception();
    }
    return failure;
}

// Settle the work, which has ended.
void Work::settle()
{
    // Dropping a tensor may need the GIL, and a thread that holds it may wait in call_once. So what
    // was in use is dropped after that.
    Buffers used;
    std::call_once(settled_, [this, &used] {
        std::exception_ptr failure;
        if (ddl_work *work = work_)
            if (ddl_status status = ddl_work_test(work); status != DDL_OK) {
                failure = error(status, name_);
                if (auto use = group_->use(); use && ddl_comm_status(use.comm()) != DDL_OK)
                    group_->failed();
            }
        group_->extensions().end(sequence_);
        if (!failure && !buffers_.stream)
            failure = copy_results();
        calls_.reset();
        used.copies.swap(buffers_.copies);
        used.finish.swap(buffers_.finish);
        used.keep.swap(buffers_.keep);
        finish(failure);
    });
}

bool Work::isCompleted()
{
    if (c10d::Work::isCompleted())
        return true;
    if (!ended())
        return false;
    const NoGil no_gil;
    settle();
    return true;
}

bool Work::wait(std::chrono::milliseconds timeout)
{
    if (!c10d::Work::isCompleted()) {
        if (!work_.load(std::memory_order_acquire))
            return true; // being coalesced
        if (!followed_ || timeout > kNoTimeout)
            await(timeout);
        if (!followed_ || ended())
            settle();
    }
    if (profiled_.valid() && !followed_)
        profiled_.wait();
    if (followed_)
        let_current_wait(buffers_.stream->device(), *followed_);
    if (work_)
        if (auto use = group_->use())
            group_->completion().poll(); // gives back the queue's reference to the tensors
    if (!followed_)
        await_future();
    if (auto failure = exception())
        std::rethrow_exception(failure);
    return true;
}

int Work::sourceRank() const
{
    TORCH_CHECK(buffers_.senders.size() == 1, "ddl ", name_, ": there is no source rank of ",
                buffers_.senders.size(), " receives; ask one that receives one tensor");
    return *buffers_.senders[0];
}

std::vector<at::Tensor> Work::result()
{
    return buffers_.outputs;
}

uint64_t Work::getSequencenumber() const
{
    return sequence_;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture()
{
    const NoGil no_gil; // another thread may need it while it holds the lock
    std::lock_guard<std::mutex> lock(future_mutex_);
    if (!future_) {
        auto future = c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), accelerators_of(buffers_.outputs));
        // A forked child has no thread that could complete the future later: every work has failed
        // there.
        if (isCompleted() || followed_) {
            future_completed_ = true;
            complete_future(future); // no callback can have been added yet
        } else {
            future_state_.emplace();
            group_->completion().watch();
        }
        future_ = std::move(future);
    }
    return future_;
}

// Return the requested future to the one thread that completes it, which is the first to ask; else
// null.
c10::intrusive_ptr<c10::ivalue::Future> Work::claim_future()
{
    {
        std::lock_guard<std::mutex> lock(future_mutex_);
        if (!future_ || future_completed_)
            return nullptr;
        future_completed_ = true;
    }
    group_->completion().unwatch();
    return future_;
}

void Work::complete_claimed(const c10::intrusive_ptr<c10::ivalue::Future> &future)
{
    try {
        at::ThreadLocalStateGuard guard(*future_state_);
        complete_future(future);
    } catch (const std::exception &failure) {
        LOG(ERROR) << "ddl " << name_ << ": a future's callback: " << failure.what();
    }
}

// Return when the requested future, if any, is complete. The work has ended.
void Work::await_future()
{
    if (auto future = claim_future()) {
        complete_claimed(future);
        return;
    }
    std::unique_lock<std::mutex> lock(future_mutex_);
    auto future = future_;
    lock.unlock();
    if (future)
        future->wait(); // until another thread has completed it, before it runs callbacks
}

// Handle a work that is submitted and taken from the queue.
void Work::deliver()
{
    settle();
    unwatch();
    auto future = claim_future();
    if (!future)
        return;
    auto self = c10::intrusive_ptr<Work>::reclaim_copy(this);
    const auto complete = [self, future] { self->complete_claimed(future); };
    try {
        Executor::instance().run(complete);
    } catch (const std::system_error &) { // no thread can be started
        complete();
    }
}

// The future's value, in NCCL's form, which PyTorch's quantization hooks read: the outputs of an
// all-gather are one tensor, stacked by rank, if they have the same shape.
std::vector<at::Tensor> Work::value() const
{
    const auto &outputs = buffers_.outputs;
    if (retrieveOpType() != c10d::OpType::ALLGATHER || outputs.empty())
        return outputs;
    for (const auto &output : outputs)
        if (output.sizes() != outputs[0].sizes())
            return outputs;
    at::NoGradGuard no_grad;
    return {at::stack(outputs)};
}

void Work::complete_future(const c10::intrusive_ptr<c10::ivalue::Future> &future)
{
    // the stream for which the future's users wait
    c10::OptionalStreamGuard in_stream(buffers_.stream);
    auto failure = exception();
    std::vector<at::Tensor> result;
    if (!failure) {
        try {
            result = value();
        } catch (...) { // no memory
            failure = std::current_exception();
        }
    }
    if (failure)
        future->setError(failure);
    else
        future->markCompleted(c10::IValue(std::move(result)));
}

} // namespace ddl_torch
