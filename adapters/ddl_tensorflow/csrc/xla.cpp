// SPDX-License-Identifier: Apache-2.0
// The operations in functions that XLA compiles (jit_compile=True): each becomes a custom call.
//
// Shapes are fixed at compile time. So an all-gather assumes that each rank has as many rows as
// this one, or as many as `rows` says, and an all-to-all has equal parts.
//
// Each call takes a result of the previous one as an operand, which it ignores. So the calls of a
// program run in the order of the graph, which is the same on all ranks.
//
// The call's handler starts the operation and returns a future to XLA, so no thread of XLA waits.
// The world's thread completes the future and may then run the program's next steps, which start
// further operations but do not wait for them.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtypes.hpp"
#include "operations.hpp"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "world.hpp"
#include "xla/ffi/api/ffi.h"
#include "xla/hlo/builder/xla_builder.h"

// From xla/ffi/ffi_api.h, which needs headers that TensorFlow's package does not have.
namespace xla::ffi
{
const XLA_FFI_Api *GetXlaFfiApi();
}

namespace ddl_tensorflow
{

namespace
{

constexpr char kTarget[] = "ddl_tensorflow";

// ---- when the program runs ----

namespace ffi = xla::ffi;

ddl_dtype dtype_of(ffi::DataType type)
{
    switch (type) {
    case ffi::DataType::PRED: return DDL_BOOL;
    case ffi::DataType::S8: return DDL_I8;
    case ffi::DataType::U8: return DDL_U8;
    case ffi::DataType::S16: return DDL_I16;
    case ffi::DataType::U16: return DDL_U16;
    case ffi::DataType::S32: return DDL_I32;
    case ffi::DataType::U32: return DDL_U32;
    case ffi::DataType::S64: return DDL_I64;
    case ffi::DataType::U64: return DDL_U64;
    case ffi::DataType::F16: return DDL_F16;
    case ffi::DataType::BF16: return DDL_BF16;
    case ffi::DataType::F32: return DDL_F32;
    case ffi::DataType::F64: return DDL_F64;
    case ffi::DataType::F8E4M3FN: return DDL_F8_E4M3;
    case ffi::DataType::F8E5M2: return DDL_F8_E5M2;
    case ffi::DataType::C64: return DDL_C64;
    case ffi::DataType::C128: return DDL_C128;
    default: return ddl_dtype{};
    }
}

ffi::Error to_error(const absl::Status &status)
{
    return ffi::Error(static_cast<ffi::ErrorCode>(status.code()), std::string(status.message()));
}

void complete(const std::shared_ptr<ffi::Promise> &promise, const absl::Status &status)
{
    if (status.ok())
        promise->SetAvailable();
    else
        promise->SetError(to_error(status));
}

// Check the counts of a call. A compiled function outlives its world, whose rank and size it
// contains. `own`: the elements of this rank's part, by the call's shapes.
absl::Status check_counts(std::string_view kind, const Numbers &counts, int64_t own,
                          const World &world)
{
    const size_t rank = world.rank(), size = world.size();
    if (counts.empty())
        return absl::OkStatus();
    std::string reason;
    if (counts.size() != size)
        reason = "for " + std::to_string(counts.size()) + " ranks, but there are " +
                 std::to_string(size) + " now";
    else if (kind != "alltoall" && counts[rank] != own) // all parts are equal in an all-to-all
        reason = "for another rank than " + std::to_string(rank);
    else
        return absl::OkStatus();
    return absl::FailedPreconditionError("ddl " + std::string(kind) + " was compiled " + reason +
                                         "; create the tf.function again after init()");
}

ffi::Future execute(ffi::RemainingArgs arguments, ffi::RemainingRets results, std::string_view kind,
                    std::string_view op_name, int64_t root, ffi::Span<const int64_t> elements,
                    std::string_view name, int64_t comm)
{
    auto promise = std::make_shared<ffi::Promise>();
    ffi::Future future(*promise);
    std::vector<Part> parts;
    for (size_t i = 0; i < arguments.size() && i < results.size(); i++) {
        const auto input = arguments.get<ffi::AnyBuffer>(i);
        auto output = results.get<ffi::AnyBuffer>(i);
        parts.push_back({input->untyped_data(), (*output)->untyped_data(),
                         static_cast<int64_t>(input->element_count()),
                         dtype_of(input->element_type())});
    }
    const Numbers counts(elements.begin(), elements.end());
    ddl_op op = DDL_SUM;
    parse_op(std::string(op_name), &op);
    Submit submit;
    auto world = World::find(comm);
    if (!world) {
        complete(promise, no_world(std::string(kind), comm, "first"));
        return future;
    }
    const int64_t own =
        kind != "reduce_scatter"
            ? (parts.empty() ? 0 : parts[0].count)
            : static_cast<int64_t>((*results.get<ffi::AnyBuffer>(0))->element_count());
    const absl::Status fits = check_counts(kind, counts, own, *world);
    if (!fits.ok()) {
        complete(promise, fits);
        return future;
    }
    if (kind == "allreduce") {
        submit = allreduce(parts[0], op);
    } else if (kind == "grouped_allreduce") {
        submit = grouped_allreduce(std::move(parts), op);
    } else if (kind == "broadcast") {
        const Part &part = parts[0];
        if (world->rank() == root && part.send != part.recv)
            std::copy_n(static_cast<const char *>(part.send),
                        part.count * ddl_dtype_size(part.dtype), static_cast<char *>(part.recv));
        submit = broadcast(part.recv, part.count, part.dtype, static_cast<int>(root));
    } else if (kind == "allgather") {
        submit = allgather(parts[0].send, parts[0].recv, counts, parts[0].dtype);
    } else if (kind == "reduce_scatter") {
        submit = reduce_scatter(parts[0].send, parts[0].recv, counts, parts[0].dtype, op);
    } else if (kind == "alltoall") {
        submit = alltoall(parts[0].send, counts, parts[0].recv, counts, parts[0].dtype);
    } else {
        submit = barrier();
    }
    world->start(std::string(kind), std::string(name), std::move(submit),
                 [promise](const absl::Status &status) { complete(promise, status); });
    return future;
}

XLA_FFI_DEFINE_HANDLER(kHandler, execute,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("kind")
                           .Attr<std::string_view>("op")
                           .Attr<int64_t>("root")
                           .Attr<ffi::Span<const int64_t>>("counts")
                           .Attr<std::string_view>("name")
                           .Attr<int64_t>("comm"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kTarget, "Host", kHandler);

// ---- when it is compiled ----

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernel;
using tensorflow::XlaOpKernelContext;

std::string in_quotes(const std::string &text)
{
    std::string result = "\"";
    for (char each : text) {
        if (each == '"' || each == '\\')
            result += '\\';
        result += each;
    }
    return result + "\"";
}

xla::Shape with_rows(const xla::Shape &shape, int64_t rows)
{
    Numbers dimensions(shape.dimensions().begin(), shape.dimensions().end());
    if (dimensions.empty())
        dimensions.push_back(rows);
    dimensions[0] = rows;
    return xla::ShapeUtil::MakeShape(shape.element_type(), dimensions);
}

class Lowering : public XlaOpKernel
{
  public:
    explicit Lowering(OpKernelConstruction *c) : XlaOpKernel(c), kind_(what_of(c->def().op()))
    {
        OP_REQUIRES_OK(c, c->GetAttr("tensor_name", &name_));
        OP_REQUIRES_OK(c, c->GetAttr("comm", &comm_));
        if (c->HasAttr("op"))
            OP_REQUIRES_OK(c, c->GetAttr("op", &op_));
        if (c->HasAttr("root"))
            OP_REQUIRES_OK(c, c->GetAttr("root", &root_));
        if (c->HasAttr("rows"))
            OP_REQUIRES_OK(c, c->GetAttr("rows", &rows_));
    }

  protected:
    // Return the call's results: one, or a tuple of several. In place, each result has the memory
    // of the operand with the same number; XLA copies the operand first if it is still needed.
    xla::XlaOp call(XlaOpKernelContext *c, std::vector<xla::XlaOp> operands,
                    const xla::Shape &result, const Numbers &counts = {}, bool in_place = false)
    {
        const size_t own = operands.size();
        std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> aliases;
        for (size_t i = 0; in_place && i < own; i++) {
            const auto number = static_cast<int64_t>(i);
            aliases.push_back({result.IsTuple() ? xla::ShapeIndex{number} : xla::ShapeIndex{},
                               {number, xla::ShapeIndex{}}});
        }
        std::string list;
        for (int64_t each : counts)
            list += (list.empty() ? ": " : ", ") + std::to_string(each);
        const std::string config =
            "{comm = " + std::to_string(comm_) + " : i64, counts = array<i64" + list +
            ">, kind = " + in_quotes(kind_) + ", name = " + in_quotes(name_) +
            ", op = " + in_quotes(op_) + ", root = " + std::to_string(root_) + " : i64}";
        // The compiler stores such results by name, each only once.
        int number = 0;
        const auto kept = [&] { return kTarget + std::to_string(number); };
        for (auto before = c->compiler()->GetNodeToken(kept()); before.ok();
             before = c->compiler()->GetNodeToken(kept())) {
            operands.resize(own);
            operands.push_back(*before);
            number++;
        }
        xla::XlaOp done = xla::CustomCall(c->builder(), kTarget, operands, result, config,
                                          /*has_side_effect=*/true, aliases, nullptr,
                                          xla::CustomCallSchedule::SCHEDULE_NONE,
                                          xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
        const absl::Status status = c->compiler()->SetNodeToken(
            kept(), result.IsTuple() ? xla::GetTupleElement(done, 0) : done);
        if (!status.ok())
            c->CtxFailure(status);
        return done;
    }

    absl::Status find(std::shared_ptr<World> *world) const
    {
        *world = World::find(comm_);
        return *world ? absl::OkStatus() : no_world(kind_, comm_, "before a function is compiled");
    }

    const std::string kind_;
    std::string name_, op_ = "sum";
    int64_t root_ = 0, comm_ = 0;
    Numbers rows_;
};

// Operations with as many results as operands, of the same shapes.
class Elementwise final : public Lowering
{
  public:
    using Lowering::Lowering;

    void Compile(XlaOpKernelContext *c) override
    {
        std::vector<xla::XlaOp> operands;
        std::vector<xla::Shape> shapes;
        for (int i = 0; i < c->num_inputs(); i++) {
            auto shape = c->InputXlaShape(i);
            OP_REQUIRES_OK(c, shape.status());
            operands.push_back(c->Input(i));
            shapes.push_back(xla::ShapeUtil::MakeShape(shape->element_type(), shape->dimensions()));
        }
        if (shapes.size() == 1) {
            c->SetOutput(0, call(c, operands, shapes[0], {}, true));
            return;
        }
        xla::XlaOp results = call(c, operands, xla::ShapeUtil::MakeTupleShape(shapes), {}, true);
        for (int i = 0; i < c->num_inputs(); i++)
            c->SetOutput(i, xla::GetTupleElement(results, i));
    }
};

// Operations that change the number of rows.
class Rows : public Lowering
{
  public:
    using Lowering::Lowering;

  protected:
    xla::XlaOp constant(XlaOpKernelContext *c, const Numbers &numbers)
    {
        return xla::ConstantR1<int64_t>(c->builder(), numbers);
    }

    // Set the parts to the values of input 1, or to equal parts. Input 1 is a constant, or the
    // result of a lowering in this program.
    absl::Status parts(XlaOpKernelContext *c, const World &world, const xla::Shape &shape,
                       Numbers *rows)
    {
        TF_RETURN_IF_ERROR(c->ConstantInputAsIntVector(1, rows));
        return divide(kind_, "rows", shape.dimensions(), world, rows);
    }
};

class Allgather final : public Rows
{
  public:
    using Rows::Rows;

    void Compile(XlaOpKernelContext *c) override
    {
        auto shape = c->InputXlaShape(0);
        OP_REQUIRES_OK(c, shape.status());
        std::shared_ptr<World> world;
        OP_REQUIRES_OK(c, find(&world));
        const int64_t own = rows_of(shape->dimensions());
        Numbers rows = rows_;
        if (rows.empty())
            rows.assign(world->size(), own);
        OP_REQUIRES_OK(c, check_rows(kind_, rows, own, *world));
        c->SetOutput(0, call(c, {c->Input(0)}, with_rows(*shape, sum(rows)),
                             times(rows, width_of(shape->dimensions()))));
        c->SetOutput(1, constant(c, rows));
    }
};

class ReduceScatter final : public Rows
{
  public:
    using Rows::Rows;

    void Compile(XlaOpKernelContext *c) override
    {
        auto shape = c->InputXlaShape(0);
        OP_REQUIRES_OK(c, shape.status());
        std::shared_ptr<World> world;
        OP_REQUIRES_OK(c, find(&world));
        Numbers rows;
        OP_REQUIRES_OK(c, parts(c, *world, *shape, &rows));
        c->SetOutput(0, call(c, {c->Input(0)}, with_rows(*shape, rows[world->rank()]),
                             times(rows, width_of(shape->dimensions()))));
    }
};

class Alltoall final : public Rows
{
  public:
    using Rows::Rows;

    void Compile(XlaOpKernelContext *c) override
    {
        auto shape = c->InputXlaShape(0);
        OP_REQUIRES_OK(c, shape.status());
        std::shared_ptr<World> world;
        OP_REQUIRES_OK(c, find(&world));
        Numbers rows;
        OP_REQUIRES_OK(c, parts(c, *world, *shape, &rows));
        for (int64_t each : rows)
            OP_REQUIRES(c, each == rows[0],
                        absl::UnimplementedError(
                            "ddl alltoall: in a function compiled by XLA only equal parts"));
        c->SetOutput(0, call(c, {c->Input(0)}, *shape, times(rows, width_of(shape->dimensions()))));
        c->SetOutput(1, constant(c, rows));
    }
};

class Barrier final : public Lowering
{
  public:
    using Lowering::Lowering;

    void Compile(XlaOpKernelContext *c) override
    {
        call(c, {}, xla::ShapeUtil::MakeShape(xla::U8, {}));
    }
};

} // namespace

// REGISTER_XLA_OP is not used: registrations after TensorFlow's first eager operation are lost
// there.
#define REGISTER_LOWERING(name, lowering)                                                          \
    REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU_XLA_JIT), lowering)
REGISTER_LOWERING("DdlAllreduce", Elementwise);
REGISTER_LOWERING("DdlGroupedAllreduce", Elementwise);
REGISTER_LOWERING("DdlBroadcast", Elementwise);
REGISTER_LOWERING("DdlAllgather", Allgather);
REGISTER_LOWERING("DdlReduceScatter", ReduceScatter);
REGISTER_LOWERING("DdlAlltoall", Alltoall);
REGISTER_LOWERING("DdlBarrier", Barrier);

} // namespace ddl_tensorflow
