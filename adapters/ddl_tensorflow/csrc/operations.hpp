// SPDX-License-Identifier: Apache-2.0
// The calls of libddl that the kernels and the XLA lowering make, as values.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "world.hpp"

namespace ddl_tensorflow
{

// One tensor of an all-reduce.
struct Part {
    const void *send;
    void *recv; // may be send
    int64_t count;
    ddl_dtype dtype;
};

using Numbers = std::vector<int64_t>;

// Return the number of rows of a tensor of these dimensions; a scalar is one row.
template <class Dims> int64_t rows_of(const Dims &dims)
{
    return dims.empty() ? 1 : dims[0];
}

template <class Dims> int64_t width_of(const Dims &dims)
{
    int64_t width = 1;
    for (size_t i = 1; i < dims.size(); i++)
        width *= dims[i];
    return width;
}

inline Numbers times(Numbers rows, int64_t width)
{
    for (int64_t &each : rows)
        each *= width;
    return rows;
}

inline int64_t sum(const Numbers &numbers)
{
    return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

// Return the error of an invalid argument of the operation `what`.
inline absl::Status wrong(const std::string &what, const std::string &text)
{
    return absl::InvalidArgumentError("ddl " + what + ": " + text);
}

// Return the error of a missing world. `then` is the text after "call init()".
inline absl::Status no_world(const std::string &what, int64_t number, const char *then)
{
    if (number)
        return absl::FailedPreconditionError(
            "ddl " + what + ": comm: was created before shutdown(); create it again");
    return absl::FailedPreconditionError("ddl " + what + ": not initialized; call init() " + then);
}

// Check that `rows` has a number for each rank, and this rank's own number.
inline absl::Status check_rows(const std::string &what, const Numbers &rows, int64_t own,
                               const World &world)
{
    if (rows.size() != static_cast<size_t>(world.size()))
        return wrong(what, "rows has " + std::to_string(rows.size()) +
                               " numbers; must have one for each of " +
                               std::to_string(world.size()) + " ranks");
    if (rows[world.rank()] != own)
        return wrong(what, "rows is " + std::to_string(rows[world.rank()]) +
                               " for this rank, but its tensor has " + std::to_string(own));
    return absl::OkStatus();
}

// Set each rank's rows of a tensor of these dimensions: those in `rows`, or equal parts if it is
// empty.
template <class Dims>
absl::Status divide(const std::string &what, const char *argument, const Dims &dims,
                    const World &world, Numbers *rows)
{
    const int64_t all = rows_of(dims), size = world.size();
    if (dims.empty())
        return wrong(what, "tensor is a scalar, which cannot be divided");
    if (rows->empty()) {
        if (all % size)
            return wrong(what, "tensor: the first dimension of shape [" + absl::StrJoin(dims, ",") +
                                   "] is not a multiple of " + std::to_string(size));
        rows->assign(size, all / size);
    }
    if (rows->size() != static_cast<size_t>(size))
        return wrong(what, std::string(argument) + " has " + std::to_string(rows->size()) +
                               " numbers; must have one for each of " + std::to_string(size) +
                               " ranks");
    for (int64_t each : *rows)
        if (each < 0)
            return wrong(what,
                         std::string(argument) + ": " + std::to_string(each) + " is negative");
    if (sum(*rows) != all)
        return wrong(what, std::string(argument) + ": the sum is " + std::to_string(sum(*rows)) +
                               ", but the tensor has " + std::to_string(all) + " rows");
    return absl::OkStatus();
}

// Return "reduce_scatter" for "DdlReduceScatter", the type of a node.
inline std::string what_of(const std::string &type)
{
    std::string what;
    for (size_t i = 3; i < type.size(); i++) {
        const bool begins = type[i] >= 'A' && type[i] <= 'Z';
        what += begins && i > 3 ? "_" : "";
        what += begins ? static_cast<char>(type[i] - 'A' + 'a') : type[i];
    }
    return what;
}

inline bool parse_op(const std::string &text, ddl_op *op)
{
    static const struct {
        const char *name;
        ddl_op op;
    } kOps[] = {{"sum", DDL_SUM},       {"average", DDL_AVERAGE}, {"min", DDL_MIN},
                {"max", DDL_MAX},       {"product", DDL_PRODUCT}, {"bit_and", DDL_BIT_AND},
                {"bit_or", DDL_BIT_OR}, {"bit_xor", DDL_BIT_XOR}};
    for (const auto &each : kOps)
        if (text == each.name) {
            *op = each.op;
            return true;
        }
    return false;
}

inline Submit allreduce(const Part &part, ddl_op op)
{
    return [=](ddl_comm *comm, const ddl_options *options, ddl_work **work) {
        return ddl_allreduce(comm, part.send, part.recv, part.count, part.dtype, op, options, work);
    };
}

inline Submit grouped_allreduce(std::vector<Part> parts, ddl_op op)
{
    // The group must exist until the work is complete; the operation exists as long.
    struct Group {
        ddl_group *handle = nullptr;
        ~Group()
        {
            ddl_group_destroy(handle);
        }
    };
    auto group = std::make_shared<Group>();
    return [group, op, parts = std::move(parts)](ddl_comm *comm, const ddl_options *options,
                                                 ddl_work **work) {
        ddl_status status = ddl_group_create(comm, &group->handle);
        ddl_options collected{};
        collected.struct_size = sizeof collected;
        collected.group = group->handle;
        for (size_t i = 0; status == DDL_OK && i < parts.size(); i++)
            status = ddl_allreduce(comm, parts[i].send, parts[i].recv, parts[i].count,
                                   parts[i].dtype, op, &collected, nullptr);
        return status == DDL_OK ? ddl_group_submit(group->handle, options, work) : status;
    };
}

inline Submit broadcast(void *buffer, int64_t count, ddl_dtype dtype, int root)
{
    return [=](ddl_comm *comm, const ddl_options *options, ddl_work **work) {
        return ddl_broadcast(comm, buffer, count, dtype, root, options, work);
    };
}

// counts: elements from each rank
inline Submit allgather(const void *send, void *recv, std::vector<int64_t> counts, ddl_dtype dtype)
{
    return [=, counts = std::move(counts)](ddl_comm *comm, const ddl_options *options,
                                           ddl_work **work) {
        return ddl_allgatherv(comm, send, recv, counts.data(), nullptr, dtype, options, work);
    };
}

// counts: elements for each rank
inline Submit reduce_scatter(const void *send, void *recv, std::vector<int64_t> counts,
                             ddl_dtype dtype, ddl_op op)
{
    return [=, counts = std::move(counts)](ddl_comm *comm, const ddl_options *options,
                                           ddl_work **work) {
        return ddl_reduce_scatterv(comm, send, recv, counts.data(), dtype, op, options, work);
    };
}

inline Submit alltoall(const void *send, std::vector<int64_t> sent, void *recv,
                       std::vector<int64_t> received, ddl_dtype dtype)
{
    return [=, sent = std::move(sent), received = std::move(received)](
               ddl_comm *comm, const ddl_options *options, ddl_work **work) {
        return ddl_alltoallv(comm, send, sent.data(), nullptr, recv, received.data(), nullptr,
                             dtype, options, work);
    };
}

// allgather_number sends one number of each rank to all ranks; alltoall_numbers sends number i of
// each rank to rank i. `all` has one element for each rank.
inline Submit allgather_number(const int64_t *own, int64_t *all)
{
    return [=](ddl_comm *comm, const ddl_options *options, ddl_work **work) {
        return ddl_allgather(comm, own, all, 1, DDL_I64, options, work);
    };
}

inline Submit alltoall_numbers(const int64_t *own, int64_t *all)
{
    return [=](ddl_comm *comm, const ddl_options *options, ddl_work **work) {
        return ddl_alltoall(comm, own, all, 1, DDL_I64, options, work);
    };
}

inline Submit barrier()
{
    return [](ddl_comm *comm, const ddl_options *options, ddl_work **work) {
        return ddl_barrier(comm, options, work);
    };
}

} // namespace ddl_tensorflow
