// SPDX-License-Identifier: Apache-2.0
// Tensors on NVIDIA's GPUs, whose memory libddl takes as it is. Their operations run in a stream of
// the group's own, beside the one that computes.
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
    // For operations on tensors of this device. None: their memory must be copied to the host.
    std::optional<c10::Stream> on(c10::Device device);

  private:
    std::mutex mutex_;
    std::map<c10::DeviceIndex, std::optional<c10::Stream>> streams_;
};

// The CUstream.
void *handle_of(const c10::Stream &stream);

// Let the stream wait for what its device's current one holds.
void let_wait(const c10::Stream &stream);

// What the stream holds by now.
c10::Event end_of(const c10::Stream &stream);

// Let the current stream of the device wait for the event.
void let_current_wait(c10::Device device, const c10::Event &event);

// Keep the tensor's memory until what the stream holds by now has ended.
void keep_for(const c10::Stream &stream, const at::Tensor &tensor);

} // namespace ddl_torch
