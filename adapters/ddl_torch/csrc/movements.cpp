// SPDX-License-Identifier: Apache-2.0
// Collective operations that move elements unchanged.
#include "backend.hpp"

namespace ddl_torch
{

namespace
{

// Multiply counts by the number of libddl's elements for each element.
std::vector<int64_t> times(std::vector<int64_t> counts, int64_t each)
{
    for (int64_t &count : counts)
        count *= each;
    return counts;
}

// Return the elements of each rank in a tensor that is split along its first dimension, into the
// given numbers of rows, or into equal parts if there are none.
std::vector<int64_t> split_counts(const char *operation, const char *argument,
                                  const std::vector<int64_t> &sizes, const at::Tensor &tensor,
                                  int ranks)
{
    TORCH_CHECK_VALUE(tensor.dim() > 0, "ddl ", operation, ": ", argument,
                      " has no dimension to split; give it one by reshape(1)");
    const int64_t rows = tensor.size(0), row = rows ? tensor.numel() / rows : 0;
    if (sizes.empty()) {
        TORCH_CHECK_VALUE(rows % ranks == 0, "ddl ", operation, ": ", argument, " has ", rows,
                          " rows; must be a multiple of the ", ranks,
                          " ranks, or give split sizes");
        return std::vector<int64_t>(ranks, rows / ranks * row);
    }
    int64_t left = sizes.size() == size_t(ranks) ? rows : -1; // the sum of sizes could overflow
    for (int64_t size : sizes)
        left = size >= 0 && size <= left ? left - size : -1;
    TORCH_CHECK_VALUE(left == 0, "ddl ", operation, ": the split sizes of ", argument, " are ",
                      at::IntArrayRef(sizes), "; must be ", ranks,
                      " numbers of at least 0 whose sum is its ", rows, " rows");
    return times(sizes, row);
}

void alltoall_part(Operation &operation, const Blocks &output, const Blocks &input)
{
    const Cargo load = cargo(input.memory);
    const void *from = separate(input.memory, output.memory, operation.buffers).const_data_ptr();
    void *to = output.memory.data_ptr();
    operation.parts.push_back(
        [=, sent = times(input.counts, load.each),
         taken = times(output.counts, load.each)](auto comm, auto how, auto work) {
            return ddl_alltoallv(comm, from, sent.data(), nullptr, to, taken.data(), nullptr,
                                 load.dtype, how, work);
        });
}

} // namespace

Backend::WorkPtr Backend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options)
{
    Operation operation(generation_, "broadcast", "ddl:broadcast", c10d::OpType::BROADCAST,
                        options);
    at::Tensor tensor = only(operation.name, "tensors", tensors);
    const int root = int(options.rootRank);
    require_rank(operation.name, "root", options.rootRank, size_);
    operation.inputs = operation.buffers.outputs = tensors;
    place(operation, tensor);
    at::Tensor memory = root == rank_ ? readable(tensor, operation.buffers)
                                      : writable(tensor, false, operation.buffers);
    const Cargo load = cargo(memory);
    operation.parts.push_back([=, at = memory.data_ptr(),
                               count = memory.numel() * load.each](auto comm, auto how, auto work) {
        return ddl_broadcast(comm, at, count, load.dtype, root, how, work);
    });
    return submit(std::move(operation));
}

// ---- all-gather ----

void Backend::allgather_part(Operation &operation, const Blocks &output,
                             const at::Tensor &input) const
{
    const Cargo load = cargo(input);
    char *to = static_cast<char *>(output.memory.data_ptr());
    const void *from = input.const_data_ptr();
    if (input.nbytes() && output.equal() && from == to + rank_ * input.nbytes())
        from = nullptr; // in place
    else
        from = separate(input, output.memory, operation.buffers).const_data_ptr();
    if (output.equal()) {
        operation.parts.push_back(
            [=, count = input.numel() * load.each](auto comm, auto how, auto work) {
                return ddl_allgather(comm, from, to, count, load.dtype, how, work);
            });
    } else {
        operation.parts.push_back([=, counts = times(output.counts, load.each)](auto comm, auto how,
                                                                                auto work) {
            return ddl_allgatherv(comm, from, to, counts.data(), nullptr, load.dtype, how, work);
        });
    }
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                    const c10d::AllgatherOptions &options)
{
    Operation operation(generation_, "allgather", "ddl:all_gather", c10d::OpType::ALLGATHER,
                        options);
    at::Tensor input = only(operation.name, "inputs", inputs);
    const Tensors &list = only_list(operation.name, "outputs", outputs);
    require_each(operation.name, "outputs", list, input, size_);
    require_elements(operation.name, "the input", input, "this rank's output", list[rank_].numel());
    operation.inputs = inputs;
    operation.buffers.outputs = list;
    place(operation, input);
    at::Tensor from = readable(input, operation.buffers);
    allgather_part(operation, writable_blocks(list, operation.buffers), from);
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor &output, at::Tensor &input,
                                          const c10d::AllgatherOptions &options)
{
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                          const c10d::AllgatherOptions &options)
{
    Operation operation(generation_, "allgather", "ddl:_all_gather_base",
                        c10d::OpType::_ALLGATHER_BASE, options);
    TORCH_CHECK_VALUE(inputs.size() == outputs.size(), "ddl ", operation.name, ": there are ",
                      inputs.size(), " inputs, but ", outputs.size(), " outputs");
    operation.inputs = inputs;
    operation.buffers.outputs = outputs;
    for (size_t i = 0; i < inputs.size(); i++) {
        require_multiple(operation.name, "output", outputs[i], "input", inputs[i], size_);
        place(operation, inputs[i]);
        at::Tensor from = readable(inputs[i], operation.buffers);
        at::Tensor memory = writable(outputs[i], false, operation.buffers);
        Blocks blocks{memory, std::vector<int64_t>(size_, from.numel())};
        allgather_part(operation, blocks, from);
    }
    return submit(std::move(operation));
}

// outputs[r][i] = rank r's inputs[i].
Backend::WorkPtr Backend::allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                              const c10d::AllgatherOptions &options)
{
    Operation operation(generation_, "allgather_coalesced", "ddl:all_gather",
                        c10d::OpType::ALLGATHER_COALESCED, options);
    TORCH_CHECK_VALUE(outputs.size() == size_t(size_), "ddl ", operation.name, ": outputs has ",
                      outputs.size(), " lists, but there are ", size_, " ranks");
    operation.inputs = inputs;
    for (const Tensors &list : outputs) {
        TORCH_CHECK_VALUE(list.size() == inputs.size(), "ddl ", operation.name, ": outputs[",
                          &list - outputs.data(), "] has ", list.size(), " tensors, but there are ",
                          inputs.size(), " inputs");
        for (const auto &tensor : list)
            operation.buffers.outputs.push_back(tensor);
    }
    for (size_t i = 0; i < inputs.size(); i++) {
        Tensors column;
        for (const Tensors &list : outputs)
            column.push_back(list[i]);
        require_dense(operation.name, "inputs", inputs[i]);
        require_each(operation.name, "outputs", column, inputs[i], size_);
        // Check all tensors first, so that an error on all ranks is rejected on all; the group then
        // stays usable.
        for (const auto &tensor : column)
            require_elements(operation.name, "an output", tensor, "its input", inputs[i].numel());
        place(operation, inputs[i]);
        at::Tensor from = readable(inputs[i], operation.buffers);
        allgather_part(operation, writable_blocks(column, operation.buffers), from);
    }
    return submit(std::move(operation));
}

// ---- gather and scatter ----

Backend::WorkPtr Backend::gather(std::vector<Tensors> &outputs, Tensors &inputs,
                                 const c10d::GatherOptions &options)
{
    Operation operation(generation_, "gather", "ddl:gather", c10d::OpType::GATHER, options);
    at::Tensor input = only(operation.name, "inputs", inputs);
    const int root = int(options.rootRank);
    require_rank(operation.name, "root", options.rootRank, size_);
    operation.inputs = inputs;
    place(operation, input);
    at::Tensor from = readable(input, operation.buffers);
    const Cargo load = cargo(from);
    Blocks blocks;
    void *to = nullptr;
    if (root == rank_) {
        const Tensors &list = only_list(operation.name, "outputs", outputs);
        require_each(operation.name, "outputs", list, input, size_);
        require_elements(operation.name, "the input", input, "the root's output",
                         list[rank_].numel());
        operation.buffers.outputs = list;
        blocks = writable_blocks(list, operation.buffers);
        to = blocks.memory.data_ptr();
        from = separate(from, blocks.memory, operation.buffers);
    } else {
        TORCH_CHECK_VALUE(outputs.empty(), "ddl ", operation.name, ": outputs has ", outputs.size(),
                          " lists, but is only for the root, rank ", root);
    }
    operation.parts.push_back(
        [=, at = from.const_data_ptr(), count = from.numel() * load.each,
         counts = times(blocks.counts, load.each)](auto comm, auto how, auto work) {
            return ddl_gatherv(comm, at, count, to, counts.data(), nullptr, load.dtype, root, how,
                               work);
        });
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::gather_into_tensor(at::Tensor &output, at::Tensor &input,
                                             const c10d::GatherOptions &options)
{
    std::vector<Tensors> outputs;
    Tensors inputs{input};
    if (options.rootRank == rank_) {
        require_multiple("gather", "output", output, "input", input, size_);
        TORCH_CHECK_VALUE(output.is_contiguous(), "ddl gather: output is not contiguous");
        outputs.push_back(output.view({size_, input.numel()}).unbind());
    }
    return gather(outputs, inputs, options);
}

Backend::WorkPtr Backend::scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                  const c10d::ScatterOptions &options)
{
    Operation operation(generation_, "scatter", "ddl:scatter", c10d::OpType::SCATTER, options);
    at::Tensor output = only(operation.name, "outputs", outputs);
    const int root = int(options.rootRank);
    require_rank(operation.name, "root", options.rootRank, size_);
    operation.buffers.outputs = outputs;
    place(operation, output);
    at::Tensor to = writable(output, false, operation.buffers);
    const Cargo load = cargo(to);
    Blocks blocks;
    const void *from = nullptr;
    if (root == rank_) {
        const Tensors &list = only_list(operation.name, "inputs", inputs);
        require_each(operation.name, "inputs", list, output, size_);
        require_elements(operation.name, "the output", output, "the root's input",
                         list[rank_].numel());
        operation.inputs = list;
        blocks = readable_blocks(list, operation.buffers);
        from = separate(blocks.memory, to, operation.buffers).const_data_ptr();
    } else {
        TORCH_CHECK_VALUE(inputs.empty(), "ddl ", operation.name, ": inputs has ", inputs.size(),
                          " lists, but is only for the root, rank ", root);
    }
    operation.parts.push_back(
        [=, at = to.data_ptr(), count = to.numel() * load.each,
         counts = times(blocks.counts, load.each)](auto comm, auto how, auto work) {
            return ddl_scatterv(comm, from, counts.data(), nullptr, at, count, load.dtype, root,
                                how, work);
        });
    return submit(std::move(operation));
}

// ---- all-to-all ----

Backend::WorkPtr Backend::alltoall(Tensors &outputs, Tensors &inputs,
                                   const c10d::AllToAllOptions &options)
{
    Operation operation(generation_, "alltoall", "ddl:all_to_all", c10d::OpType::ALLTOALL, options);
    TORCH_CHECK_VALUE(!outputs.empty(), "ddl ", operation.name, ": there are no outputs");
    require_each(operation.name, "outputs", outputs, outputs[0], size_);
    require_each(operation.name, "inputs", inputs, outputs[0], size_);
    require_elements(operation.name, "this rank's input", inputs[rank_], "its output",
                     outputs[rank_].numel());
    operation.inputs = inputs;
    operation.buffers.outputs = outputs;
    place(operation, outputs[0]);
    Blocks from = readable_blocks(inputs, operation.buffers);
    alltoall_part(operation, writable_blocks(outputs, operation.buffers), from);
    return submit(std::move(operation));
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor &output, at::Tensor &input,
                                        std::vector<int64_t> &output_sizes,
                                        std::vector<int64_t> &input_sizes,
                                        const c10d::AllToAllOptions &options)
{
    Operation operation(generation_, "alltoall", "ddl:all_to_all", c10d::OpType::ALLTOALL_BASE,
                        options);
    require_dense(operation.name, "output", output);
    require_dense(operation.name, "input", input);
    TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "ddl ", operation.name,
                     ": output is of type ", output.scalar_type(), ", input of type ",
                     input.scalar_type());
    auto sent = split_counts(operation.name, "input", input_sizes, input, size_);
    auto taken = split_counts(operation.name, "output", output_sizes, output, size_);
    operation.inputs = {input};
    operation.buffers.outputs = {output};
    place(operation, output);
    Blocks from{readable(input, operation.buffers), sent};
    Blocks to{writable(output, false, operation.buffers), taken};
    alltoall_part(operation, to, from);
    return submit(std::move(operation));
}

} // namespace ddl_torch
