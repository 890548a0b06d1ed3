// SPDX-License-Identifier: Apache-2.0
// The sum of sparse tensors (COO).
#include "backend.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include <numeric>

#include "errors.hpp"

namespace ddl_torch
{

// Design notes.
//
// A blocking all-gather of a few bytes gives all ranks the number of elements of each rank. Then
// one asynchronous group of two all-gathers sends all indices and values to all ranks, and each
// rank adds them in the order of ranks. All ranks therefore get the same bits, and the cost is that
// of the stored elements, not of the dense tensor.

namespace
{

constexpr int kMaxDims = 16;

// The properties of a tensor. All except `elements` must be equal on all ranks.
struct Shape {
    int64_t elements, type, sparse_dims, dims, sizes[kMaxDims];

    explicit Shape(const at::Tensor &tensor)
        : elements(tensor._nnz()), type(int64_t(tensor.scalar_type())),
          sparse_dims(tensor.sparse_dim()), dims(tensor.dim()), sizes{}
    {
        std::copy(tensor.sizes().begin(), tensor.sizes().end(), sizes);
    }
    Shape() = default;

    bool operator==(const Shape &other) const
    {
        return type == other.type && sparse_dims == other.sparse_dims && dims == other.dims &&
               std::equal(sizes, sizes + dims, other.sizes);
    }
    std::string text() const
    {
        std::string all;
        for (int i = 0; i < dims; i++)
            all += (i ? ", " : "") + std::to_string(sizes[i]);
        return "[" + all + "] of " + c10::toString(c10::ScalarType(type)) + " with " +
               std::to_string(sparse_dims) + " sparse dimensions";
    }
};

// Return the rows of all ranks, counts[r] of rank r, concatenated.
at::Tensor gathered_rows(Operation &operation, const at::Tensor &rows,
                         const std::vector<int64_t> &counts)
{
    const Cargo load = cargo(rows);
    const int64_t row =
        rows.size(0) ? rows.numel() / rows.size(0) : c10::multiply_integers(rows.sizes().slice(1));
    auto sizes = rows.sizes().vec();
    sizes[0] = std::accumulate(counts.begin(), counts.end(), int64_t(0));
    at::Tensor all = at::empty(sizes, rows.options());
    std::vector<int64_t> moved;
    for (int64_t count : counts)
        moved.push_back(count * row * load.each);
    operation.buffers.keep.push_back(rows);
    operation.buffers.keep.push_back(all);
    operation.parts.push_back(
        [=, from = rows.const_data_ptr(), to = all.data_ptr()](auto comm, auto how, auto work) {
            return ddl_allgatherv(comm, from, to, moved.data(), nullptr, load.dtype, how, work);
        });
    return all;
}

} // namespace

Backend::WorkPtr Backend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options)
{
    Operation operation(generation_, "allreduce_sparse", "ddl:sparse_all_reduce",
                        c10d::OpType::_ALLREDUCE_SPARSE, options);
    const char *name = operation.name;
    TORCH_CHECK_VALUE(tensors.size() == 1, "ddl ", name, ": tensors has ", tensors.size(),
                      " tensors, but takes one");
    at::Tensor target = tensors[0];
    TORCH_CHECK_VALUE(target.is_sparse() && target.device().is_cpu() && target.dim() <= kMaxDims,
                      "ddl ", name, ": takes a sparse COO tensor on the CPU of at most ", kMaxDims,
                      " dimensions");
    const bool average = options.reduceOp == c10d::ReduceOp::AVG;
    TORCH_CHECK_VALUE(average || options.reduceOp == c10d::ReduceOp::SUM, "ddl ", name,
                      ": only ReduceOp.SUM and AVG are possible for sparse tensors");
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor own = target.coalesce();

    const Shape mine(own);
    std::vector<Shape> shapes(size_);
    Operation exchange(operation.generation, name, operation.title, operation.type, options);
    exchange.async = false;
    exchange.parts.push_back([&](auto comm, auto how, auto work) {
        return ddl_allgather(comm, &mine, shapes.data(), sizeof mine, DDL_U8, how, work);
    });
    TORCH_CHECK_WITH(NotImplementedError, !coalescing_, "ddl ", name, " cannot be coalesced");
    submit(std::move(exchange));
    std::vector<int64_t> counts;
    for (const Shape &shape : shapes) {
        TORCH_CHECK_VALUE(shape == mine, "ddl ", name, ": the tensor of rank ",
                          &shape - shapes.data(), " is ", shape.text(), ", that of rank ", rank_,
                          " is ", mine.text());
        counts.push_back(shape.elements);
    }

    at::Tensor indices = gathered_rows(operation, own._indices().t().contiguous(), counts);
    at::Tensor values = gathered_rows(operation, own._values().contiguous(), counts);
    operation.inputs = operation.buffers.outputs = tensors;
    operation.buffers.finish = [=, ranks = size_] {
        at::Tensor sum = at::_sparse_coo_tensor_unsafe(indices.t(), values, target.sizes());
        sum = sum.coalesce();
        if (average)
            sum._values().div_(ranks);
        target.copy_(sum);
    };
    return submit(std::move(operation));
}

} // namespace ddl_torch
