/* SPDX-License-Identifier: Apache-2.0 */
/* The time that the JAX adapter waits for calls before it aborts them does not depend on the time
 * of day, which may be set back by an hour meanwhile. */
#include "check.h"
#include "ddl/ddl.h"

#include "../../../adapters/ddl_jax/csrc/callers.h"

/* Return the time of day before it was set back. */
WRAP(int, clock_gettime, (clockid_t clock, struct timespec *t))
{
    int result = __real_clock_gettime(clock, t);
    if (clock == CLOCK_REALTIME)
        t->tv_sec += 3600;
    return result;
}

static void abort_all(ddl_comm *comm, const char *reason)
{
    (void)comm, (void)reason;
    inside = 0; /* the call ends */
}

int main(void)
{
    static char object;
    alarm(30); /* formerly it took an hour */
    open_world((ddl_comm *)(void *)&object);
    CHECK(enter(), "closed");
    CHECK(close_world(abort_all), "somebody is inside");
    CHECK(!enter(), "open");
}
