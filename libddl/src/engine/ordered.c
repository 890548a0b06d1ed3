#include "engine/ordered.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/forks.h"
#include "base/fp_mode.h"
#include "reduce/reduce.h"

/* The most parts of any rank; -1 when out of memory. */
static int count_parts(const ddl_order *order)
{
    int most = 0, *counts = calloc((size_t)order->ranks, sizeof *counts);
    for (int v = 0; counts && v < order->by_rank.workers; v++)
        if (!counts[order->owners[v]]) {
            int parts = ddl__order_parts(&order->by_rank, order->owners[v], NULL, 0);
            counts[order->owners[v]] = parts;
            most = parts > most ? parts : most;
        }
    most = counts ? most : -1;
    free(counts);
    return most;
}

ddl_order *ddl__order_create(const int *owners, int workers, int ranks)
{
    size_t bytes = (size_t)workers * sizeof *owners;
    ddl_order *order = malloc(sizeof *order + bytes);
    if (!order)
        return NULL;
    ddl__digest digest = {{(uint64_t)ranks, 0}};
    ddl__digest_add(&digest, owners, bytes);
    memcpy(order->owners, owners, bytes);
    order->generation = ddl__generation();
    order->ranks = ranks;
    order->by_rank = (ddl__order){workers, order->owners};
    order->digest = (uint16_t)(1 + digest.words[0] % UINT16_MAX);
    order->most_parts = count_parts(order);
    atomic_init(&order->references, 1);
    if (order->most_parts >= 0)
        return order;
    free(order);
    return NULL;
}

void ddl__order_release(ddl_order *order)
{
    if (order && atomic_fetch_sub_explicit(&order->references, 1, memory_order_acq_rel) == 1)
        free(order);
}

void ddl__call_free(const ddl__call *call)
{
    free(call->blocks);
    free(call->parts);
    ddl__order_release(call->order);
}

void ddl__order_add(void *dst, const void *left, const void *right, size_t count, ddl_dtype dtype)
{
    ddl__fp_mode caller = ddl__fp_enter();
    ddl__add(ddl__kernels_best(), dtype, dst, left, right, count);
    ddl__fp_leave(caller);
}
