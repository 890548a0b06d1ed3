/* SPDX-License-Identifier: Apache-2.0 */
/* close_reason.h - what a member says when its comm has ended: the reason with which it closes its
 * links. All members that read it fail alike. */
#ifndef DDL_NET_CLOSE_REASON_H
#define DDL_NET_CLOSE_REASON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { DDL__REASON_MAX = 256 }; /* bytes, with the terminating NUL */

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

/* False if the text has another form: then all of it is the text of DDL_EABORTED. The text points
 * into `said`. */
bool ddl__reason_read(const char *said, ddl__reason *reason);

#endif
