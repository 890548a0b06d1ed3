/* replay_guard.h - which handshakes an endpoint has accepted that needed no challenge, so that none
 * that was recorded is accepted again. Each dialer numbers its own, from 1 on. */
#ifndef DDL_CONNECT_REPLAY_GUARD_H
#define DDL_CONNECT_REPLAY_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"

/* As many later ones of a dialer may overtake one that is on its way. */
enum { DDL__REPLAY_GUARD_LAST = 32 };

typedef struct ddl__replay_guard {
    struct ddl__replay_guard_dialer *dialers;
} ddl__replay_guard; /* begins as zeros */

/* Remember a number of a dialer that has proven the secret. False: it is not new, or so old that
 * this cannot be told. */
bool ddl__replay_guard_add(ddl__replay_guard *seen, ddl__digest dialer, uint64_t number);

void ddl__replay_guard_free(ddl__replay_guard *seen);

#endif
