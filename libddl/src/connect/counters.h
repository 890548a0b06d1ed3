/* counters.h - how many comms an endpoint has created over each list of members. */
#ifndef DDL_CONNECT_COUNTERS_H
#define DDL_CONNECT_COUNTERS_H

#include <stdint.h>

#include "base/digest.h"

typedef struct ddl__counters {
    struct ddl__counter *first;
} ddl__counters; /* begins as zeros */

/* Add to a list's counter, which begins at 0: what it is now. 0 without memory for a new one. */
uint64_t ddl__counters_add(ddl__counters *counters, ddl__digest list, int64_t n);

void ddl__counters_free(ddl__counters *counters);

#endif
