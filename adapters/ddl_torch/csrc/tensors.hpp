// SPDX-License-Identifier: Apache-2.0
// Checks and conversions of tensors for libddl. Every function here throws ValueError or TypeError
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

using Tensors = std::vector<at::Tensor>;

// The reduction of collectives and messages.
struct Reduction {
    ddl_op op;
    double prescale; // 1: none
};
Reduction reduction(const char *operation, const c10d::ReduceOp &op);

// Multiply the elements by 0, as libddl would by any other factor: infinity and NaN become NaN.
void nullify(const char *operation, const at::Tensor &memory);

// Return the element type for a reduction.
ddl_dtype reduced_type(const char *operation, const at::Tensor &tensor);

// The elements by which a tensor is moved unchanged: its own type if libddl has it, so that
// mismatches are detected; else `each` bytes for each element.
struct Cargo {
    ddl_dtype dtype;
    int64_t each;
};
Cargo cargo(const at::Tensor &tensor);

// Check that the tensor is dense and has values.
void require_dense(const char *operation, const char *argument, const at::Tensor &tensor);

// Check that `rank` is in the group.
void require_rank(const char *operation, const char *argument, int64_t rank, int ranks);

// Return the only tensor in the list.
at::Tensor only(const char *operation, const char *argument, const Tensors &list);

// Return the only list of tensors in the list.
const Tensors &only_list(const char *operation, const char *argument,
                         const std::vector<Tensors> &lists);

// Check that the list has one dense tensor for each rank, of the type of `model`.
void require_each(const char *operation, const char *argument, const Tensors &list,
                  const at::Tensor &model, int ranks);

// Check that a tensor has as many elements as the other side.
void require_elements(const char *operation, const char *argument, const at::Tensor &tensor,
                      const char *other, int64_t elements);

// Check that `large` has the type of `small`, and `ranks` times as many elements.
void require_multiple(const char *operation, const char *large_name, const at::Tensor &large,
                      const char *small_name, const at::Tensor &small, int ranks);

// Memory below is on the host, or if the buffers have a stream, on its GPU.

// Return a contiguous copy. For the host, waits for tensors on an accelerator.
at::Tensor copied(const at::Tensor &tensor, const Buffers &buffers);

// Return contiguous memory with the elements of the tensor: its own memory if possible, else a
// copy. It is kept in `buffers`.
at::Tensor readable(const at::Tensor &tensor, Buffers &buffers);

// Return contiguous memory whose elements become the tensor's at the end of the operation: its own
// memory, or scratch that is copied. `filled`: it holds the tensor's elements from the start. It is
// kept in `buffers`.
at::Tensor writable(const at::Tensor &tensor, bool filled, Buffers &buffers);

// Consecutive blocks of contiguous memory, one for each rank.
struct Blocks {
    at::Tensor memory;
    std::vector<int64_t> counts; // elements

    bool equal() const;
};

// Return the tensors of a non-empty list as blocks: in their own memory if they are adjacent, else
// in a copy, as above.
Blocks readable_blocks(const Tensors &list, Buffers &buffers);
Blocks writable_blocks(const Tensors &list, Buffers &buffers);

// Return the input, or a copy of it if it shares memory with the output. Both are contiguous.
at::Tensor separate(const at::Tensor &input, const at::Tensor &output, Buffers &buffers);

} // namespace ddl_torch
