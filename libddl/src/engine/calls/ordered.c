/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/calls/ordered.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/forks.h"
#include "base/fp_mode.h"
#include "reduce/reduce.h"

ddl_order *ddl__order_create(const int *owners, int workers, int ranks)
{
    size_t bytes = (size_t)workers * sizeof *owners;
    ddl_order *order = calloc(1, sizeof *order + bytes + (size_t)ranks * sizeof *order->parts);
    if (!order)
        return NULL;
    ddl__digest digest = {{(uint64_t)ranks, 0}};
    ddl__digest_add(&digest, owners, bytes);
    memcpy(order->owners, owners, bytes);
    order->generation = ddl__generation();
    order->ranks = ranks;
    order->by_rank = (ddl__order){workers, order->owners};
    order->digest = (uint16_t)(1 + digest.words[0] % UINT16_MAX);
    order->parts = order->owners + workers;
    for (int v = 0; v < workers; v++) {
        int *parts = &order->parts[owners[v]];
        if (!*parts)
            *parts = ddl__order_parts(&order->by_rank, owners[v], NULL, 0);
        order->most_parts = *parts > order->most_parts ? *parts : order->most_parts;
    }
    atomic_init(&order->references, 1);
    return order;
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

ddl__fold *ddl__order_additions(const ddl_order *order)
{
    return ddl__order_fold(&order->by_rank, order->ranks);
}

void ddl__order_add(void *dst, const void *left, const void *right, size_t count, ddl_dtype dtype)
{
    ddl__fp_mode caller = ddl__fp_enter();
    ddl__add(ddl__kernels_best(), dtype, dst, left, right, count);
    ddl__fp_leave(caller);
}
