// SPDX-License-Identifier: Apache-2.0
// The names of TensorFlow that kernels use.
#pragma once

#include "dtypes.hpp"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace ddl_tensorflow
{

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

} // namespace ddl_tensorflow
