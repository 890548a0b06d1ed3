// SPDX-License-Identifier: Apache-2.0
// An operation of a process group before it is submitted to libddl.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <functional>
#include <vector>

#include "ddl/ddl.h"
#include "work.hpp"

namespace ddl_torch
{

// A call of libddl with all other arguments bound. Does not throw.
using Part = std::function<ddl_status(ddl_comm *, const ddl_options *, ddl_work **)>;

// The names, tensors and calls that become one Work. Every tensor whose memory a part uses is in
// `buffers`.
struct Operation {
    uint64_t generation; // of the members that the arguments were checked for
    const char *name;    // for messages
    const char *title;   // for the profiler
    c10d::OpType type;
    bool async = true; // the caller does not wait at once
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    double prescale = 1;       // 1: no scaling; 0 is applied to the operands in advance
    uint32_t wire = 0;         // ddl_wire; 0: the comm's
    float *residual = nullptr; // the error feedback, kept in `buffers`; or none

    std::vector<at::Tensor> inputs; // for the profiler
    Buffers buffers;
    std::vector<Part> parts;

    Operation(uint64_t its_generation, const char *its_name, const char *its_title,
              c10d::OpType its_type)
        : generation(its_generation), name(its_name), title(its_title), type(its_type)
    {
    }

    template <class Options>
    Operation(uint64_t its_generation, const char *its_name, const char *its_title,
              c10d::OpType its_type, const Options &options)
        : Operation(its_generation, its_name, its_title, its_type)
    {
        async = is_async(options, 0);
        timeout = options.timeout;
    }

  private:
    // Older versions of PyTorch do not report whether the caller waits at once.
    template <class Options>
    static auto is_async(const Options &options, int) -> decltype(options.asyncOp)
    {
        return options.asyncOp;
    }
    template <class Options> static bool is_async(const Options &, long)
    {
        return true;
    }
};

} // namespace ddl_torch
