// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace ddl_torch
{

namespace
{

std::optional<ddl_dtype> known_type(at::ScalarType type)
{
    switch (type) {
    case at::kBool: return DDL_BOOL;
    case at::kChar: return DDL_I8;
    case at::kByte: return DDL_U8;
    case at::kShort: return DDL_I16;
    case at::kUInt16: return DDL_U16;
    case at::kInt: return DDL_I32;
    case at::kUInt32: return DDL_U32;
    case at::kLong: return DDL_I64;
    case at::kUInt64: return DDL_U64;
    case at::kHalf: return DDL_F16;
    case at::kBFloat16: return DDL_BF16;
    case at::kFloat: return DDL_F32;
    case at::kDouble: return DDL_F64;
    case at::kFloat8_e4m3fn: return DDL_F8_E4M3;
    case at::kFloat8_e5m2: return DDL_F8_E5M2;
    case at::kComplexFloat: return DDL_C64;
    case at::kComplexDouble: return DDL_C128;
    default: return std::nullopt;
    }
}

c10::Device device_of(const Buffers &buffers)
{
    return buffers.stream ? buffers.stream->device() : c10::Device(at::kCPU);
}

// Return true if the elements are contiguous in the right memory, with no operation pending on
// them.
bool is_plain(const at::Tensor &tensor, const Buffers &buffers)
{
    return tensor.device() == device_of(buffers) && tensor.is_contiguous() && !tensor.is_conj() &&
           !tensor.is_neg();
}

at::Tensor scratch(at::IntArrayRef sizes, const at::Tensor &like, const Buffers &buffers)
{
    return at::empty(sizes,
                     at::TensorOptions().dtype(like.scalar_type()).device(device_of(buffers)));
}

// Return the copy of a result to its tensor. From the host to an accelerator it runs in this
// thread's current stream, as if the operation ran there.
Copy copy_back(const at::Tensor &to, const at::Tensor &from, const Buffers &buffers)
{
    if (buffers.stream)
        return {to, from, buffers.stream};
    if (to.is_cpu())
        return {to, from, std::nullopt};
    return {to, from, c10::impl::VirtualGuardImpl(to.device().type()).getStream(to.device())};
}

const char *begin(const at::Tensor &tensor)
{
    return static_cast<const char *>(tensor.const_data_ptr());
}

// Return true if the tensors of the list follow each other in memory.
bool are_neighbours(const Tensors &list, const Buffers &buffers)
{
    const char *next = begin(list[0]);
    for (const auto &tensor : list) {
        if (!is_plain(tensor, buffers) || !tensor.is_alias_of(list[0]) ||
            (tensor.numel() && begin(tensor) != next))
            return false;
        next += tensor.nbytes();
    }
    return list[0].numel() > 0; // an empty one may have no address
}

// Return the tensors' own memory if they are adjacent; else scratch, for which `join` is called
// with each tensor and its part.
template <class Join> Blocks blocks(const Tensors &list, Buffers &buffers, Join join)
{
    std::vector<int64_t> counts;
    for (const auto &tensor : list)
        counts.push_back(tensor.numel());
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t(0));
    if (are_neighbours(list, buffers)) {
        buffers.keep.insert(buffers.keep.end(), list.begin(), list.end());
        return {list[0].as_strided({total}, {1}), counts};
    }
    auto memory = scratch({total}, list[0], buffers);
    int64_t at = 0;
    for (const auto &tensor : list) {
        join(tensor, memory.narrow(0, at, tensor.numel()).view(tensor.sizes()));
        at += tensor.numel();
    }
    buffers.keep.push_back(memory);
    return {memory, counts};
}

double factor_of(const char *operation, const c10d::ReduceOp &op)
{
    const auto *scaled = dynamic_cast<const c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
    TORCH_CHECK_VALUE(scaled, "ddl ", operation, ": ReduceOp.PREMUL_SUM has no factor");
    return scaled->tensor_factor.defined() ? scaled->tensor_factor.item<double>()
                                           : scaled->double_factor;
}

} // namespace

Reduction reduction(const char *operation, const c10d::ReduceOp &op)
{
    switch (op.op_) {
    case c10d::ReduceOp::SUM: return {DDL_SUM, 1};
    case c10d::ReduceOp::AVG: return {DDL_AVERAGE, 1};
    case c10d::ReduceOp::PRODUCT: return {DDL_PRODUCT, 1};
    case c10d::ReduceOp::MIN: return {DDL_MIN, 1};
    case c10d::ReduceOp::MAX: return {DDL_MAX, 1};
    case c10d::ReduceOp::BAND: return {DDL_BIT_AND, 1};
    case c10d::ReduceOp::BOR: return {DDL_BIT_OR, 1};
    case c10d::ReduceOp::BXOR: return {DDL_BIT_XOR, 1};
    case c10d::ReduceOp::PREMUL_SUM: return {DDL_SUM, factor_of(operation, op)};
    default: TORCH_CHECK_VALUE(false, "ddl ", operation, ": ", int(op.op_), " is not a ReduceOp");
    }
}

void nullify(const char *operation, const at::Tensor &memory)
{
    const auto type = memory.scalar_type();
    TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(type) || at::isComplexType(type), "ddl ",
                                operation, ": ReduceOp.PREMUL_SUM of ", type,
                                "; only floats and complex numbers can be scaled");
    at::AutoDispatchBelowADInplaceOrView guard; // it may be a leaf that requires grad
    if (at::isFloat8Type(type))
        memory.copy_(memory.to(at::kFloat).mul_(0));
    else
        memory.mul_(0);
}

ddl_dtype reduced_type(const char *operation, const at::Tensor &tensor)
{
    auto type = known_type(tensor.scalar_type());
    TORCH_CHECK_TYPE(type, "ddl ", operation, ": cannot reduce tensors of type ",
                     tensor.scalar_type());
    return *type;
}

Cargo cargo(const at::Tensor &tensor)
{
    if (auto type = known_type(tensor.scalar_type()))
        return {*type, 1};
    return {DDL_U8, int64_t(tensor.element_size())};
}

void require_dense(const char *operation, const char *argument, const at::Tensor &tensor)
{
    TORCH_CHECK_VALUE(tensor.defined(), "ddl ", operation, ": ", argument, " is undefined");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "ddl ", operation, ": ", argument,
                      " has layout ", tensor.layout(),
                      "; it must be dense, so give its to_dense()");
    TORCH_CHECK_VALUE(!tensor.is_meta(), "ddl ", operation, ": ", argument,
                      " is on the device meta, so it has no values; give it some on cpu");
}

void require_rank(const char *operation, const char *argument, int64_t rank, int ranks)
{
    TORCH_CHECK_VALUE(rank >= 0 && rank < ranks, "ddl ", operation, ": the ", argument, " is rank ",
                      rank, ", but the group has ", ranks, " ranks");
}

at::Tensor only(const char *operation, const char *argument, const Tensors &list)
{
    TORCH_CHECK_VALUE(list.size() == 1, "ddl ", operation, ": ", argument, " has ", list.size(),
                      " tensors, but takes one");
    require_dense(operation, argument, list[0]);
    return list[0];
}

const Tensors &only_list(const char *operation, const char *argument,
                         const std::vector<Tensors> &lists)
{
    TORCH_CHECK_VALUE(lists.size() == 1, "ddl ", operation, ": ", argument, " has ", lists.size(),
                      " lists, but takes one");
    return lists[0];
}

void require_each(const char *operation, const char *argument, const Tensors &list,
                  const at::Tensor &model, int ranks)
{
    TORCH_CHECK_VALUE(list.size() == size_t(ranks), "ddl ", operation, ": ", argument, " has ",
                      list.size(), " tensors, but there are ", ranks, " ranks");
    for (size_t i = 0; i < list.size(); i++) {
        require_dense(operation, argument, list[i]);
        TORCH_CHECK_TYPE(list[i].scalar_type() == model.scalar_type(), "ddl ", operation, ": ",
                         argument, "[", i, "] is of type ", list[i].scalar_type(),
                         ", the other side of type ", model.scalar_type());
    }
}

void require_elements(const char *operation, const char *argument, const at::Tensor &tensor,
                      const char *other, int64_t elements)
{
    TORCH_CHECK_VALUE(tensor.numel() == elements, "ddl ", operation, ": ", argument, " has ",
                      tensor.numel(), " elements, but ", other, " has ", elements);
}

void require_multiple(const char *operation, const char *large_name, const at::Tensor &large,
                      const char *small_name, const at::Tensor &small, int ranks)
{
    require_dense(operation, large_name, large);
    require_dense(operation, small_name, small);
    TORCH_CHECK_TYPE(large.scalar_type() == small.scalar_type(), "ddl ", operation, ": ",
                     large_name, " is of type ", large.scalar_type(), ", ", small_name, " of type ",
                     small.scalar_type());
    TORCH_CHECK_VALUE(large.numel() == small.numel() * ranks, "ddl ", operation, ": ", large_name,
                      " has ", large.numel(), " elements, which is not ", ranks, " times the ",
                      small.numel(), " of ", small_name);
}

at::Tensor readable(const at::Tensor &tensor, Buffers &buffers)
{
    buffers.keep.push_back(is_plain(tensor, buffers) ? tensor : copied(tensor, buffers));
    return buffers.keep.back();
}

at::Tensor copied(const at::Tensor &tensor, const Buffers &buffers)
{
    auto copy = scratch(tensor.sizes(), tensor, buffers);
    copy.copy_(tensor.detach());
    return copy;
}

at::Tensor writable(const at::Tensor &tensor, bool filled, Buffers &buffers)
{
    if (is_plain(tensor, buffers)) {
        buffers.keep.push_back(tensor);
        return tensor;
    }
    auto copy = scratch(tensor.sizes(), tensor, buffers);
    if (filled)
        copy.copy_(tensor.detach());
    buffers.copies.push_back(copy_back(tensor, copy, buffers));
    return copy;
}

bool Blocks::equal() const
{
    return std::all_of(counts.begin(), counts.end(),
                       [this](int64_t count) { return count == counts[0]; });
}

Blocks readable_blocks(const Tensors &list, Buffers &buffers)
{
    return blocks(list, buffers, [](const at::Tensor &tensor, const at::Tensor &part) {
        part.copy_(tensor.detach());
    });
}

Blocks writable_blocks(const Tensors &list, Buffers &buffers)
{
    return blocks(list, buffers, [&](const at::Tensor &tensor, const at::Tensor &part) {
        buffers.copies.push_back(copy_back(tensor, part, buffers));
    });
}

at::Tensor separate(const at::Tensor &input, const at::Tensor &output, Buffers &buffers)
{
    if (begin(input) >= begin(output) + output.nbytes() ||
        begin(output) >= begin(input) + input.nbytes())
        return input;
    buffers.keep.push_back(copied(input, buffers));
    return buffers.keep.back();
}

} // namespace ddl_torch
