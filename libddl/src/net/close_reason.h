/* SPDX-License-Identifier: Apache-2.0 */
/* close_reason.h - the reason with which a member closes its links when its comm has ended. All
 * members that read it fail in the same way. */
#ifndef DDL_NET_CLOSE_REASON_H
#define DDL_NET_CLOSE_REASON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { DDL__REASON_MAX = 256 }; /* including the terminating NUL */

typedef struct ddl__reason {
    ddl_status status;
    /* The rank whose attempt to create the comm has failed, and the number of that attempt at its
     * endpoint. from -1: the comm was created, or all members had connected. With DDL__SUPERSEDED,
     * `attempt` is the number of the later creation. */
    int from;
    uint32_t attempt;
    const char *text;
} ddl__reason;

void ddl__reason_write(const ddl__reason *reason, char said[DDL__REASON_MAX]);

/* Parse a received reason. If it has another form, return false: `said` as a whole is then the text
 * of a DDL_EABORTED. reason->text points into `said`. */
bool ddl__reason_read(const char *said, ddl__reason *reason);

#endif
