// SPDX-License-Identifier: Apache-2.0
// Messages from one rank to another, and the barrier.
#include "backend.hpp"

namespace ddl_torch
{

namespace
{

void receive_part(Operation &operation, const at::Tensor &tensor, int from, int tag)
{
    at::Tensor memory = writable(tensor, false, operation.buffers);
    const Cargo load = cargo(memory);
    auto sender = std::make_shared<int>(from);
    operation.buffers.senders.push_back(sender);
    operation.parts.push_back([=, at = memory.data_ptr(), count = memory.numel() * load.each,
                               who = sender.get()](auto comm, auto how, auto work) {
        return ddl_recv(comm, at, count, load.dtype, from, tag, who, how, work);
    });
}

} // namespace

Backend::WorkPtr Backend::send(Tensors &tensors, int to, int tag)
{
    Operation operation(generation_, "send", "ddl:send", c10d::OpType::SEND);
    at::Tensor tensor = only(operation.name, "tensors", tensors);
    require_rank(operation.name, "destination", to, size_);
    operation.inputs = tensors;
    at::Tensor memory = readable(tensor, operation.buffers);
    const Cargo load = cargo(memory);
    operation.parts.push_back([=, at = memory.const_data_ptr(),
                               count = memory.numel() * load.each](auto comm, auto how, auto work) {
        return ddl_send(comm, at, count, load.dtype, to, tag, how, work);
    });
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::recv(Tensors &tensors, int from, int tag)
{
    Operation operation(generation_, "recv", "ddl:recv", c10d::OpType::RECV);
    at::Tensor tensor = only(operation.name, "tensors", tensors);
    require_rank(operation.name, "source", from, size_);
    operation.buffers.outputs = tensors;
    receive_part(operation, tensor, from, tag);
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::recvAnysource(Tensors &tensors, int tag)
{
    Operation operation(generation_, "recvAnysource", "ddl:recvAnySource",
                        c10d::OpType::RECVANYSOURCE);
    at::Tensor tensor = only(operation.name, "tensors", tensors);
    operation.buffers.outputs = tensors;
    receive_part(operation, tensor, DDL_ANY_SOURCE, tag);
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions &options)
{
    Operation operation(generation_, "barrier", "ddl:barrier", c10d::OpType::BARRIER, options);
    operation.parts.push_back(
        [](auto comm, auto how, auto work) { return ddl_barrier(comm, how, work); });
    return submit(std::move(operation));
}

} // namespace ddl_torch
