/* SPDX-License-Identifier: Apache-2.0 */
/* Small all-reduces of a submission that pass through host memory are packed: each costs a copy
 * forth and back, but all of them only one start and one wait of the GPU. */
#include "device/cuts.h"

#include <stdlib.h>

#include "device/nccl/nccl_ranks.h"
#include "engine/calls/group.h"

enum { SMALL = 128 << 10 /* bytes */ };

/* The calls of a submission. */
typedef struct plan {
    const ddl__call *calls;
    uint32_t n;
    bool *by_nccl; /* by call, as: */
    bool *taken;   /* it goes by NCCL, or is packed already */
} plan;

static ddl_status cut_one(ddl__device *d, const ddl__call *call, ddl__cuts *cuts)
{
    ddl__chunks *chunks = &cuts->chunks[cuts->n];
    if (!ddl__chunks_of(call, d->config.rank, d->config.size, DDL__SLOT_BYTES, chunks))
        return ddl__fail(DDL_EUNSUPPORTED,
                         "%d ranks are too many for an operation on buffers of a GPU",
                         d->config.size);
    cuts->n_chunks += cuts->chunks[cuts->n++].n;
    return DDL_OK;
}

static ddl_status cut_for_nccl(ddl__device *d, const ddl__call *call, ddl__cuts *cuts)
{
    ddl__call *main = &cuts->made[cuts->n], *rest = main + 1;
    ddl__nccl_cut(d, call, main, rest, &cuts->chunks[cuts->n]);
    cuts->n_chunks += cuts->chunks[cuts->n++].n;
    return rest->count ? cut_one(d, rest, cuts) : DDL_OK;
}

/* Of call i, and all later ones that are packed with it. */
static ddl_status pack(ddl__device *d, const plan *p, uint32_t i, ddl__cuts *cuts)
{
    ddl__call *made = &cuts->made[cuts->n];
    ddl__chunks *chunks = &cuts->chunks[cuts->n];
    const ddl__call **packed = &cuts->packed[cuts->n_packed];
    uint32_t n = ddl__calls_pack(p->calls, p->n, i, SMALL, DDL__SLOT_BYTES, p->taken, packed);
    if (n < 2)
        return cut_one(d, &p->calls[i], cuts);
    *made = p->calls[i];
    made->count = 0;
    for (uint32_t k = 0; k < n; k++)
        made->count += packed[k]->count;
    cuts->n_packed += n;
    ddl_status status = cut_one(d, made, cuts);
    chunks->packed = packed;
    chunks->n_packed = (int)n;
    return status;
}

static ddl_status cut(ddl__device *d, const plan *p, uint32_t i, ddl__cuts *cuts)
{
    if (p->by_nccl[i])
        return cut_for_nccl(d, &p->calls[i], cuts);
    return p->taken[i] ? DDL_OK : pack(d, p, i, cuts);
}

static ddl_status cut_all(ddl__device *d, const plan *p, ddl__cuts *cuts)
{
    ddl_status status = DDL_OK;
    for (uint32_t i = 0; i < p->n && status == DDL_OK; i++)
        status = ddl__nccl_find_way(d, &p->calls[i], &p->by_nccl[i]);
    for (uint32_t i = 0; i < p->n && status == DDL_OK; i++)
        p->taken[i] = p->by_nccl[i];
    for (uint32_t i = 0; i < p->n && status == DDL_OK; i++)
        status = cut(d, p, i, cuts);
    return status;
}

/* NCCL leaves a rest of some calls, which is a call as well. */
ddl_status ddl__cuts_make(ddl__device *d, const ddl__call *calls, uint32_t n, ddl__cuts *cuts)
{
    size_t room = 2 * (size_t)n + 1;
    const plan p = {.calls = calls,
                    .n = n,
                    .by_nccl = calloc(room, sizeof *p.by_nccl),
                    .taken = calloc(room, sizeof *p.taken)};
    *cuts = (ddl__cuts){.chunks = malloc(room * sizeof *cuts->chunks),
                        .made = malloc(room * sizeof *cuts->made),
                        .packed = malloc(room * sizeof(const ddl__call *))};
    ddl_status status =
        p.by_nccl && p.taken && cuts->chunks && cuts->made && cuts->packed
            ? cut_all(d, &p, cuts)
            : ddl__fail(DDL_ENOMEM, "no memory for %u operations on buffers of a GPU", n);
    free(p.by_nccl);
    free(p.taken);
    return status;
}

void ddl__cuts_free(ddl__cuts *cuts)
{
    free(cuts->chunks);
    free(cuts->made);
    free(cuts->packed);
}
