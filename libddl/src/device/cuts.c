/* SPDX-License-Identifier: Apache-2.0 */
/* Small all-reduces of a submission that pass through host memory are packed: each costs a copy
 * forth and back, but all of them only one start and one wait of the GPU. All ranks pack alike:
 * what fits together does not depend on scales, which each rank has of its own. */
#include "device/cuts.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "device/nccl_ranks.h"
#include "device/peers.h"
#include "device/sharing.h"

enum { SMALL = 128 << 10 /* bytes */ };

/* The calls of a submission. */
typedef struct plan {
    const ddl__call *calls;
    uint32_t n;
    ddl__way *ways; /* by call, as: */
    bool *taken;    /* it is packed with an earlier one */
} plan;

static ddl_status cut_one(ddl__device *d, const ddl__call *call, ddl__way way, ddl__cuts *cuts)
{
    ddl__chunks *chunks = &cuts->chunks[cuts->n];
    if (!ddl__chunks_of(call, d->config.rank, d->config.size,
                        way == DDL__BY_LEADERS ? DDL__SHARED_CHUNK : DDL__SLOT_BYTES, chunks))
        return ddl__fail(DDL_EUNSUPPORTED,
                         "%d ranks are too many for an operation on buffers of a GPU",
                         d->config.size);
    chunks->way = way;
    if (way == DDL__BY_LEADERS && call->kind == DDL__ALLTOALL)
        chunks->is_one_range = false; /* copies of what is replaced */
    cuts->n_chunks += cuts->chunks[cuts->n++].n;
    return DDL_OK;
}

static ddl_status cut_for_nccl(ddl__device *d, const ddl__call *call, ddl__cuts *cuts)
{
    ddl__call *main = &cuts->made[cuts->n], *rest = main + 1;
    ddl__nccl_cut(d, call, main, rest, &cuts->chunks[cuts->n]);
    cuts->n_chunks += cuts->chunks[cuts->n++].n;
    return rest->count ? cut_one(d, rest, DDL__BY_HOST, cuts) : DDL_OK;
}

static size_t bytes_of(const ddl__call *call)
{
    return (size_t)call->count * ddl__dtype_size(call->dtype);
}

static bool is_small(const ddl__call *call, ddl__way way)
{
    return way == DDL__BY_HOST && call->kind == DDL__ALLREDUCE && bytes_of(call) <= SMALL;
}

static bool fit_together(const ddl__call *a, const ddl__call *b)
{
    return a->dtype == b->dtype && a->op == b->op && a->by == b->by;
}

/* Make one call of call i and all later ones that fit it, as long as they have room in a slot. */
static ddl_status pack(ddl__device *d, const plan *p, uint32_t i, ddl__cuts *cuts)
{
    ddl__call *made = &cuts->made[cuts->n];
    const ddl__call **packed = &cuts->packed[cuts->n_packed];
    int n = 0;
    *made = p->calls[i];
    made->count = 0;
    for (uint32_t k = i; k < p->n; k++) {
        const ddl__call *call = &p->calls[k];
        if (p->taken[k] || !is_small(call, p->ways[k]) || !fit_together(call, made) ||
            bytes_of(made) + bytes_of(call) > DDL__SLOT_BYTES)
            continue;
        p->taken[k] = true;
        made->count += call->count;
        packed[n++] = call;
    }
    cuts->n_packed += (uint32_t)n;
    ddl_status status = cut_one(d, n > 1 ? made : &p->calls[i], DDL__BY_HOST, cuts);
    if (status == DDL_OK && n > 1)
        ddl__chunks_pack(&cuts->chunks[cuts->n - 1], packed, n);
    return status;
}

static ddl_status cut(ddl__device *d, const plan *p, uint32_t i, ddl__cuts *cuts)
{
    if (p->ways[i] == DDL__BY_NCCL)
        return cut_for_nccl(d, &p->calls[i], cuts);
    if (is_small(&p->calls[i], p->ways[i]))
        return pack(d, p, i, cuts);
    return cut_one(d, &p->calls[i], p->ways[i], cuts);
}

static ddl_status cut_all(ddl__device *d, const plan *p, ddl__cuts *cuts)
{
    ddl_status status = DDL_OK;
    for (uint32_t i = 0; i < p->n && status == DDL_OK; i++)
        status = ddl__way_of(d, &p->calls[i], &p->ways[i]);
    for (uint32_t i = 0; i < p->n && status == DDL_OK; i++)
        if (!p->taken[i])
            status = cut(d, p, i, cuts);
    return status;
}

/* NCCL leaves a rest of some calls, which is a call as well. */
ddl_status ddl__cuts_make(ddl__device *d, const ddl__call *calls, uint32_t n, ddl__cuts *cuts)
{
    size_t room = 2 * (size_t)n + 1;
    const plan p = {.calls = calls,
                    .n = n,
                    .ways = malloc(room * sizeof *p.ways),
                    .taken = calloc(room, sizeof *p.taken)};
    *cuts = (ddl__cuts){.chunks = malloc(room * sizeof *cuts->chunks),
                        .made = malloc(room * sizeof *cuts->made),
                        .packed = malloc(room * sizeof(const ddl__call *))};
    ddl_status status =
        p.ways && p.taken && cuts->chunks && cuts->made && cuts->packed
            ? cut_all(d, &p, cuts)
            : ddl__fail(DDL_ENOMEM, "no memory for %u operations on buffers of a GPU", n);
    free(p.ways);
    free(p.taken);
    return status;
}

void ddl__cuts_free(ddl__cuts *cuts)
{
    free(cuts->chunks);
    free(cuts->made);
    free(cuts->packed);
}
