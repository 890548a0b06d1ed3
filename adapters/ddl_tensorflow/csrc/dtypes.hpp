// SPDX-License-Identifier: Apache-2.0
// Conversion of TensorFlow's element types to libddl's.
#pragma once

#include "ddl/ddl.h"
#include "tensorflow/core/framework/types.pb.h"

namespace ddl_tensorflow
{

// Return the libddl type; 0 for types for which the operations are not registered.
inline ddl_dtype dtype_of(tensorflow::DataType type)
{
    switch (static_cast<int>(type)) {
    case tensorflow::DT_BOOL: return DDL_BOOL;
    case tensorflow::DT_INT8: return DDL_I8;
    case tensorflow::DT_UINT8: return DDL_U8;
    case tensorflow::DT_INT16: return DDL_I16;
    case tensorflow::DT_UINT16: return DDL_U16;
    case tensorflow::DT_INT32: return DDL_I32;
    case tensorflow::DT_UINT32: return DDL_U32;
    case tensorflow::DT_INT64: return DDL_I64;
    case tensorflow::DT_UINT64: return DDL_U64;
    case tensorflow::DT_HALF: return DDL_F16;
    case tensorflow::DT_BFLOAT16: return DDL_BF16;
    case tensorflow::DT_FLOAT: return DDL_F32;
    case tensorflow::DT_DOUBLE: return DDL_F64;
    case tensorflow::DT_FLOAT8_E4M3FN: return DDL_F8_E4M3;
    case tensorflow::DT_FLOAT8_E5M2: return DDL_F8_E5M2;
    case tensorflow::DT_COMPLEX64: return DDL_C64;
    case tensorflow::DT_COMPLEX128: return DDL_C128;
    default: return ddl_dtype{};
    }
}

} // namespace ddl_tensorflow
