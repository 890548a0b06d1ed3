/* counters.h - counts the comms that an endpoint has created over each list of members. */
#ifndef DDL_CONNECT_COUNTERS_H
#define DDL_CONNECT_COUNTERS_H

#include <stdint.h>

#include "base/digest.h"

typedef struct ddl__counters {
    struct ddl__counter *first;
} ddl__counters; /* zero-initialized */

/* Add n to a list's counter, which begins at 0. Returns the new count; 0 if there is no memory for
 * a new counter. */
uint64_t ddl__counters_add(ddl__counters *counters, ddl__digest list, int64_t n);

void ddl__counters_free(ddl__counters *counters);

#endif
