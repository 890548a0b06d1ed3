#include "tensors.hpp"

#include <c10/util/Exception.h>

#include <optional>

namespace ddl_torch
{

namespace
{

std::optional<ddl_dtype> known_type(at::ScalarType type)
{
    switch (type) {
    case at::kChar: return DDL_I8;
    case at::kByte: return DDL_U8;
    case at::kInt: return DDL_I32;
    case at::kLong: return DDL_I64;
    case at::kHalf: return DDL_F16;
    case at::kBFloat16: return DDL_BF16;
    case at::kFloat: return DDL_F32;
    case at::kDouble: return DDL_F64;
    default: return std::nullopt;
    }
}

// Elements one after the other in memory, with no operation pending on them.
bool is_plain(const at::Tensor &tensor)
{
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor scratch(at::IntArrayRef sizes, const at::Tensor &like)
{
    return at::empty(sizes, at::TensorOptions().dtype(like.scalar_type()));
}

const char *begin(const at::Tensor &tensor)
{
    return static_cast<const char *>(tensor.const_data_ptr());
}

// Whether the tensors of the list follow each other in memory.
bool are_neighbours(const std::vector<at::Tensor> &list)
{
    for (size_t i = 0; i < list.size(); i++)
        if (!is_plain(list[i]) || !list[i].is_alias_of(list[0]) ||
            begin(list[i]) != begin(list[0]) + i * list[0].nbytes())
            return false;
    return true;
}

at::Tensor rows_in_place(const std::vector<at::Tensor> &list)
{
    return list[0].as_strided({int64_t(list.size()), list[0].numel()}, {list[0].numel(), 1});
}

} // namespace

ddl_op reduction(const char *operation, const c10d::ReduceOp &op)
{
    static const char *const names[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                        "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
    const size_t number = op.op_;
    switch (op.op_) {
    case c10d::ReduceOp::SUM: return DDL_SUM;
    case c10d::ReduceOp::AVG: return DDL_AVERAGE;
    case c10d::ReduceOp::PRODUCT: return DDL_PRODUCT;
    case c10d::ReduceOp::MIN: return DDL_MIN;
    case c10d::ReduceOp::MAX: return DDL_MAX;
    default:
        TORCH_CHECK_VALUE(false, "ddl ", operation, ": ReduceOp.",
                          number < std::size(names) ? names[number] : "?",
                          " is not supported yet; there is SUM, AVG, MIN, MAX, PRODUCT");
    }
}

ddl_dtype reduced_type(const char *operation, const at::Tensor &tensor)
{
    auto type = known_type(tensor.scalar_type());
    TORCH_CHECK_TYPE(type, "ddl ", operation, ": cannot reduce tensors of type ",
                     tensor.scalar_type(),
                     "; there is Half, BFloat16, Float, Double, Char, Byte, Int, Long");
    return *type;
}

Cargo cargo(const at::Tensor &tensor)
{
    if (auto type = known_type(tensor.scalar_type()))
        return {*type, tensor.numel()};
    return {DDL_U8, int64_t(tensor.nbytes())};
}

void require_host(const char *operation, const char *argument, const at::Tensor &tensor)
{
    TORCH_CHECK_VALUE(tensor.defined(), "ddl ", operation, ": ", argument, " is undefined");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "ddl ", operation, ": ", argument,
                      " has layout ", tensor.layout(), "; only dense tensors so far");
    TORCH_CHECK_VALUE(tensor.device().is_cpu(), "ddl ", operation, ": ", argument, " is on ",
                      tensor.device(), "; only CPU tensors so far");
}

at::Tensor only(const char *operation, const char *argument, const std::vector<at::Tensor> &list)
{
    TORCH_CHECK_VALUE(list.size() == 1, "ddl ", operation, ": ", argument, " has ", list.size(),
                      " tensors, but takes one");
    require_host(operation, argument, list[0]);
    return list[0];
}

void require_alike(const char *operation, const char *argument, const std::vector<at::Tensor> &list,
                   const at::Tensor &model, int ranks)
{
    TORCH_CHECK_VALUE(list.size() == size_t(ranks), "ddl ", operation, ": ", argument, " has ",
                      list.size(), " tensors, but there are ", ranks, " ranks");
    for (size_t i = 0; i < list.size(); i++) {
        require_host(operation, argument, list[i]);
        TORCH_CHECK_TYPE(list[i].scalar_type() == model.scalar_type(), "ddl ", operation, ": ",
                         argument, "[", i, "] is of type ", list[i].scalar_type(),
                         ", the other side of type ", model.scalar_type());
        TORCH_CHECK_VALUE(list[i].numel() == model.numel(), "ddl ", operation, ": ", argument, "[",
                          i, "] has ", list[i].numel(), " elements, the other side ", model.numel(),
                          "; different sizes are not supported yet");
    }
}

void require_multiple(const char *operation, const char *large_name, const at::Tensor &large,
                      const char *small_name, const at::Tensor &small, int ranks)
{
    require_host(operation, large_name, large);
    require_host(operation, small_name, small);
    TORCH_CHECK_TYPE(large.scalar_type() == small.scalar_type(), "ddl ", operation, ": ",
                     large_name, " is of type ", large.scalar_type(), ", ", small_name, " of type ",
                     small.scalar_type());
    TORCH_CHECK_VALUE(large.numel() == small.numel() * ranks, "ddl ", operation, ": ", large_name,
                      " has ", large.numel(), " elements, which is not ", ranks, " times the ",
                      small.numel(), " of ", small_name);
}

at::Tensor readable(const at::Tensor &tensor, Buffers &buffers)
{
    if (is_plain(tensor)) {
        buffers.keep.push_back(tensor);
        return tensor;
    }
    auto copy = scratch(tensor.sizes(), tensor);
    copy.copy_(tensor.detach());
    buffers.keep.push_back(copy);
    return copy;
}

at::Tensor writable(const at::Tensor &tensor, bool filled, Buffers &buffers)
{
    if (is_plain(tensor))
        return tensor;
    auto copy = scratch(tensor.sizes(), tensor);
    if (filled)
        copy.copy_(tensor.detach());
    buffers.copies.emplace_back(tensor, copy);
    return copy;
}

at::Tensor readable_rows(const std::vector<at::Tensor> &list, Buffers &buffers)
{
    if (are_neighbours(list)) {
        buffers.keep.insert(buffers.keep.end(), list.begin(), list.end());
        return rows_in_place(list);
    }
    auto rows = scratch({int64_t(list.size()), list[0].numel()}, list[0]);
    for (size_t i = 0; i < list.size(); i++)
        rows[int64_t(i)].copy_(list[i].detach().reshape({-1}));
    buffers.keep.push_back(rows);
    return rows;
}

at::Tensor writable_rows(const std::vector<at::Tensor> &list, Buffers &buffers)
{
    if (are_neighbours(list))
        return rows_in_place(list);
    auto rows = scratch({int64_t(list.size()), list[0].numel()}, list[0]);
    for (size_t i = 0; i < list.size(); i++)
        buffers.copies.emplace_back(list[i], rows[int64_t(i)].view(list[i].sizes()));
    return rows;
}

bool overlap(const at::Tensor &a, const at::Tensor &b)
{
    return begin(a) < begin(b) + b.nbytes() && begin(b) < begin(a) + a.nbytes();
}

} // namespace ddl_torch
