/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's communicator of the ranks of a host: nccl_ranks.h has the design notes. */
#include "device/nccl_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time_limits.h"

bool ddl__nccl_create(ddl__device *d)
{
    ddl__device_nccl *n = d->nccl ? NULL : calloc(1, sizeof *n);
    size_t size = (size_t)d->config.size;
    if (!n)
        return d->nccl;
    n->ranks = calloc(size, sizeof *n->ranks);
    n->between_ranks = calloc(size, sizeof *n->between_ranks);
    if (!n->ranks || !n->between_ranks) {
        ddl__nccl_destroy(d, n);
        return false;
    }
    pthread_mutex_lock(&d->lock);
    d->nccl = n;
    pthread_mutex_unlock(&d->lock);
    return true;
}

/* ------------------------------------------------------------------------------------ the hosts */

static int host_of(const ddl__device *d, int rank)
{
    return ddl__topology_group(d->config.topology, DDL__HOSTS, rank);
}

/* Which rank of its host this one is. */
static int place_of(const ddl__device *d, int rank)
{
    int place = 0;
    for (int r = 0; r < rank; r++)
        place += host_of(d, r) == host_of(d, rank);
    return place;
}

static void find_ranks(const ddl__device *d)
{
    ddl__device_nccl *n = d->nccl;
    int rank = d->config.rank;
    n->n = n->between.n = 0;
    n->between.ranks = n->between_ranks;
    n->self = place_of(d, rank);
    for (int r = 0; r < d->config.size; r++) {
        if (r == rank)
            n->between.rank = n->between.n;
        if (host_of(d, r) == host_of(d, rank))
            n->ranks[n->n++] = r;
        if (place_of(d, r) == n->self)
            n->between_ranks[n->between.n++] = r;
    }
}

static bool have_equal_hosts(const ddl__device *d, char *why)
{
    int hosts = d->config.topology->groups[DDL__HOSTS], each = d->config.size / hosts;
    for (int h = 0; h < hosts; h++) {
        int ranks = 0;
        for (int r = 0; r < d->config.size; r++)
            ranks += host_of(d, r) == h;
        if (ranks == each && each > 1)
            continue;
        snprintf(why, DDL__MESSAGE_MAX,
                 each > 1 ? "hosts have different numbers of ranks" : "hosts have one rank each");
        return false;
    }
    return true;
}

static bool suit_each_other(const ddl__device *d, const ddl__peer *all, int a, int b, char *why)
{
    if (host_of(d, a) != host_of(d, b))
        return true;
    if (!memcmp(&all[a].uuid, &all[b].uuid, sizeof all->uuid))
        snprintf(why, DDL__MESSAGE_MAX, "%s and %s share a GPU, but not all ranks do",
                 d->config.names[a], d->config.names[b]);
    else if (all[a].nccl != all[b].nccl)
        snprintf(why, DDL__MESSAGE_MAX, "%s and %s have different versions of NCCL, %d and %d",
                 d->config.names[a], d->config.names[b], (int)all[a].nccl, (int)all[b].nccl);
    else
        return true;
    return false;
}

static bool suits(const ddl__device *d, const ddl__peer *all, char *why)
{
    for (int r = 0; r < d->config.size; r++)
        if (!all[r].nccl) {
            snprintf(why, DDL__MESSAGE_MAX, "%s has no NCCL of version 2.14 or later",
                     d->config.names[r]);
            return false;
        }
    for (int a = 0; a < d->config.size; a++)
        for (int b = 0; b < a; b++)
            if (!suit_each_other(d, all, b, a, why))
                return false;
    return have_equal_hosts(d, why);
}

/* ---------------------------------------------------------------------------- the communicator */

void ddl__nccl_identify(const ddl__device *d, ddl__peer *own)
{
    ddl__nccl *library = &d->nccl->library;
    const char *name = d->config.names[d->config.rank];
    if (!d->config.uses_nccl)
        return;
    if (ddl__nccl_open(library) != DDL_OK) {
        ddl__log(DDL__DEBUG, "%s: %s", name, ddl__message());
        return;
    }
    int result = place_of(d, d->config.rank) ? DDL__NCCL_SUCCESS : library->new_id(&own->id);
    if (result == DDL__NCCL_SUCCESS)
        own->nccl = library->number;
    else
        ddl__log(DDL__DEBUG, "%s: NCCL's ncclGetUniqueId fails: %s", name,
                 library->error_text(result));
}

static const char created[] = "ncclCommInitRankConfig";

static void pause_briefly(void)
{
    const struct timespec time = {0, 20000};
    nanosleep(&time, NULL);
}

/* Ask until the communicator's last call is done; its result. */
static int await_call(ddl__device *d, ddl__nccl_comm *comm)
{
    const ddl__nccl *library = &d->nccl->library;
    int64_t limit = ddl__now() + DDL__NCCL_CALL_LIMIT;
    for (;;) {
        int state = DDL__NCCL_IN_PROGRESS, result = library->state(comm, &state);
        if (result != DDL__NCCL_SUCCESS || state != DDL__NCCL_IN_PROGRESS)
            return result != DDL__NCCL_SUCCESS ? result : state;
        pthread_mutex_lock(&d->lock);
        bool goes_on = ddl__device_is_alive(d) && ddl__now() < limit;
        pthread_mutex_unlock(&d->lock);
        if (!goes_on)
            return DDL__NCCL_IN_PROGRESS;
        pause_briefly();
    }
}

static bool is_good(const ddl__device *d, const char *symbol, ddl__nccl_comm *comm, int result)
{
    const ddl__nccl *library = &d->nccl->library;
    if (result == DDL__NCCL_SUCCESS)
        return true;
    const char *more = comm ? library->last_error(comm) : NULL;
    ddl__fail(DDL_ESYSTEM, "%s: NCCL's %s fails on GPU %d: %s%s%s", d->config.names[d->config.rank],
              symbol, d->number, library->error_text(result), more && *more ? ": " : "",
              more ? more : "");
    return false;
}

/* Whether it is so on all ranks; they go on together. */
static ddl_status find_all(const ddl__device *d, bool is_so, int64_t timeout_ms, bool *all)
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

/* The call does not block. */
static bool begin(ddl__device *d, const ddl__peer *all)
{
    ddl__device_nccl *n = d->nccl;
    ddl__nccl_config config = {.size = sizeof config,
                               .magic = (unsigned)DDL__NCCL_MAGIC,
                               .version = DDL__NCCL_OLDEST,
                               .blocking = 0};
    ddl__nccl_comm *comm = NULL;
    int result = n->library.create(&comm, n->n, all[n->ranks[0]].id, n->self, &config);
    pthread_mutex_lock(&d->lock);
    n->comm = comm;
    pthread_mutex_unlock(&d->lock);
    return result == DDL__NCCL_IN_PROGRESS || is_good(d, created, comm, result);
}

/* The ranks of the host find each other. */
static bool connect(ddl__device *d)
{
    ddl__nccl_comm *comm = ddl__nccl_enter(d);
    if (!comm)
        ddl__fail(DDL_EABORTED, "the comm has ended");
    return comm && ddl__nccl_leave(d, comm, created, DDL__NCCL_IN_PROGRESS);
}

static bool open_stream(ddl__device *d)
{
    ddl__device_nccl *n = d->nccl;
    bool good = DDL__GOOD(d, stream_create, &n->stream, DDL__CUDA_STREAM_NON_BLOCKING) &&
                DDL__GOOD(d, event_create, &n->begun, DDL__CUDA_EVENT_DISABLE_TIMING) &&
                DDL__GOOD(d, event_create, &n->done, DDL__CUDA_EVENT_DISABLE_TIMING);
    if (n->between.n == 1)
        return good;
    good = good && DDL__GOOD(d, memory_alloc, &n->parts, (size_t)DDL__SLOTS * DDL__SLOT_BYTES);
    for (int i = 0; good && i < DDL__SLOTS; i++)
        good = DDL__GOOD(d, event_create, &n->reduced[i], DDL__CUDA_EVENT_DISABLE_TIMING);
    return good;
}

ddl_status ddl__nccl_start(ddl__device *d, const ddl__peer *all, int64_t timeout_ms,
                           bool *is_possible, char *why)
{
    if (!suits(d, all, why))
        return DDL_OK;
    find_ranks(d);
    bool is_here = open_stream(d) && begin(d, all);
    ddl_status status = find_all(d, is_here, timeout_ms, is_possible);
    if (*is_possible) {
        is_here = connect(d);
        status = find_all(d, is_here, timeout_ms, is_possible);
    }
    if (*is_possible)
        return DDL_OK;
    snprintf(why, DDL__MESSAGE_MAX, "%s",
             is_here ? "NCCL does not start on all ranks" : ddl__message());
    if (!is_here && d->config.rank)
        ddl__log(DDL__INFO, "%s", why);
    ddl__nccl_abort(d);
    return status;
}

/* ---------------------------------------------------------------------------------- calls of it */

ddl__nccl_comm *ddl__nccl_enter(ddl__device *d)
{
    pthread_mutex_lock(&d->lock);
    ddl__nccl_comm *comm = ddl__device_is_alive(d) ? d->nccl->comm : NULL;
    d->nccl->in_call = comm;
    pthread_mutex_unlock(&d->lock);
    return comm;
}

bool ddl__nccl_leave(ddl__device *d, ddl__nccl_comm *comm, const char *symbol, int result)
{
    if (result == DDL__NCCL_IN_PROGRESS)
        result = await_call(d, comm);
    bool good = is_good(d, symbol, comm, result);
    pthread_mutex_lock(&d->lock);
    d->nccl->in_call = false;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return good;
}

/* ------------------------------------------------------------------------------------- the end */

/* Take the communicator out, when no thread is in a call with it. */
static ddl__nccl_comm *take(ddl__device *d)
{
    ddl__device_nccl *n = d->nccl;
    pthread_mutex_lock(&d->lock);
    ddl__nccl_comm *comm = n ? n->comm : NULL;
    if (comm)
        n->comm = NULL;
    int64_t at = ddl__now() + DDL__DEVICE_LATE_LIMIT;
    while (comm && n->in_call && ddl__now() < at)
        ddl__cond_wait_until(&d->changed, &d->lock, at);
    pthread_mutex_unlock(&d->lock);
    return comm;
}

void ddl__nccl_abort(ddl__device *d)
{
    ddl__nccl_comm *comm = take(d);
    if (comm)
        d->nccl->library.abort(comm);
}

/* It may wait for other ranks, which may be gone. */
static void close_comm(ddl__device *d)
{
    const ddl__nccl *library = &d->nccl->library;
    ddl__nccl_comm *comm = take(d);
    if (!comm)
        return;
    int64_t limit = ddl__now() + DDL__DEVICE_LATE_LIMIT;
    int state = library->finalize(comm);
    while (state == DDL__NCCL_IN_PROGRESS && ddl__now() < limit) {
        pause_briefly();
        if (library->state(comm, &state) != DDL__NCCL_SUCCESS)
            break;
    }
    if (state != DDL__NCCL_SUCCESS || library->destroy(comm) != DDL__NCCL_SUCCESS)
        library->abort(comm);
}

void ddl__nccl_destroy(ddl__device *d, ddl__device_nccl *n)
{
    if (!n)
        return;
    if (n == d->nccl)
        close_comm(d);
    for (int i = 0; i < DDL__SLOTS; i++)
        if (n->reduced[i])
            d->cuda.event_destroy(n->reduced[i]);
    if (n->begun)
        d->cuda.event_destroy(n->begun);
    if (n->done)
        d->cuda.event_destroy(n->done);
    if (n->stream)
        d->cuda.stream_destroy(n->stream);
    while (n->n_scratch)
        d->cuda.memory_free(n->scratch[--n->n_scratch]);
    if (n->parts)
        d->cuda.memory_free(n->parts);
    free(n->between_ranks);
    free(n->ranks);
    free(n);
}
