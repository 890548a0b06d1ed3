/* SPDX-License-Identifier: Apache-2.0 */
/* ordered.h - a reference-counted order of additions. The creator, each call and each cached plan
 * hold a reference. This file also has the function that frees a call's resources. */
#ifndef DDL_ENGINE_CALLS_ORDERED_H
#define DDL_ENGINE_CALLS_ORDERED_H

#include <stdatomic.h>

#include "engine/calls/work.h"

struct ddl_order {
    ddl__order by_rank;  /* the order whose members are the owners (ranks) */
    unsigned generation; /* generation of the process that created it */
    atomic_uint references;
    int ranks;
    int most_parts;  /* largest number of parts of a rank */
    uint16_t digest; /* digest of the owners; never 0 */
    int *parts;      /* number of parts, by rank */
    int owners[];
};

/* Create an order. Owners must be below `ranks`. Return NULL if out of memory. */
ddl_order *ddl__order_create(const int *owners, int workers, int ranks);

/* Return the fold that adds the parts of all ranks. The parts are its operands; span i contains the
 * parts of rank i. Returns NULL if out of memory. The caller frees it with free. */
ddl__fold *ddl__order_additions(const ddl_order *order);

/* dst[i] = left[i] + right[i] in the library's floating-point mode; dst may be left or right. */
void ddl__order_add(void *dst, const void *left, const void *right, size_t count, ddl_dtype dtype);

static inline ddl_order *ddl__order_retain(ddl_order *order)
{
    atomic_fetch_add_explicit(&order->references, 1, memory_order_relaxed);
    return order;
}

/* Drop a reference. NULL is allowed. */
void ddl__order_release(ddl_order *order);

/* Free the resources of a call other than the caller's memory. */
void ddl__call_free(const ddl__call *call);

static inline void ddl__call_drop(const ddl__call *call)
{
    if (call->blocks || call->order)
        ddl__call_free(call);
}

#endif
