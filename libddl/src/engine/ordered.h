/* ordered.h - an order of additions as its users hold it: by references, of which the creator has
 * one, as has each call and each cached plan. */
#ifndef DDL_ENGINE_ORDERED_H
#define DDL_ENGINE_ORDERED_H

#include <stdatomic.h>
#include <stdlib.h>

#include "engine/work.h"

struct ddl_order {
    unsigned generation; /* of the process that created it */
    atomic_uint references;
    int ranks;
    int most_parts;     /* of any rank */
    uint16_t digest;    /* of the owners; never 0 */
    ddl__order by_rank; /* its members are `owners` */
    int owners[];
};

/* NULL when out of memory. Owners are below `ranks`. */
ddl_order *ddl__order_create(const int *owners, int workers, int ranks);

/* dst[i] = left[i] + right[i] in the mode of the library; dst may be either. */
void ddl__order_add(void *dst, const void *left, const void *right, size_t count, ddl_dtype dtype);

static inline ddl_order *ddl__order_retain(ddl_order *order)
{
    atomic_fetch_add_explicit(&order->references, 1, memory_order_relaxed);
    return order;
}

static inline void ddl__order_release(ddl_order *order)
{
    if (order && atomic_fetch_sub_explicit(&order->references, 1, memory_order_acq_rel) == 1)
        free(order);
}

/* Free what a call holds besides the caller's memory. */
static inline void ddl__call_drop(const ddl__call *call)
{
    if (call->blocks)
        free(call->blocks);
    if (call->order) {
        free(call->parts);
        ddl__order_release(call->order);
    }
}

/* The length of an element of a part, in elements of the result: parts of half types are f32. */
static inline int ddl__call_wide(const ddl__call *call)
{
    return call->dtype == DDL_F16 || call->dtype == DDL_BF16 ? 2 : 1;
}

#endif
