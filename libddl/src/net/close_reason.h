/* reason.h - what a member whose comm has ended says with its last frames: the reason of a link
 * that it closes. All who read it fail alike. */
#ifndef DDL_NET_CLOSE_REASON_H
#define DDL_NET_CLOSE_REASON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { DDL__REASON_MAX = 256 }; /* bytes, with the end */

typedef struct ddl__reason {
    ddl_status status;
    /* Whose attempt to create the comm has failed, and which one of its endpoint's; from -1: the
     * comm was there, or all had met. */
    int from;
    uint32_t attempt;
    const char *text;
} ddl__reason;

void ddl__reason_write(const ddl__reason *reason, char said[DDL__REASON_MAX]);

/* False where something else was said: then it is all text, of DDL_EABORTED. The text points into
 * what was said. */
bool ddl__reason_read(const char *said, ddl__reason *reason);

#endif
