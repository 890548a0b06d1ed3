/* agreement.h - the survivors of a failed comm agree on who they are, and on their next comm. */
#ifndef DDL_HEALTH_AGREEMENT_H
#define DDL_HEALTH_AGREEMENT_H

#include "health/health.h"

/* How the next comm is made. Both are called without the detector's lock. */
typedef struct ddl__agreement_handlers {
    void *context;
    /* Create it of the n ranks. `attempt` tells it from earlier ones. */
    ddl_status (*create)(void *context, const int *ranks, int n, uint32_t attempt,
                         int64_t deadline);
    /* Give up the one that was created: not all others have created it. */
    void (*abandon)(void *context);
} ddl__agreement_handlers;

/* Agree until all survivors have created the next comm. DDL_EMINORITY: this rank cannot go on. */
ddl_status ddl__agreement_run(ddl__health *health, int64_t deadline,
                              const ddl__agreement_handlers *next);

#endif
