/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL communicator for the ranks of a host: nccl_ranks.h has the design notes. */
#include "device/nccl/nccl_ranks.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time_limits.h"

/* Create the device's empty NCCL state. Return false if out of memory. */
static bool create(ddl__device *d)
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

/* Run an internal operation of libddl on host memory, in order with the program's calls. */
static ddl_status exchange(const ddl__device *d, ddl__call call, int64_t timeout_ms)
{
    call.dtype = DDL_U8;
    call.timeout_ms = timeout_ms;
    call.uncounted = true;
    return ddl__engine_submit(d->config.engine, &call, NULL);
}

static ddl_status gather(const ddl__device *d, const void *own, void *all, size_t bytes,
                         int64_t timeout_ms)
{
    ddl__call call = {.kind = DDL__ALLGATHER, .count = (int64_t)bytes, .send = own, .recv = all};
    return exchange(d, call, timeout_ms);
}

/* Find out whether `is_so` is true on all ranks. */
static ddl_status find_all(const ddl__device *d, bool is_so, int64_t timeout_ms, bool *all)
{
    unsigned char are = is_so;
    ddl__call call = {
        .kind = DDL__ALLREDUCE, .op = DDL_MIN, .count = 1, .send = &are, .recv = &are};
    ddl_status status = exchange(d, call, timeout_ms);
    *all = status == DDL_OK && are;
    return status;
}

/* ------------------------------------------------------------------------------------ the hosts */

static int host_of(const ddl__device *d, int rank)
{
    return ddl__topology_group(d->config.topology, DDL__HOSTS, rank);
}

/* Return this rank's index on its host. */
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

static bool suit_each_other(const ddl__device *d, int a, int b, char *why)
{
    const ddl__nccl_peer *all = d->nccl->peers;
    if (host_of(d, a) != host_of(d, b))
        return true;
    if (!memcmp(&all[a].uuid, &all[b].uuid, sizeof all->uuid))
        snprintf(why, DDL__MESSAGE_MAX, "%s and %s share a GPU", d->config.names[a],
                 d->config.names[b]);
    else if (all[a].version != all[b].version)
        snprintf(why, DDL__MESSAGE_MAX, "%s and %s have different versions of NCCL, %d and %d",
                 d->config.names[a], d->config.names[b], (int)all[a].version, (int)all[b].version);
    else
        return true;
    return false;
}

static bool suits(const ddl__device *d, char *why)
{
    const ddl__nccl_peer *all = d->nccl->peers;
    for (int r = 0; r < d->config.size; r++)
        if (!all[r].version) {
            if (d->config.uses_nccl)
                snprintf(why, DDL__MESSAGE_MAX, "%s has no NCCL of version 2.27 or later",
                         d->config.names[r]);
            else
                snprintf(why, DDL__MESSAGE_MAX, "DDL_GPU_NCCL is 0");
            return false;
        }
    for (int a = 0; a < d->config.size; a++)
        for (int b = 0; b < a; b++)
            if (!suit_each_other(d, b, a, why))
                return false;
    return have_equal_hosts(d, why);
}

/* ---------------------------------------------------------------------------- the communicator */

/* Return the version of this rank's NCCL; 0 if it may not use any. */
static int find_library(const ddl__device *d)
{
    ddl__nccl *library = &d->nccl->library;
    if (d->config.uses_nccl && ddl__nccl_open(library) == DDL_OK)
        return library->number;
    ddl__log(DDL__DEBUG, "%s: %s", d->config.names[d->config.rank],
             d->config.uses_nccl ? ddl__message() : "NCCL is turned off");
    return 0;
}

static ddl_status exchange_peers(ddl__device *d, int64_t timeout_ms)
{
    ddl__nccl_peer own = {.version = 0}, *all = calloc((size_t)d->config.size, sizeof *all);
    if (!all || !create(d)) {
        free(all);
        return ddl__fail(DDL_ENOMEM, "out of memory for the GPU records of %d ranks",
                         d->config.size);
    }
    if (DDL__GOOD(d, device_uuid, &own.uuid, d->number))
        own.version = find_library(d);
    ddl_status status = gather(d, &own, all, sizeof own, timeout_ms);
    if (status == DDL_OK)
        d->nccl->peers = all;
    else
        free(all);
    return status;
}

static const char init_symbol[] = "ncclCommInitRankConfig";

/* Pause between two checks of a wait: short at first, longer after many checks. */
static void pause_after(int tries)
{
    const struct timespec time = {0, 20000};
    if (tries < 200)
        sched_yield();
    else
        nanosleep(&time, NULL);
}

/* Poll until the communicator's last call is done, and return its result. The call may wait for all
 * ranks of the host: NCCL connects them when they first need a connection. */
static int await_call(ddl__device *d, ddl__nccl_comm *comm, int64_t limit)
{
    const ddl__nccl *library = &d->nccl->library;
    for (int tries = 0;; tries++) {
        int state = DDL__NCCL_IN_PROGRESS, result = library->state(comm, &state);
        if (result != DDL__NCCL_SUCCESS || state != DDL__NCCL_IN_PROGRESS)
            return result != DDL__NCCL_SUCCESS ? result : state;
        pthread_mutex_lock(&d->lock);
        bool goes_on = ddl__device_is_alive(d) && ddl__now() < limit;
        pthread_mutex_unlock(&d->lock);
        if (!goes_on)
            return DDL__NCCL_IN_PROGRESS;
        pause_after(tries);
    }
}

static bool is_good(const ddl__device *d, const char *symbol, ddl__nccl_comm *comm, int result)
{
    const ddl__nccl *library = &d->nccl->library;
    if (result == DDL__NCCL_SUCCESS)
        return true;
    const char *more = comm ? library->last_error(comm) : NULL;
    ddl__fail(DDL_ESYSTEM, "%s: %s of NCCL failed on GPU %d: %s%s%s",
              d->config.names[d->config.rank], symbol, d->number, library->error_text(result),
              more && *more ? ": " : "", more ? more : "");
    return false;
}

static void exit_call(ddl__device *d)
{
    pthread_mutex_lock(&d->lock);
    d->nccl->in_call = false;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

typedef struct offer {
    ddl__nccl_id id;
    uint64_t is_good;
} offer;

/* Exchange ids. The first rank of each host creates the id for the ranks of its host. */
static ddl_status exchange_ids(const ddl__device *d, int64_t timeout_ms, offer *all)
{
    const ddl__device_nccl *n = d->nccl;
    offer own = {.is_good = true};
    int result = n->self ? DDL__NCCL_SUCCESS : n->library.new_id(&own.id);
    own.is_good = is_good(d, "ncclGetUniqueId", NULL, result);
    return gather(d, &own, all, sizeof own, timeout_ms);
}

/* Start to create the communicator. NCCL's call does not block: some versions write to `created`
 * later, in another thread. */
static bool begin(ddl__device *d, const offer *first)
{
    ddl__device_nccl *n = d->nccl;
    ddl__nccl_config config = {.size = sizeof config,
                               .magic = (unsigned)DDL__NCCL_MAGIC,
                               .version = DDL__NCCL_CONFIG,
                               .blocking = 0};
    if (!first->is_good) {
        ddl__fail(DDL_ESYSTEM, "%s could not create an id for the NCCL communicator",
                  d->config.names[n->ranks[0]]);
        return false;
    }
    int result = n->library.create(&n->created, n->n, first->id, n->self, &config);
    pthread_mutex_lock(&d->lock);
    n->comm = n->created;
    pthread_mutex_unlock(&d->lock);
    return result == DDL__NCCL_IN_PROGRESS || is_good(d, init_symbol, n->created, result);
}

/* Connect the ranks of the host. */
static bool connect(ddl__device *d)
{
    ddl__nccl_comm *comm = ddl__nccl_enter(d);
    if (!comm) {
        ddl__fail(DDL_EABORTED, "the comm has ended");
        return false;
    }
    int result = await_call(d, comm, ddl__now() + DDL__NCCL_START_LIMIT);
    bool good = is_good(d, init_symbol, comm, result);
    exit_call(d);
    return good;
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

/* Create NCCL's communicator on all ranks. *is_here is true if this rank has one, *is_possible if
 * all ranks have one. */
static ddl_status start_all(ddl__device *d, int64_t timeout_ms, bool *is_possible, bool *is_here)
{
    offer *all = calloc((size_t)d->config.size, sizeof *all);
    *is_here = all && open_stream(d);
    if (!all)
        return ddl__fail(DDL_ENOMEM, "out of memory for the NCCL ids of %d ranks", d->config.size);
    ddl_status status = exchange_ids(d, timeout_ms, all);
    *is_here = status == DDL_OK && *is_here && begin(d, &all[d->nccl->ranks[0]]);
    free(all);
    if (status == DDL_OK)
        status = find_all(d, *is_here, timeout_ms, is_possible);
    if (!*is_possible)
        return status;
    *is_here = connect(d);
    return find_all(d, *is_here, timeout_ms, is_possible);
}

/* Find out, by operations of all ranks, whether all ranks can use NCCL, and start NCCL on all
 * ranks. If that is not possible, `why` is the reason. */
static ddl_status begin_all(ddl__device *d, int64_t timeout_ms, bool *is_possible, char *why)
{
    bool is_here = true;
    if (!suits(d, why))
        return DDL_OK;
    find_ranks(d);
    ddl_status status = start_all(d, timeout_ms, is_possible, &is_here);
    if (*is_possible)
        return DDL_OK;
    snprintf(why, DDL__MESSAGE_MAX, "%s",
             is_here ? "NCCL does not start on all ranks" : ddl__message());
    if (!is_here && d->config.rank)
        ddl__log(DDL__INFO, "%s", why);
    ddl__nccl_abort(d);
    return status;
}

static ddl_status start(ddl__device *d, int64_t timeout_ms)
{
    char why[DDL__MESSAGE_MAX] = "";
    ddl__device_nccl *n = d->nccl;
    bool is_possible = false;
    n->use = DDL__NCCL_UNUSED; /* this value remains if the check fails, which ends the comm */
    ddl_status status = begin_all(d, timeout_ms, &is_possible, why);
    if (status != DDL_OK)
        return status;
    n->use = is_possible ? DDL__NCCL_USED : DDL__NCCL_UNUSED;
    const char *own = d->config.names[d->config.rank];
    if (d->config.rank == 0 && is_possible)
        ddl__log(DDL__INFO,
                 "%s: each rank has its own GPU, so NCCL %d runs operations of %llu bytes "
                 "and more within %s",
                 own, n->library.number, (unsigned long long)d->config.direct_bytes,
                 n->between.n > 1 ? "each host" : "the host");
    else if (d->config.rank == 0)
        ddl__log(DDL__INFO,
                 "%s: long operations on GPU buffers also use host memory, because NCCL cannot be "
                 "used: %s",
                 own, why);
    return DDL_OK;
}

/* Return true if the call is long enough. All ranks get the same result, so it must not depend on
 * values that only some ranks know, such as scales. */
static bool is_long(const ddl__device *d, const ddl__call *call)
{
    ddl__chunks chunks;
    int size = d->config.size;
    if (!d->config.direct_bytes || (d->config.in_order && call->op) || size < 2 ||
        call->by != DDL__ALGORITHM_NONE || call->kind == DDL__BARRIER || call->blocks ||
        call->order || !call->count ||
        !ddl__chunks_of(call, d->config.rank, size, DDL__SLOT_BYTES, &chunks))
        return false;
    return (uint64_t)(call->count * chunks.blocks) >= d->config.direct_bytes / chunks.element;
}

ddl_status ddl__nccl_find_way(ddl__device *d, const ddl__call *call, bool *by_nccl)
{
    *by_nccl = false;
    pthread_mutex_lock(&d->lock);
    bool is_alive = ddl__device_is_alive(d); /* otherwise the engine rejects the call */
    pthread_mutex_unlock(&d->lock);
    if (!is_alive || !is_long(d, call))
        return DDL_OK;
    ddl_status status = d->nccl && d->nccl->peers ? DDL_OK : exchange_peers(d, call->timeout_ms);
    if (status == DDL_OK && d->nccl->use == DDL__NCCL_UNKNOWN)
        status = start(d, call->timeout_ms);
    *by_nccl = status == DDL_OK && d->nccl->use == DDL__NCCL_USED && ddl__nccl_takes(d, call);
    return status;
}

/* ------------------------------------------------------------------------------ calls of NCCL */

ddl__nccl_comm *ddl__nccl_enter(ddl__device *d)
{
    ddl__device_nccl *n = d->nccl;
    pthread_mutex_lock(&d->lock);
    while (n->in_call)
        pthread_cond_wait(&d->changed, &d->lock);
    ddl__nccl_comm *comm = ddl__device_is_alive(d) ? n->comm : NULL;
    n->in_call = comm;
    pthread_mutex_unlock(&d->lock);
    return comm;
}

bool ddl__nccl_leave(ddl__device *d, ddl__nccl_comm *comm, const char *symbol, int result)
{
    if (result == DDL__NCCL_IN_PROGRESS)
        result = await_call(d, comm, DDL__NEVER);
    bool good = is_good(d, symbol, comm, result);
    exit_call(d);
    return good;
}

bool ddl__nccl_look(ddl__device *d)
{
    ddl__device_nccl *n = d->nccl;
    ddl__nccl_comm *comm = n->in_call ? NULL : n->comm;
    if (!comm)
        return true;
    n->in_call = true;
    pthread_mutex_unlock(&d->lock);
    int state = DDL__NCCL_SUCCESS, result = n->library.state(comm, &state);
    bool waits = result == DDL__NCCL_SUCCESS && state == DDL__NCCL_IN_PROGRESS;
    bool good = waits || is_good(d, "operation", comm, result ? result : state);
    pthread_mutex_lock(&d->lock);
    n->in_call = false;
    pthread_cond_broadcast(&d->changed);
    return good;
}

/* ------------------------------------------------------------------------------------- the end */

/* Remove the communicator from the state. Return it when no thread is in a call with it. Such calls
 * return once the comm has ended. */
static ddl__nccl_comm *take(ddl__device *d)
{
    ddl__device_nccl *n = d->nccl;
    pthread_mutex_lock(&d->lock);
    ddl__nccl_comm *comm = n->comm;
    n->comm = NULL;
    while (comm && n->in_call)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return comm;
}

void ddl__nccl_abort(ddl__device *d)
{
    ddl__nccl_comm *comm = take(d);
    if (comm)
        ddl__nccl_end(&d->nccl->library, comm, DDL__NCCL_ABORTS, 0);
}

static void close_comm(ddl__device *d)
{
    ddl__nccl_comm *comm = take(d);
    ddl__nccl_ending how = d->failed ? DDL__NCCL_ABORTS : DDL__NCCL_DESTROYS;
    if (comm && !ddl__nccl_end(&d->nccl->library, comm, how, ddl__now() + DDL__DEVICE_LATE_LIMIT))
        ddl__log(DDL__INFO,
                 "%s: NCCL is still waiting for other ranks of the host to destroy the comm",
                 d->config.names[d->config.rank]);
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
    free(n->peers);
    free(n);
}
