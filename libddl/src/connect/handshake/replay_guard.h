/* SPDX-License-Identifier: Apache-2.0 */
/* replay_guard.h - records the numbered hellos that an endpoint has accepted without a challenge,
 * so that a replayed handshake is refused. Each dialer numbers its hellos from 1. */
#ifndef DDL_CONNECT_REPLAY_GUARD_H
#define DDL_CONNECT_REPLAY_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"

/* A hello is accepted if at most this many later hellos of its dialer have arrived before it. */
enum { DDL__REPLAY_GUARD_LAST = 32 };

typedef struct ddl__replay_guard {
    struct ddl__replay_guard_dialer *dialers;
} ddl__replay_guard; /* zero-initialized */

/* Record a number of a dialer that has proven the secret. Returns false if the number was used
 * before, or is so old that this is unknown. */
bool ddl__replay_guard_add(ddl__replay_guard *seen, ddl__digest dialer, uint64_t number);

void ddl__replay_guard_free(ddl__replay_guard *seen);

#endif
