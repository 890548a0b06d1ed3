/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[DDL__MESSAGE_MAX];

ddl_status ddl__fail(ddl_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return status;
}

const char *ddl__message(void)
{
    return message;
}

void ddl__message_clear(void)
{
    message[0] = 0;
}

/* The switch has no default case, so that the compiler reports a status without a text. */
const char *ddl__strerror(ddl_status status)
{
    switch (status) {
    case DDL_OK: return "ok";
    case DDL_INPROGRESS: return "in progress";
    case DDL_EINVAL: return "invalid argument";
    case DDL_ESTATE: return "not allowed in this state";
    case DDL_EUNSUPPORTED: return "not supported";
    case DDL_ETIMEDOUT: return "timed out";
    case DDL_ENOMEM: return "out of memory";
    case DDL_EUNREACHABLE: return "unreachable";
    case DDL_EREFUSED: return "refused by a peer";
    case DDL_ESYSTEM: return "the operating system refused a resource";
    case DDL_EPEER: return "a member died or left";
    case DDL_EMISMATCH: return "members called different operations";
    case DDL_EABORTED: return "aborted";
    case DDL_EMINORITY: return "the others continue without this rank";
    case DDL_EEXPIRED: return "an operation ran past its time limit";
    case DDL_EINTERNAL: return "internal error";
    }
    return "unknown status";
}
