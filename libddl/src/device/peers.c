/* SPDX-License-Identifier: Apache-2.0 */
#include "device/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "device/nccl_ranks.h"
#include "device/sharing.h"
#include "engine/ordered.h"

ddl_status ddl__device_exchange(const ddl__device *d, ddl__kind kind, const void *send, void *recv,
                                size_t bytes, int64_t timeout_ms)
{
    ddl__call call = {.kind = kind,
                      .dtype = DDL_U8,
                      .count = (int64_t)bytes,
                      .send = send,
                      .recv = recv,
                      .timeout_ms = timeout_ms,
                      .uncounted = true};
    return ddl__engine_submit(d->config.engine, &call, NULL);
}

static void identify(const ddl__device *d, ddl__peer *own)
{
    struct stat status;
    own->process = (uint64_t)getpid();
    own->namespace = stat("/proc/self/ns/pid", &status) ? 0 : (uint64_t)status.st_ino;
    bool has_uuid = DDL__GOOD(d, device_uuid, &own->uuid, d->number);
    own->can_export = has_uuid && ddl__sharing_export_probe(d, &own->handle);
    own->nccl = has_uuid ? ddl__nccl_find(d) : 0;
}

static bool use_one_gpu(const ddl__device *d, const ddl__peer *all)
{
    for (int r = 1; r < d->config.size; r++)
        if (memcmp(&all[r].uuid, &all[0].uuid, sizeof all->uuid))
            return false;
    return d->config.size <= DDL__REDUCTION_MAX;
}

/* The reason is rank 0's. */
static void tell(const ddl__device *d, const char *why)
{
    const char *name = d->config.names[d->config.rank];
    if (d->config.rank)
        return;
    switch (d->way) {
    case DDL__BY_HOST:
        ddl__log(DDL__INFO, "%s: long operations on a GPU pass through host memory, too: %s", name,
                 why);
        break;
    case DDL__BY_LEADER:
        ddl__log(DDL__INFO,
                 "%s: all ranks share one GPU: operations of %llu bytes and more go from buffer to "
                 "buffer",
                 name, (unsigned long long)d->config.direct_bytes);
        break;
    case DDL__BY_NCCL:
        ddl__log(DDL__INFO,
                 "%s: each rank has a GPU of its own: NCCL %d carries out operations of %llu bytes "
                 "and more within %s",
                 name, d->nccl->library.number, (unsigned long long)d->config.direct_bytes,
                 d->nccl->between.n > 1 ? "each host" : "the host");
        break;
    }
}

static ddl_status agree(ddl__device *d, ddl__peer *all, int64_t timeout_ms)
{
    char why[DDL__MESSAGE_MAX] = "";
    ddl__peer own = {.can_export = false};
    bool is_possible = false;
    identify(d, &own);
    ddl_status status = ddl__device_exchange(d, DDL__ALLGATHER, &own, all, sizeof own, timeout_ms);
    if (status != DDL_OK)
        return status;
    bool one_gpu = use_one_gpu(d, all);
    if (one_gpu)
        status = ddl__sharing_start(d, all, timeout_ms, &is_possible, why);
    else
        status = ddl__nccl_start(d, all, timeout_ms, &is_possible, why);
    if (status != DDL_OK)
        return status;
    d->way = !is_possible ? DDL__BY_HOST : one_gpu ? DDL__BY_LEADER : DDL__BY_NCCL;
    d->way_is_known = true;
    tell(d, why);
    return DDL_OK;
}

static ddl_status find_way(ddl__device *d, int64_t timeout_ms)
{
    ddl__peer *all = calloc((size_t)d->config.size, sizeof *all);
    if (!all || !ddl__sharing_create(d) || !ddl__nccl_create(d)) {
        free(all);
        return ddl__fail(DDL_ENOMEM, "no memory for what %d ranks tell each other", d->config.size);
    }
    ddl_status status = agree(d, all, timeout_ms);
    free(all);
    return status;
}

/* The elements of uneven blocks whose lengths all ranks know; -1: they do not. */
static int64_t known_elements(const ddl__device *d, const ddl__call *call)
{
    const ddl__share *blocks = call->blocks;
    int64_t sum = 0;
    if (call->kind == DDL__ALLGATHER)
        blocks += d->config.size;
    else if (call->kind != DDL__REDUCE_SCATTER)
        return -1;
    for (int r = 0; r < d->config.size; r++)
        sum += blocks[r].count;
    return sum;
}

/* All ranks find the same. What only some know the length of is long once another operation was. */
static bool is_long(const ddl__device *d, const ddl__call *call)
{
    ddl__chunks chunks;
    int size = d->config.size;
    if (!d->config.direct_bytes || size < 2 || call->by != DDL__ALGORITHM_NONE ||
        call->kind == DDL__BARRIER ||
        !ddl__chunks_of(call, d->config.rank, size, DDL__SHARED_CHUNK, &chunks))
        return false;
    int64_t count = call->blocks  ? known_elements(d, call)
                    : call->order ? call->count
                                  : call->count * chunks.blocks;
    if (count < 0)
        return d->way_is_known;
    return count && (uint64_t)count >= d->config.direct_bytes / chunks.element;
}

static int parts_of_all(const ddl__device *d, const ddl__call *call)
{
    int sum = 0;
    for (int r = 0; r < d->config.size; r++)
        sum += call->order->parts[r];
    return sum;
}

ddl__way ddl__way_of(ddl__device *d, const ddl__call *call, ddl_status *status)
{
    *status = DDL_OK;
    if (!is_long(d, call))
        return DDL__BY_HOST;
    if (!d->way_is_known)
        *status = find_way(d, call->timeout_ms);
    if (*status != DDL_OK || (d->way == DDL__BY_NCCL && !ddl__nccl_takes(d, call)) ||
        (d->way == DDL__BY_LEADER && call->order && parts_of_all(d, call) > DDL__REDUCTION_MAX))
        return DDL__BY_HOST;
    return d->way;
}
