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
