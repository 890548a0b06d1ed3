// SPDX-License-Identifier: Apache-2.0
// The operations on CPU tensors. A kernel starts its operation and returns the thread to the
// graph's other work.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernel.hpp"
#include "operations.hpp"
#include "world.hpp"

namespace ddl_tensorflow
{

namespace
{

using Context = OpKernelContext;

char *bytes(const Tensor &tensor)
{
    return const_cast<char *>(tensor.tensor_data().data());
}

Part part(const Tensor &input, const Tensor &output)
{
    return {bytes(input), bytes(output), input.NumElements(), dtype_of(input.dtype())};
}

TensorShape with_rows(TensorShape shape, int64_t rows)
{
    if (shape.dims() == 0)
        return TensorShape({rows});
    shape.set_dim(0, rows);
    return shape;
}

Numbers numbers(const Tensor &vector)
{
    auto flat = vector.flat<int64_t>();
    return {flat.data(), flat.data() + flat.size()};
}

// The base of the operations: finds the world and makes the name. Iterations of a loop may run one
// node several times at once, so the name includes the iteration.
class Kernel : public AsyncOpKernel
{
  public:
    explicit Kernel(OpKernelConstruction *c) : AsyncOpKernel(c), what_(what_of(c->def().op()))
    {
        OP_REQUIRES_OK(c, c->GetAttr("tensor_name", &name_));
        OP_REQUIRES_OK(c, c->GetAttr("comm", &comm_));
        for (tensorflow::DataType type : c->input_types())
            OP_REQUIRES(c, dtype_of(type) != ddl_dtype{},
                        absl::UnimplementedError("ddl " + what_ + ": tensors of " +
                                                 tensorflow::DataTypeString(type) +
                                                 " cannot be moved"));
    }

    void ComputeAsync(Context *c, DoneCallback done) final
    {
        auto world = World::find(comm_);
        OP_REQUIRES_ASYNC(c, world != nullptr, no_world(what_, comm_, "first"), done);
        run(c, std::move(world), std::move(done));
    }

  protected:
    virtual void run(Context *c, std::shared_ptr<World> world, DoneCallback done) = 0;

    // Start libddl's call; if it succeeds, call `next`, which calls done().
    void start(Context *c, World &world, Submit submit, DoneCallback done,
               std::function<void()> next = nullptr, const char *suffix = "") const
    {
        world.start(what_, name(c, suffix), std::move(submit),
                    [c, done = std::move(done), next = std::move(next)](const absl::Status &s) {
                        OP_REQUIRES_OK_ASYNC(c, s, done);
                        if (next)
                            next();
                        else
                            done();
                    });
    }

    const std::string what_;

  private:
    std::string name(Context *c, const char *suffix) const
    {
        if (name_.empty())
            return "";
        const int64_t iteration = c->frame_iter().iter_id;
        return name_ + (iteration > 0 ? "#" + std::to_string(iteration) : "") + suffix;
    }

    std::string name_;
    int64_t comm_ = 0;
};

// A kernel with the attribute `op`.
class Reduction : public Kernel
{
  public:
    explicit Reduction(OpKernelConstruction *c) : Kernel(c)
    {
        std::string text;
        OP_REQUIRES_OK(c, c->GetAttr("op", &text));
        OP_REQUIRES(c, parse_op(text, &op_), wrong(what_, "op: " + text + " is unknown"));
    }

  protected:
    ddl_op op_ = DDL_SUM;
};

class Allreduce final : public Reduction
{
  public:
    using Reduction::Reduction;

    void run(Context *c, std::shared_ptr<World> world, DoneCallback done) override
    {
        Tensor *output = nullptr;
        OP_REQUIRES_OK_ASYNC(
            c, c->forward_input_or_allocate_output({0}, 0, c->input(0).shape(), &output), done);
        start(c, *world, allreduce(part(c->input(0), *output), op_), done);
    }
};

class GroupedAllreduce final : public Reduction
{
  public:
    using Reduction::Reduction;

    void run(Context *c, std::shared_ptr<World> world, DoneCallback done) override
    {
        std::vector<Part> parts;
        for (int i = 0; i < c->num_inputs(); i++) {
            Tensor *output = nullptr;
            OP_REQUIRES_OK_ASYNC(
                c, c->forward_input_or_allocate_output({i}, i, c->input(i).shape(), &output), done);
            parts.push_back(part(c->input(i), *output));
        }
        start(c, *world, grouped_allreduce(std::move(parts), op_), done);
    }
};

class Broadcast final : public Kernel
{
  public:
    explicit Broadcast(OpKernelConstruction *c) : Kernel(c)
    {
        OP_REQUIRES_OK(c, c->GetAttr("root", &root_));
    }

    void run(Context *c, std::shared_ptr<World> world, DoneCallback done) override
    {
        Tensor *output = nullptr;
        const Tensor &input = c->input(0);
        OP_REQUIRES_OK_ASYNC(c, c->forward_input_or_allocate_output({0}, 0, input.shape(), &output),
                             done);
        if (world->rank() == root_ && bytes(*output) != bytes(input))
            std::copy_n(bytes(input), input.TotalBytes(), bytes(*output));
        start(c, *world,
              broadcast(bytes(*output), input.NumElements(), dtype_of(input.dtype()),
                        static_cast<int>(root_)),
              done);
    }

  private:
    int64_t root_ = 0;
};

class Allgather final : public Kernel
{
  public:
    explicit Allgather(OpKernelConstruction *c) : Kernel(c)
    {
        OP_REQUIRES_OK(c, c->GetAttr("rows", &rows_));
    }

    void run(Context *c, std::shared_ptr<World> world, DoneCallback done) override
    {
        Tensor *of_rank = nullptr;
        OP_REQUIRES_OK_ASYNC(c, c->allocate_output(1, {world->size()}, &of_rank), done);
        int64_t *rows = of_rank->flat<int64_t>().data();
        const int64_t own = rows_of(c->input(0).shape().dim_sizes());
        if (!rows_.empty()) {
            OP_REQUIRES_OK_ASYNC(c, check_rows(what_, rows_, own, *world), done);
            std::copy(rows_.begin(), rows_.end(), rows);
            gather(c, *world, *of_rank, done);
            return;
        }
        auto number = std::make_shared<int64_t>(own);
        start(
            c, *world, allgather_number(number.get(), rows), done,
            [this, c, world, of_rank, number, done] { gather(c, *world, *of_rank, done); },
            "/rows");
    }

  private:
    void gather(Context *c, World &world, const Tensor &of_rank, DoneCallback done) const
    {
        const Tensor &input = c->input(0);
        const Numbers rows = numbers(of_rank);
        Tensor *output = nullptr;
        OP_REQUIRES_OK_ASYNC(c, c->allocate_output(0, with_rows(input.shape(), sum(rows)), &output),
                             done);
        start(c, world,
              allgather(bytes(input), bytes(*output),
                        times(rows, width_of(input.shape().dim_sizes())), dtype_of(input.dtype())),
              done);
    }

    Numbers rows_;
};

class ReduceScatter final : public Reduction
{
  public:
    using Reduction::Reduction;

    void run(Context *c, std::shared_ptr<World> world, DoneCallback done) override
    {
        const Tensor &input = c->input(0);
        Numbers rows = numbers(c->input(1));
        OP_REQUIRES_OK_ASYNC(c, divide(what_, "rows", input.shape().dim_sizes(), *world, &rows),
                             done);
        Tensor *output = nullptr;
        OP_REQUIRES_OK_ASYNC(
            c, c->allocate_output(0, with_rows(input.shape(), rows[world->rank()]), &output), done);
        start(c, *world,
              reduce_scatter(bytes(input), bytes(*output),
                             times(rows, width_of(input.shape().dim_sizes())),
                             dtype_of(input.dtype()), op_),
              done);
    }
};

class Alltoall final : public Kernel
{
  public:
    using Kernel::Kernel;

    void run(Context *c, std::shared_ptr<World> world, DoneCallback done) override
    {
        const Tensor &input = c->input(0);
        const Numbers given = numbers(c->input(1));
        Numbers sent = given;
        OP_REQUIRES_OK_ASYNC(
            c, divide(what_, "sent_rows", input.shape().dim_sizes(), *world, &sent), done);
        Tensor *received = nullptr;
        OP_REQUIRES_OK_ASYNC(c, c->allocate_output(1, {world->size()}, &received), done);
        int64_t *rows = received->flat<int64_t>().data();
        if (given.empty()) {
            std::copy(sent.begin(), sent.end(), rows);
            exchange(c, *world, sent, *received, done);
            return;
        }
        auto own = std::make_shared<Numbers>(sent);
        start(
            c, *world, alltoall_numbers(own->data(), rows), done,
            [this, c, world, own, received, done] { exchange(c, *world, *own, *received, done); },
            "/rows");
    }

  private:
    void exchange(Context *c, World &world, const Numbers &sent, const Tensor &received,
                  DoneCallback done) const
    {
        const Tensor &input = c->input(0);
        const int64_t width = width_of(input.shape().dim_sizes());
        const Numbers rows = numbers(received);
        Tensor *output = nullptr;
        OP_REQUIRES_OK_ASYNC(c, c->allocate_output(0, with_rows(input.shape(), sum(rows)), &output),
                             done);
        start(c, world,
              alltoall(bytes(input), times(sent, width), bytes(*output), times(rows, width),
                       dtype_of(input.dtype())),
              done);
    }
};

class Barrier final : public Kernel
{
  public:
    using Kernel::Kernel;

    void run(Context *c, std::shared_ptr<World> world, DoneCallback done) override
    {
        start(c, *world, barrier(), done);
    }
};

} // namespace

using tensorflow::DEVICE_CPU;
using tensorflow::DEVICE_DEFAULT;

REGISTER_KERNEL_BUILDER(Name("DdlAllreduce").Device(DEVICE_CPU), Allreduce);
REGISTER_KERNEL_BUILDER(Name("DdlGroupedAllreduce").Device(DEVICE_CPU), GroupedAllreduce);
REGISTER_KERNEL_BUILDER(Name("DdlBroadcast").Device(DEVICE_CPU), Broadcast);
REGISTER_KERNEL_BUILDER(Name("DdlAllgather").Device(DEVICE_CPU), Allgather);
REGISTER_KERNEL_BUILDER(Name("DdlReduceScatter").Device(DEVICE_CPU), ReduceScatter);
REGISTER_KERNEL_BUILDER(Name("DdlAlltoall").Device(DEVICE_CPU), Alltoall);
REGISTER_KERNEL_BUILDER(Name("DdlBarrier").Device(DEVICE_CPU), Barrier);

/* Kernels for all other devices. TensorFlow copies the tensors to host memory, and the results
 * back. */
REGISTER_KERNEL_BUILDER(
    Name("DdlAllreduce").Device(DEVICE_DEFAULT).HostMemory("tensor").HostMemory("result"),
    Allreduce);
REGISTER_KERNEL_BUILDER(
    Name("DdlGroupedAllreduce").Device(DEVICE_DEFAULT).HostMemory("tensors").HostMemory("results"),
    GroupedAllreduce);
REGISTER_KERNEL_BUILDER(
    Name("DdlBroadcast").Device(DEVICE_DEFAULT).HostMemory("tensor").HostMemory("result"),
    Broadcast);
REGISTER_KERNEL_BUILDER(Name("DdlAllgather")
                            .Device(DEVICE_DEFAULT)
                            .HostMemory("tensor")
                            .HostMemory("result")
                            .HostMemory("of_rank"),
                        Allgather);
REGISTER_KERNEL_BUILDER(Name("DdlReduceScatter")
                            .Device(DEVICE_DEFAULT)
                            .HostMemory("tensor")
                            .HostMemory("rows")
                            .HostMemory("result"),
                        ReduceScatter);
REGISTER_KERNEL_BUILDER(Name("DdlAlltoall")
                            .Device(DEVICE_DEFAULT)
                            .HostMemory("tensor")
                            .HostMemory("sent_rows")
                            .HostMemory("result")
                            .HostMemory("received_rows"),
                        Alltoall);
REGISTER_KERNEL_BUILDER(Name("DdlBarrier").Device(DEVICE_DEFAULT), Barrier);

} // namespace ddl_tensorflow
