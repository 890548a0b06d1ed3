// SPDX-License-Identifier: Apache-2.0
// Operations that combine the ranks' elements.
#include "backend.hpp"

namespace ddl_torch
{

namespace
{

// Return memory that holds the operand and receives the result.
at::Tensor in_place(Operation &operation, const at::Tensor &tensor)
{
    at::Tensor memory = writable(tensor, true, operation.buffers);
    if (operation.prescale == 0)
        nullify(operation.name, memory);
    return memory;
}

// Return memory that holds an operand and is not changed.
at::Tensor unchanged(Operation &operation, const at::Tensor &tensor)
{
    if (operation.prescale != 0)
        return readable(tensor, operation.buffers);
    at::Tensor copy = copied(tensor, operation.buffers);
    nullify(operation.name, copy);
    operation.buffers.keep.push_back(copy);
    return copy;
}

void allreduce_part(Operation &operation, const at::Tensor &tensor, ddl_op op)
{
    const ddl_dtype dtype = reduced_type(operation.name, tensor);
    at::Tensor memory = in_place(operation, tensor);
    operation.parts.push_back([to = memory.data_ptr(), count = memory.numel(), dtype,
                               op](auto comm, auto how, auto work) {
        return ddl_allreduce(comm, nullptr, to, count, dtype, op, how, work);
    });
}

} // namespace

Backend::WorkPtr Backend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &options)
{
    if (tensors.size() == 1 && tensors[0].is_sparse())
        return allreduce_sparse(tensors, options);
    Operation operation(generation_, "allreduce", "ddl:all_reduce", c10d::OpType::ALLREDUCE,
                        options);
    at::Tensor tensor = only(operation.name, "tensors", tensors);
    const auto [op, prescale] = reduction(operation.name, options.reduceOp);
    operation.prescale = prescale;
    operation.inputs = operation.buffers.outputs = tensors;
    place(operation, tensor);
    allreduce_part(operation, tensor, op);
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors &tensors,
                                              const c10d::AllreduceCoalescedOptions &options)
{
    Operation operation(generation_, "allreduce_coalesced", "ddl:all_reduce",
                        c10d::OpType::ALLREDUCE_COALESCED, options);
    const auto [op, prescale] = reduction(operation.name, options.reduceOp);
    operation.prescale = prescale;
    operation.inputs = operation.buffers.outputs = tensors;
    for (const auto &tensor : tensors) {
        require_dense(operation.name, "tensors", tensor);
        place(operation, tensor);
        allreduce_part(operation, tensor, op);
    }
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::reduce(Tensors &tensors, const c10d::ReduceOptions &options)
{
    Operation operation(generation_, "reduce", "ddl:reduce", c10d::OpType::REDUCE, options);
    at::Tensor tensor = only(operation.name, "tensors", tensors);
    const auto [op, prescale] = reduction(operation.name, options.reduceOp);
    const int root = int(options.rootRank);
    require_rank(operation.name, "root", options.rootRank, size_);
    const ddl_dtype dtype = reduced_type(operation.name, tensor);
    operation.prescale = prescale;
    operation.inputs = operation.buffers.outputs = tensors;
    const bool is_root = root == rank_;
    place(operation, tensor);
    at::Tensor memory = is_root ? in_place(operation, tensor) : unchanged(operation, tensor);
    operation.parts.push_back([=, count = memory.numel(), at = memory.data_ptr(),
                               op = op](auto comm, auto how, auto work) {
        return ddl_reduce(comm, is_root ? nullptr : at, is_root ? at : nullptr, count, dtype, op,
                          root, how, work);
    });
    return submit(std::move(operation));
}

// output = this rank's block of the input, reduced.
void Backend::reduce_scatter_part(Operation &operation, const at::Tensor &output,
                                  const Blocks &input, ddl_op op) const
{
    const ddl_dtype dtype = reduced_type(operation.name, output);
    const at::Tensor &memory = input.memory;
    const void *from = memory.const_data_ptr();
    void *to = output.data_ptr();
    if (output.nbytes() && input.equal() &&
        to == static_cast<const char *>(from) + rank_ * output.nbytes()) {
        to = memory.data_ptr(); // in place: the result is in the input
        from = nullptr;
    } else {
        from = separate(memory, output, operation.buffers).const_data_ptr();
    }
    if (input.equal()) {
        operation.parts.push_back([=, count = output.numel()](auto comm, auto how, auto work) {
            return ddl_reduce_scatter(comm, from, to, count, dtype, op, how, work);
        });
    } else {
        operation.parts.push_back([=, counts = input.counts](auto comm, auto how, auto work) {
            return ddl_reduce_scatterv(comm, from, to, counts.data(), dtype, op, how, work);
        });
    }
}

Backend::WorkPtr Backend::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                         const c10d::ReduceScatterOptions &options)
{
    Operation operation(generation_, "reduce_scatter", "ddl:reduce_scatter",
                        c10d::OpType::REDUCE_SCATTER, options);
    at::Tensor output = only(operation.name, "outputs", outputs);
    const Tensors &list = only_list(operation.name, "inputs", inputs);
    require_each(operation.name, "inputs", list, output, size_);
    require_elements(operation.name, "the output", output, "this rank's input",
                     list[rank_].numel());
    const auto [op, prescale] = reduction(operation.name, options.reduceOp);
    reduced_type(operation.name, output);
    operation.prescale = prescale;
    operation.inputs = list;
    operation.buffers.outputs = outputs;
    place(operation, output);
    Blocks blocks = readable_blocks(list, operation.buffers);
    if (operation.prescale == 0)
        blocks.memory = unchanged(operation, blocks.memory);
    at::Tensor to = writable(output, false, operation.buffers);
    reduce_scatter_part(operation, to, blocks, op);
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                               const c10d::ReduceScatterOptions &options)
{
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                          const c10d::ReduceScatterOptions &options)
{
    Operation operation(generation_, "reduce_scatter", "ddl:_reduce_scatter_base",
                        c10d::OpType::_REDUCE_SCATTER_BASE, options);
    const auto [op, prescale] = reduction(operation.name, options.reduceOp);
    TORCH_CHECK_VALUE(inputs.size() == outputs.size(), "ddl ", operation.name, ": there are ",
                      inputs.size(), " inputs, but ", outputs.size(), " outputs");
    operation.prescale = prescale;
    operation.inputs = inputs;
    operation.buffers.outputs = outputs;
    for (size_t i = 0; i < inputs.size(); i++) {
        require_multiple(operation.name, "input", inputs[i], "output", outputs[i], size_);
        reduced_type(operation.name, outputs[i]);
        place(operation, outputs[i]);
        at::Tensor memory = unchanged(operation, inputs[i]);
        at::Tensor to = writable(outputs[i], false, operation.buffers);
        Blocks blocks{memory, std::vector<int64_t>(size_, to.numel())};
        reduce_scatter_part(operation, to, blocks, op);
    }
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::reduce_parts(const Tensors &parts, const at::Tensor &output,
                                       ddl_order *order, ddl_op op, bool scatters)
{
    using c10d::OpType;
    Operation operation(generation_, scatters ? "reduce_scatter_parts" : "allreduce_parts",
                        scatters ? "ddl:reduce_scatter" : "ddl:all_reduce",
                        scatters ? OpType::REDUCE_SCATTER : OpType::ALLREDUCE);
    operation.async = false;
    operation.inputs = operation.buffers.keep = parts;
    operation.buffers.outputs = {output};
    std::vector<const void *> starts;
    for (const auto &part : parts)
        starts.push_back(part.const_data_ptr());
    const ddl_dtype dtype = reduced_type(operation.name, output);
    operation.parts.push_back(
        [=, to = output.data_ptr(), count = output.numel()](auto comm, auto how, auto work) {
            auto sum = scatters ? ddl_reduce_scatter_ordered : ddl_allreduce_ordered;
            return sum(comm, order, starts.data(), to, count, dtype, op, how, work);
        });
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::allreduce_packed(const at::Tensor &tensor, const at::Tensor &residual,
                                           ddl_op op, uint32_t wire)
{
    Operation operation(generation_, "allreduce_packed", "ddl:all_reduce", c10d::OpType::ALLREDUCE);
    operation.inputs = operation.buffers.outputs = {tensor};
    operation.buffers.keep = {residual};
    operation.wire = wire;
    operation.residual = residual.data_ptr<float>();
    allreduce_part(operation, tensor, op);
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::reduce_scatter_packed(const at::Tensor &input, const at::Tensor &output,
                                                const at::Tensor &residual, ddl_op op,
                                                uint32_t wire)
{
    Operation operation(generation_, "reduce_scatter_packed", "ddl:_reduce_scatter_base",
                        c10d::OpType::_REDUCE_SCATTER_BASE);
    operation.inputs = {input};
    operation.buffers.outputs = {output};
    operation.buffers.keep = {input, residual};
    operation.wire = wire;
    operation.residual = residual.data_ptr<float>();
    const Blocks blocks{input, std::vector<int64_t>(size_, output.numel())};
    reduce_scatter_part(operation, output, blocks, op);
    return submit(std::move(operation));
}

} // namespace ddl_torch
