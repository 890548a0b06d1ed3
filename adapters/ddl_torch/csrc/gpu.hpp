// SPDX-License-Identifier: Apache-2.0
// Tensors on NVIDIA GPUs, whose memory libddl uses directly. Their operations run in a separate
// stream of the group, in parallel with the stream that computes.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <optional>

namespace ddl_torch
{

// A group's streams, one for each GPU.
class Streams
{
  public:
    // Return the stream for operations on tensors of this device, or none if their memory must be
    // copied to the host.
    std::optional<c10::Stream> on(c10::Device device);

  private:
    std::mutex mutex_;
    std::map<c10::DeviceIndex, std::optional<c10::Stream>> streams_;
};

// Return the stream's CUstream.
void *handle_of(const c10::Stream &stream);

// Let the stream wait for the work in the current stream of its device.
void let_wait(const c10::Stream &stream);

// Return an event for the work that the stream holds now.
c10::Event end_of(const c10::Stream &stream);

// Let the current stream of the device wait for the event.
void let_current_wait(c10::Device device, const c10::Event &event);

// Keep the tensor's memory until the work that the stream holds now has completed.
void keep_for(const c10::Stream &stream, const at::Tensor &tensor);

} // namespace ddl_torch
