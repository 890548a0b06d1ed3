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
    Executor::instance().run([self = shared_from_this()] { self->run(); }); // waits for the lock
    running_ = true;
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

// Return a copy of the future, to be completed when its callbacks may run.
static Callbacks::FuturePtr make_gate(const Callbacks::FuturePtr &future)
{
    return std::make_shared<torch::jit::PythonFutureWrapper>(
        c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get(), future->fut->devices()));
}

static void complete_as(c10::ivalue::Future &from, c10::ivalue::Future &to)
{
    if (from.hasError())
        to.setError(from.exception_ptr());
    else
        to.markCompleted(from.value());
}

void Callbacks::open_in_order(const FuturePtr &gate, const FuturePtr &future, bool of_callback)
{
    pybind11::gil_scoped_release no_gil;
    // This thread completes the future, after the current callback: so do not wait for it here.
    if (of_callback && current_tag == tag_ && !future->fut->completed()) {
        future->fut->addCallback(
            [to = gate->fut](c10::ivalue::Future &from) { complete_as(from, *to); });
        return;
    }
    add([from = future->fut, to = gate->fut] {
        from->wait();
        complete_as(*from, *to);
    });
}

static pybind11::object for_python(c10::intrusive_ptr<c10::ivalue::Future> future,
                                   const std::shared_ptr<Callbacks> &callbacks, bool of_callback)
{
    auto type = pybind11::module_::import("ddl_torch.futures").attr("Future");
    auto result = type(callbacks, of_callback);
    result.cast<Callbacks::FuturePtr>()->fut = std::move(future);
    return result;
}

pybind11::object Callbacks::then(const FuturePtr &future, pybind11::function callback,
                                 bool of_callback)
{
    FuturePtr gate = make_gate(future);
    auto result = gate->then(std::move(callback))->fut;
    open_in_order(gate, future, of_callback);
    return for_python(std::move(result), shared_from_this(), true);
}

void Callbacks::add_done_callback(const FuturePtr &future, pybind11::function callback,
                                  bool of_callback)
{
    FuturePtr gate = make_gate(future);
    gate->add_done_callback(std::move(callback));
    open_in_order(gate, future, of_callback);
}

pybind11::object future_of(Work &work)
{
    auto future = work.getFuture();
    const auto &callbacks = work.group().callbacks();
    if (work.buffers().stream || !callbacks)
        return pybind11::cast(std::make_shared<torch::jit::PythonFutureWrapper>(future));
    return for_python(future, callbacks, false);
}

} // namespace ddl_torch
