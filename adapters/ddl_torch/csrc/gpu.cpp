// SPDX-License-Identifier: Apache-2.0
#include "gpu.hpp"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddl_torch
{

namespace
{

using Device = c10::impl::VirtualGuardImpl;

// Older versions of PyTorch have no stream handles.
template <class Stream>
auto find_handle(const Stream &stream, int) -> decltype(stream.native_handle())
{
    return stream.native_handle();
}
template <class Stream> void *find_handle(const Stream &, long)
{
    return nullptr;
}

std::optional<c10::Stream> make_stream(c10::Device device)
{
    if (!device.is_cuda() || at::Context::hasROCM())
        return std::nullopt;
    const c10::Stream stream = Device(device.type()).getStreamFromGlobalPool(device, true);
    return find_handle(stream, 0) ? std::optional(stream) : std::nullopt;
}

} // namespace

std::optional<c10::Stream> Streams::on(c10::Device device)
{
    if (device.is_cpu())
        return std::nullopt;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = streams_.find(device.index());
    if (found != streams_.end())
        return found->second;
    return streams_[device.index()] = make_stream(device);
}

void *handle_of(const c10::Stream &stream)
{
    return find_handle(stream, 0);
}

void let_wait(const c10::Stream &stream)
{
    end_of(Device(stream.device_type()).getStream(stream.device())).block(stream);
}

c10::Event end_of(const c10::Stream &stream)
{
    c10::Event event(stream.device_type());
    event.record(stream);
    return event;
}

void let_current_wait(c10::Device device, const c10::Event &event)
{
    event.block(Device(device.type()).getStream(device));
}

void keep_for(const c10::Stream &stream, const at::Tensor &tensor)
{
    Device(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

} // namespace ddl_torch
