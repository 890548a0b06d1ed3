/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/handshake/replay_guard.h"

#include <stdlib.h>

typedef struct ddl__replay_guard_dialer {
    struct ddl__replay_guard_dialer *next;
    ddl__digest endpoint;
    uint64_t past;                         /* this number and all lower ones are refused */
    uint64_t last[DDL__REPLAY_GUARD_LAST]; /* higher numbers that were accepted; 0: unused */
} dialer;

static dialer *find(ddl__replay_guard *seen, ddl__digest endpoint)
{
    dialer *d = seen->dialers;
    while (d && !ddl__digest_equal(d->endpoint, endpoint))
        d = d->next;
    if (!d && (d = calloc(1, sizeof *d))) {
        d->endpoint = endpoint;
        d->next = seen->dialers;
        seen->dialers = d;
    }
    return d;
}

bool ddl__replay_guard_add(ddl__replay_guard *seen, ddl__digest endpoint, uint64_t number)
{
    dialer *d = find(seen, endpoint);
    if (!d || number <= d->past)
        return false;
    unsigned least = 0;
    for (unsigned i = 0; i < DDL__REPLAY_GUARD_LAST; i++) {
        if (d->last[i] == number)
            return false;
        least = d->last[i] < d->last[least] ? i : least;
    }
    if (number < d->last[least]) {
        d->past = number;
        return true;
    }
    d->past = d->last[least];
    d->last[least] = number;
    return true;
}

void ddl__replay_guard_free(ddl__replay_guard *seen)
{
    for (dialer *d; (d = seen->dialers);) {
        seen->dialers = d->next;
        free(d);
    }
}
