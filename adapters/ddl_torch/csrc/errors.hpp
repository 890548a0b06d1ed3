// SPDX-License-Identifier: Apache-2.0
// A failed ddl_ call as the exception that PyTorch users expect.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "ddl/ddl.h"

namespace ddl_torch
{

// Throw for `status`, which this thread's last ddl_ call returned: ValueError if an argument is
// wrong, NotImplementedError if libddl does not support it, else
// torch.distributed.DistBackendError. `what` names the operation; the rest of the message is
// libddl's.
[[noreturn]] inline void raise(ddl_status status, const std::string &what)
{
    const char *detail = ddl_last_error();
    std::string text = "ddl " + what + ": " +
                       (status == DDL_EEXPIRED ? "the timeout passed: " : "") +
                       (*detail ? detail : ddl_strerror(status));
    if (status == DDL_EINVAL)
        C10_THROW_ERROR(ValueError, text);
    if (status == DDL_EUNSUPPORTED)
        C10_THROW_ERROR(NotImplementedError, text);
    C10_THROW_ERROR(DistBackendError, text);
}

inline void check(ddl_status status, const std::string &what)
{
    if (status != DDL_OK)
        raise(status, what);
}

// Return that exception instead of throwing it.
inline std::exception_ptr error(ddl_status status, const std::string &what)
{
    try {
        raise(status, what);
    } catch (...) {
        return std::current_exception();
    }
}

} // namespace ddl_torch
