/* SPDX-License-Identifier: Apache-2.0 */
#include "net/close_reason.h"

#include <inttypes.h>
#include <stdio.h>

void ddl__reason_write(const ddl__reason *reason, char said[DDL__REASON_MAX])
{
    snprintf(said, DDL__REASON_MAX, "%d %d %" PRIu32 " %.215s", reason->status, reason->from,
             reason->attempt, reason->text);
}

bool ddl__reason_read(const char *said, ddl__reason *reason)
{
    int status, from, skip = 0;
    uint32_t attempt;
    *reason = (ddl__reason){.status = DDL_EABORTED, .from = -1, .text = said};
    if (sscanf(said, "%d %d %" SCNu32 " %n", &status, &from, &attempt, &skip) < 3 || status >= 0)
        return false;
    *reason = (ddl__reason){(ddl_status)status, from, attempt, said + skip};
    return true;
}
