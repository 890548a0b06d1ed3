/* SPDX-License-Identifier: Apache-2.0 */
#include "device/peers.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
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

ddl_status ddl__device_find_all(const ddl__device *d, bool is_so, int64_t timeout_ms, bool *all)
{
    unsigned char are = is_so;
    ddl__call call = {.kind = DDL__ALLREDUCE,
                      .dtype = DDL_U8,
                      .op = DDL_MIN,
                      .count = 1,
                      .send = &are,
                      .recv = &are,
                      .timeout_ms = timeout_ms,
                      .uncounted = true};
    ddl_status status = ddl__engine_submit(d->config.engine, &call, NULL);
    *all = status == DDL_OK && are;
    return status;
}

void ddl__device_pause(int tries)
{
    const struct timespec time = {0, 20000};
    if (tries < 200)
        sched_yield();
    else
        nanosleep(&time, NULL);
}

/* ------------------------------------------------------------ what the ranks tell each other */

static void identify(const ddl__device *d, ddl__peer *own)
{
    struct stat status;
    own->process = (uint64_t)getpid();
    own->namespace = stat("/proc/self/ns/pid", &status) ? 0 : (uint64_t)status.st_ino;
    bool has_uuid = DDL__GOOD(d, device_uuid, &own->uuid, d->number);
    own->can_export = has_uuid && ddl__sharing_export_probe(d, own);
    own->nccl = has_uuid ? ddl__nccl_find(d) : 0;
}

static ddl_status exchange_peers(ddl__device *d, int64_t timeout_ms)
{
    ddl__peer own = {.can_export = false}, *all = calloc((size_t)d->config.size, sizeof *all);
    if (!all || !ddl__sharing_create(d) || !ddl__nccl_create(d)) {
        free(all);
        return ddl__fail(DDL_ENOMEM, "no memory for what %d ranks tell each other", d->config.size);
    }
    identify(d, &own);
    ddl_status status = ddl__device_exchange(d, DDL__ALLGATHER, &own, all, sizeof own, timeout_ms);
    if (status != DDL_OK) {
        free(all);
        return status;
    }
    d->peers = all;
    ddl__sharing_find_gpus(d);
    return DDL_OK;
}

/* ----------------------------------------------------------------------------------- the ways */

static const char *own_name(const ddl__device *d)
{
    return d->config.names[d->config.rank];
}

static ddl_status start_nccl(ddl__device *d, int64_t timeout_ms)
{
    char why[DDL__MESSAGE_MAX] = "";
    bool is_possible = false;
    d->by_nccl = DDL__IMPOSSIBLE; /* also if it cannot be found out: the comm ends */
    if (d->sharing->n_gpus == 1)
        return DDL_OK;
    ddl_status status = ddl__nccl_start(d, timeout_ms, &is_possible, why);
    if (status != DDL_OK)
        return status;
    d->by_nccl = is_possible ? DDL__POSSIBLE : DDL__IMPOSSIBLE;
    if (d->config.rank)
        return DDL_OK;
    if (is_possible)
        ddl__log(DDL__INFO,
                 "%s: each rank has a GPU of its own: NCCL %d carries out operations of %llu bytes "
                 "and more within %s",
                 own_name(d), d->nccl->library.number, (unsigned long long)d->config.direct_bytes,
                 d->nccl->between.n > 1 ? "each host" : "the host");
    else
        ddl__log(DDL__INFO, "%s: NCCL is not used: %s", own_name(d), why);
    return DDL_OK;
}

static void tell_of_leaders(const ddl__device *d, const char *why)
{
    const char *but = d->by_nccl == DDL__POSSIBLE ? " that NCCL does not carry out" : "";
    unsigned long long least = d->config.direct_bytes;
    if (d->by_leaders == DDL__IMPOSSIBLE)
        ddl__log(DDL__INFO, "%s: long operations on a GPU%s pass through host memory, too: %s",
                 own_name(d), but, why);
    else if (d->sharing->n_gpus == 1)
        ddl__log(DDL__INFO,
                 "%s: all ranks share one GPU: operations of %llu bytes and more go from buffer to "
                 "buffer",
                 own_name(d), least);
    else
        ddl__log(DDL__INFO,
                 "%s: %d GPUs access each other's memory: operations of %llu bytes and more%s go "
                 "from buffer to buffer",
                 own_name(d), d->sharing->n_gpus, least, but);
}

static ddl_status start_leaders(ddl__device *d, int64_t timeout_ms)
{
    char why[DDL__MESSAGE_MAX] = "";
    bool is_possible = false;
    d->by_leaders = DDL__IMPOSSIBLE;
    ddl_status status = ddl__sharing_start(d, timeout_ms, &is_possible, why);
    if (status != DDL_OK)
        return status;
    d->by_leaders = is_possible ? DDL__POSSIBLE : DDL__IMPOSSIBLE;
    if (d->config.rank == 0)
        tell_of_leaders(d, why);
    return DDL_OK;
}

/* --------------------------------------------------------------------- which way a call goes */

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
        return d->peers;
    return count && (uint64_t)count >= d->config.direct_bytes / chunks.element;
}

static int parts_of_all(const ddl__device *d, const ddl__call *call)
{
    int sum = 0;
    for (int r = 0; r < d->config.size; r++)
        sum += call->order->parts[r];
    return sum;
}

static ddl_status choose(ddl__device *d, const ddl__call *call, ddl__way *way)
{
    ddl_status status = d->peers ? DDL_OK : exchange_peers(d, call->timeout_ms);
    if (status == DDL_OK && !d->by_nccl)
        status = start_nccl(d, call->timeout_ms);
    if (status != DDL_OK)
        return status;
    if (d->by_nccl == DDL__POSSIBLE && ddl__nccl_takes(d, call)) {
        *way = DDL__BY_NCCL;
        return DDL_OK;
    }
    if (call->order && parts_of_all(d, call) > DDL__REDUCTION_MAX)
        return DDL_OK;
    if (!d->by_leaders)
        status = start_leaders(d, call->timeout_ms);
    if (d->by_leaders == DDL__POSSIBLE)
        *way = DDL__BY_LEADERS;
    return status;
}

ddl_status ddl__way_of(ddl__device *d, const ddl__call *call, ddl__way *way)
{
    *way = DDL__BY_HOST;
    pthread_mutex_lock(&d->lock);
    bool is_alive = ddl__device_is_alive(d); /* else the engine refuses the call */
    pthread_mutex_unlock(&d->lock);
    return is_alive && is_long(d, call) ? choose(d, call, way) : DDL_OK;
}
