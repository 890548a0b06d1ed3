// SPDX-License-Identifier: Apache-2.0
// The operations in TensorFlow's graphs: names, types, shapes.
//
// All are stateful, so that TensorFlow neither evaluates them while it optimises a graph nor merges
// two of them. All are communication, so that TensorFlow reports an unavailable peer as such.
// Operations of different ranks are matched by `tensor_name`, or if it is "", by the order of their
// calls. `comm` is the number of the operation's world.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace ddl_tensorflow
{

namespace
{

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using tensorflow::shape_inference::UnchangedShape;

// Any type, because TensorFlow cannot list float8; Python and the kernels reject unsupported types.
constexpr char kType[] = "T: type";
constexpr char kTypes[] = "T: list(type)";
constexpr char kOp[] = "op: {'sum', 'average', 'min', 'max', 'product', 'bit_and', 'bit_or', "
                       "'bit_xor'} = 'sum'";

absl::Status each_unchanged(InferenceContext *c)
{
    for (int i = 0; i < c->num_inputs(); i++)
        c->set_output(i, c->input(i));
    return absl::OkStatus();
}

// Return the input's shape without the first dimension; a scalar counts as a vector of one element.
absl::Status rows_unknown(InferenceContext *c, ShapeHandle *result)
{
    ShapeHandle input = c->input(0);
    if (!c->RankKnown(input)) {
        *result = c->UnknownShape();
        return absl::OkStatus();
    }
    if (c->Rank(input) == 0) {
        *result = c->Vector(InferenceContext::kUnknownDim);
        return absl::OkStatus();
    }
    return c->ReplaceDim(input, 0, c->UnknownDim(), result);
}

absl::Status other_rows(InferenceContext *c)
{
    ShapeHandle result;
    TF_RETURN_IF_ERROR(rows_unknown(c, &result));
    c->set_output(0, result);
    return absl::OkStatus();
}

absl::Status other_rows_and_counts(InferenceContext *c)
{
    TF_RETURN_IF_ERROR(other_rows(c));
    c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
    return absl::OkStatus();
}

} // namespace

#define OPERATION(name)                                                                            \
    REGISTER_OP(name)                                                                              \
        .Attr("tensor_name: string = ''")                                                          \
        .Attr("comm: int = 0")                                                                     \
        .SetIsStateful()                                                                           \
        .SetIsDistributedCommunication()

OPERATION("DdlAllreduce")
    .Attr(kType)
    .Attr(kOp)
    .Input("tensor: T")
    .Output("result: T")
    .SetShapeFn(UnchangedShape);

OPERATION("DdlGroupedAllreduce")
    .Attr(kTypes)
    .Attr(kOp)
    .Input("tensors: T")
    .Output("results: T")
    .SetShapeFn(each_unchanged);

OPERATION("DdlBroadcast")
    .Attr(kType)
    .Attr("root: int = 0")
    .Input("tensor: T")
    .Output("result: T")
    .SetShapeFn(UnchangedShape);

// rows: the first dimension on each rank; empty: exchanged. The second output has the values used.
OPERATION("DdlAllgather")
    .Attr(kType)
    .Attr("rows: list(int) = []")
    .Input("tensor: T")
    .Output("result: T")
    .Output("of_rank: int64")
    .SetShapeFn(other_rows_and_counts);

// rows: the size of each rank's part; empty: equal parts.
OPERATION("DdlReduceScatter")
    .Attr(kType)
    .Attr(kOp)
    .Input("tensor: T")
    .Input("rows: int64")
    .Output("result: T")
    .SetShapeFn(other_rows);

// sent_rows: for each rank; empty: equal parts. The second output has the rows from each rank.
OPERATION("DdlAlltoall")
    .Attr(kType)
    .Input("tensor: T")
    .Input("sent_rows: int64")
    .Output("result: T")
    .Output("received_rows: int64")
    .SetShapeFn(other_rows_and_counts);

OPERATION("DdlBarrier").SetShapeFn(tensorflow::shape_inference::NoOutputs);

// Performed by the Python function with the number `call`: see python.cpp.
OPERATION("DdlPython")
    .Attr("call: int")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 0")
    .Input("inputs: Tin")
    .Output("results: Tout")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

} // namespace ddl_tensorflow
