/* SPDX-License-Identifier: Apache-2.0 */
/* agreement.h - the agreement of a failed comm's survivors on their list and their next comm. */
#ifndef DDL_HEALTH_AGREEMENT_H
#define DDL_HEALTH_AGREEMENT_H

#include "health/health.h"

/* The functions that create the next comm. They are called without the detector's lock. */
typedef struct ddl__agreement_handlers {
    void *context;
    /* Create the next comm from these n ranks. `attempt` distinguishes it from earlier ones. */
    ddl_status (*create)(void *context, const int *ranks, int n, uint32_t attempt,
                         const ddl__until *until);
    /* Discard the created comm, because not all survivors could create it. */
    void (*abandon)(void *context);
} ddl__agreement_handlers;

/* Run the agreement until all survivors have created the next comm. Returns DDL_EMINORITY if this
 * rank cannot continue. */
ddl_status ddl__agreement_run(ddl__health *health, int64_t deadline,
                              const ddl__agreement_handlers *next);

#endif
