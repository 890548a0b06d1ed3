/* SPDX-License-Identifier: Apache-2.0 */
/* ordered.h - an order of additions as its users hold it: by references, of which the creator has
 * one, as has each call and each cached plan. And what a call holds. */
#ifndef DDL_ENGINE_CALLS_ORDERED_H
#define DDL_ENGINE_CALLS_ORDERED_H

#include <stdatomic.h>

#include "engine/calls/work.h"

struct ddl_order {
    ddl__order by_rank;  /* its members are `owners` */
    unsigned generation; /* of the process that created it */
    atomic_uint references;
    int ranks;
    int most_parts;  /* of any rank */
    uint16_t digest; /* of the owners; never 0 */
    int *parts;      /* by rank: how many it brings */
    int owners[];
};

/* NULL when out of memory. Owners are below `ranks`. */
ddl_order *ddl__order_create(const int *owners, int workers, int ranks);

/* The additions of all ranks' parts, which are the operands: span i are those of rank i. NULL when
 * out of memory; freed with free. */
ddl__fold *ddl__order_additions(const ddl_order *order);

/* dst[i] = left[i] + right[i] in the mode of the library; dst may be either. */
void ddl__order_add(void *dst, const void *left, const void *right, size_t count, ddl_dtype dtype);

static inline ddl_order *ddl__order_retain(ddl_order *order)
{
    atomic_fetch_add_explicit(&order->references, 1, memory_order_relaxed);
    return order;
}

/* NULL is fine. */
void ddl__order_release(ddl_order *order);

/* Free what a call holds besides the caller's memory. */
void ddl__call_free(const ddl__call *call);

static inline void ddl__call_drop(const ddl__call *call)
{
    if (call->blocks || call->order)
        ddl__call_free(call);
}

#endif
