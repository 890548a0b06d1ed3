// SPDX-License-Identifier: Apache-2.0
#include "callbacks.hpp"

#include <ATen/ThreadLocalState.h>
#include <c10/util/Logging.h>

#include "executor.hpp"
#include "group.hpp"
#include "work.hpp"

namespace ddl_torch
{

namespace
{
thread_local uint64_t current_tag = 0;
}

uint64_t Callbacks::current()
{
    return current_tag;
}

void Callbacks::add(std::function<void()> callback)
{
    if (current_tag) {
        callback();
        return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back([callback = std::move(callback), state = at::ThreadLocalState()] {
        at::ThreadLocalStateGuard guard(state);
        callback();
    });
    if (running_)
        return;
    running_ = true;
    Executor::instance().run([self = shared_from_this()] { self->run(); });
}

void Callbacks::run()
{
    current_tag = tag_;
    for (;;) {
        std::function<void()> callback;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (waiting_.empty()) {
                running_ = false;
                break;
            }
            callback = std::move(waiting_.front());
            waiting_.pop_front();
        }
        try {
            callback();
        } catch (const std::exception &failure) {
            LOG(ERROR) << "ddl: a future's callback: " << failure.what();
        }
    }
    current_tag = 0;
}

// A copy of the future, to be completed when it is the turn of its callbacks.
static Callbacks::FuturePtr make_gate(const Callbacks::FuturePtr &future)
{
    return std::make_shared<torch::jit::PythonFutureWrapper>(
        c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get(), future->fut->devices()));
}

void Callbacks::open_in_order(const FuturePtr &gate, const FuturePtr &future)
{
    pybind11::gil_scoped_release no_gil;
    add([from = future->fut, to = gate->fut] {
        from->wait();
        if (from->hasError())
            to->setError(from->exception_ptr());
        else
            to->markCompleted(from->value());
    });
}

static pybind11::object for_python(c10::intrusive_ptr<c10::ivalue::Future> future,
                                   const std::shared_ptr<Callbacks> &callbacks)
{
    auto result = pybind11::module_::import("ddl_torch.futures").attr("Future")(callbacks);
    result.cast<Callbacks::FuturePtr>()->fut = std::move(future);
    return result;
}

pybind11::object Callbacks::then(const FuturePtr &future, pybind11::function callback)
{
    FuturePtr gate = make_gate(future);
    auto result = gate->then(std::move(callback))->fut;
    open_in_order(gate, future);
    return for_python(std::move(result), shared_from_this());
}

void Callbacks::add_done_callback(const FuturePtr &future, pybind11::function callback)
{
    FuturePtr gate = make_gate(future);
    gate->add_done_callback(std::move(callback));
    open_in_order(gate, future);
}

pybind11::object future_of(Work &work)
{
    auto future = work.getFuture();
    if (work.buffers().stream)
        return pybind11::cast(std::make_shared<torch::jit::PythonFutureWrapper>(future));
    return for_python(future, work.group().callbacks());
}

} // namespace ddl_torch
