// What the library moves, as seen in tensors. Every function here throws ValueError or TypeError
// with the operation, the argument and its value.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <vector>

#include "ddl/ddl.h"
#include "work.hpp"

namespace ddl_torch
{

// The reduction, also for messages.
ddl_op reduction(const char *operation, const c10d::ReduceOp &op);

// The element type for a reduction.
ddl_dtype reduced_type(const char *operation, const at::Tensor &tensor);

// What moves a tensor's elements unchanged: as themselves where libddl knows the type, so that it
// can tell a mismatch, else as bytes.
struct Cargo {
    ddl_dtype dtype;
    int64_t count;
};
Cargo cargo(const at::Tensor &tensor);

// Check that the tensor is dense and in host memory.
void require_host(const char *operation, const char *argument, const at::Tensor &tensor);

// The only tensor in the list.
at::Tensor only(const char *operation, const char *argument, const std::vector<at::Tensor> &list);

// Check that each tensor of the list is like `model`: on the host, of the same type and number of
// elements, and that there are as many as ranks.
void require_alike(const char *operation, const char *argument, const std::vector<at::Tensor> &list,
                   const at::Tensor &model, int ranks);

// Check that large is of the type of small, and has `ranks` times as many elements.
void require_multiple(const char *operation, const char *large_name, const at::Tensor &large,
                      const char *small_name, const at::Tensor &small, int ranks);

// Contiguous memory with the elements of the tensor: its own where that is possible, else a copy,
// kept in `buffers`.
at::Tensor readable(const at::Tensor &tensor, Buffers &buffers);

// Contiguous memory whose elements become the tensor's at the end of the operation: its own, or
// scratch to be copied. `filled`: it holds the tensor's elements from the start.
at::Tensor writable(const at::Tensor &tensor, bool filled, Buffers &buffers);

// One contiguous tensor whose rows are the tensors of the list, in order: their own memory where
// they are neighbours in it, else a copy. As above.
at::Tensor readable_rows(const std::vector<at::Tensor> &list, Buffers &buffers);
at::Tensor writable_rows(const std::vector<at::Tensor> &list, Buffers &buffers);

// Whether two contiguous tensors share memory.
bool overlap(const at::Tensor &a, const at::Tensor &b);

} // namespace ddl_torch
