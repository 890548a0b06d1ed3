// SPDX-License-Identifier: Apache-2.0
// Conversion of a ddl_status to TensorFlow's status.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ddl/ddl.h"

namespace ddl_tensorflow
{

inline absl::StatusCode code_of(ddl_status status)
{
    switch (status) {
    case DDL_OK: return absl::StatusCode::kOk;
    case DDL_EINVAL: return absl::StatusCode::kInvalidArgument;
    case DDL_EMISMATCH: /* the code that Horovod users catch */
    case DDL_ESTATE: return absl::StatusCode::kFailedPrecondition;
    case DDL_EUNSUPPORTED: return absl::StatusCode::kUnimplemented;
    case DDL_INPROGRESS:
    case DDL_ETIMEDOUT:
    case DDL_EEXPIRED: return absl::StatusCode::kDeadlineExceeded;
    case DDL_ENOMEM:
    case DDL_ESYSTEM: return absl::StatusCode::kResourceExhausted;
    case DDL_EUNREACHABLE:
    case DDL_EREFUSED:
    case DDL_EPEER:
    case DDL_EMINORITY: return absl::StatusCode::kUnavailable;
    case DDL_EABORTED: return absl::StatusCode::kAborted;
    case DDL_EINTERNAL: break;
    }
    return absl::StatusCode::kInternal;
}

// Return the status of this thread's last ddl_ call, with its message. `what` names the operation.
inline absl::Status to_status(ddl_status status, const std::string &what)
{
    if (status == DDL_OK)
        return absl::OkStatus();
    const char *detail = ddl_last_error();
    return absl::Status(code_of(status),
                        "ddl " + what + ": " + (*detail ? detail : ddl_strerror(status)));
}

} // namespace ddl_tensorflow
