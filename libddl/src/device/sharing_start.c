/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks lead, and whether they can: sharing.h has the design notes.
 *
 * Between GPUs, memory may be opened, and accesses to it may still be lost: some machines and
 * virtual machines do that. So the leaders try it. Each rank exports a small allocation, its probe.
 * It writes a number to it. Each leader then copies the number within the probe by its kernel, and
 * the rank looks at what has come. */
#include "device/sharing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"

/* The number of a probe, and for each GPU its leader's copy. */
enum { PROBE_NUMBERS = 1 + DDL__REDUCTION_MAX };

bool ddl__sharing_create(ddl__device *d)
{
    size_t n = (size_t)d->config.size;
    ddl__device_sharing *s = d->sharing ? NULL : calloc(1, sizeof *s);
    if (!s)
        return d->sharing;
    s->is_own_process = calloc(n, sizeof *s->is_own_process);
    s->gpus = calloc(n, sizeof *s->gpus);
    if (!s->is_own_process || !s->gpus) {
        ddl__sharing_destroy(d, s);
        return false;
    }
    s->last = &s->first;
    pthread_mutex_lock(&d->lock);
    d->sharing = s;
    pthread_mutex_unlock(&d->lock);
    return true;
}

void ddl__sharing_destroy(ddl__device *d, ddl__device_sharing *s)
{
    if (!s)
        return;
    for (int r = 0; s->opened && r < d->config.size; r++)
        for (int i = 0; i < DDL__EXPORTS; i++)
            if (s->opened[r][i])
                d->cuda.ipc_close(s->opened[r][i]);
    for (int i = 0; i <= DDL__SCRATCHES; i++) {
        if (s->freed[i])
            d->cuda.event_destroy(s->freed[i]);
        if (s->scratch[i])
            d->cuda.memory_free(s->scratch[i]);
    }
    for (unsigned i = 0; i < s->n_kept; i++)
        d->cuda.memory_free(s->kept[i]);
    if (s->n_exports && s->exports[0].base)
        d->cuda.memory_free(s->exports[0].base);
    ddl__reducer_destroy(d, s->reducer);
    if (s->table)
        d->cuda.memory_free(s->table);
    if (s->done)
        d->cuda.event_destroy(s->done);
    if (s->compute)
        d->cuda.stream_destroy(s->compute);
    if (s->probing)
        d->cuda.stream_destroy(s->probing);
    if (s->numbers)
        ddl__pinned_free(d, s->numbers);
    if (s->started)
        sem_destroy(&s->told);
    free(s->opened);
    free(s->gpus);
    free(s->is_own_process);
    free(s);
}

/* --------------------------------------------------------------------------------- who leads */

/* The small allocation is the first that is exported. */
bool ddl__sharing_export_probe(const ddl__device *d, ddl__peer *own)
{
    ddl__export *probe = &d->sharing->exports[d->sharing->n_exports++];
    if (!DDL__GOOD(d, memory_alloc, &probe->base, PROBE_NUMBERS * sizeof(float)))
        return false;
    own->probe = probe->base;
    return DDL__GOOD(d, ipc_export, &own->handle, probe->base);
}

static bool is_same_gpu(const ddl__peer *one, const ddl__peer *other)
{
    return !memcmp(&one->uuid, &other->uuid, sizeof one->uuid);
}

static void find_leaders(const ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    int rank = d->config.rank;
    const ddl__peer *all = d->peers, *own = &all[rank];
    s->n_gpus = 0;
    for (int r = 0; r < d->config.size; r++) {
        int first = 0;
        while (!is_same_gpu(&all[first], &all[r]))
            first++;
        s->gpus[r] = first < r ? s->gpus[first] : s->n_gpus++;
        s->leads = r == rank ? first == r : s->leads;
        s->is_own_process[r] = all[r].process == own->process && all[r].namespace == own->namespace;
    }
    s->own_gpu = s->gpus[rank];
    s->by_handle = s->n_gpus > 1 || !s->is_own_process[0];
}

/* All ranks find the same. */
static bool suits(const ddl__device *d, char *why)
{
    int hosts = d->config.topology->groups[DDL__HOSTS];
    if (d->sharing->n_gpus > 1 && hosts > 1) {
        snprintf(why, DDL__MESSAGE_MAX, "the GPUs are on %d hosts", hosts);
        return false;
    }
    if (d->config.size > DDL__REDUCTION_MAX) {
        snprintf(why, DDL__MESSAGE_MAX, "there are more than %d ranks", DDL__REDUCTION_MAX);
        return false;
    }
    for (int r = 0; r < d->config.size; r++)
        if (!d->peers[r].can_export) {
            snprintf(why, DDL__MESSAGE_MAX, "%s cannot export memory by CUDA IPC",
                     d->config.names[r]);
            return false;
        }
    return true;
}

/* ------------------------------------------------------------------- what a leader starts with */

/* Whether the GPU may access memory of another one that belongs to this process. */
static bool enable_access(const ddl__device *d, const ddl__peer *peer)
{
    ddl__cuda_context context;
    if (!DDL__GOOD(d, context_retain, &context, (ddl__cuda_device)peer->number))
        return false;
    ddl__cuda_result result = d->cuda.peer_enable(context, 0);
    d->cuda.context_release((ddl__cuda_device)peer->number);
    return result == DDL__CUDA_PEER_ALREADY_ENABLED ||
           ddl__device_is_good(d, "peer_enable", result);
}

static bool open_probe(const ddl__device *d, int rank)
{
    ddl__device_sharing *s = d->sharing;
    const ddl__peer *peer = &d->peers[rank];
    if (s->is_own_process[rank])
        return s->gpus[rank] == s->own_gpu || enable_access(d, peer);
    if (DDL__GOOD(d, ipc_open, &s->opened[rank][0], peer->handle, DDL__CUDA_IPC_LAZY_PEER_ACCESS))
        return true;
    s->opened[rank][0] = 0;
    return false;
}

/* Memory of the others, kernels, the table, and the thread. */
static bool begin(ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    if (!s->leads)
        return true;
    if (!(s->opened = calloc((size_t)d->config.size, sizeof *s->opened))) {
        ddl__fail(DDL_ENOMEM, "no memory for what %d ranks export", d->config.size);
        return false;
    }
    for (int r = 0; r < d->config.size; r++)
        if (!open_probe(d, r))
            return false;
    return (s->reducer = ddl__reducer_create(d)) &&
           DDL__GOOD(d, memory_alloc, &s->table, ddl__leader_table_bytes(d, DDL__ALLTOALL)) &&
           ddl__leader_start(d) == DDL_OK;
}

/* ---------------------------------------------------------------------------------- the probes */

/* Wait for what was queued. */
static bool await(const ddl__device *d)
{
    int64_t limit = ddl__now() + DDL__DEVICE_PROBE_LIMIT;
    for (int tries = 0;; tries++) {
        ddl__cuda_result result = d->cuda.stream_query(d->sharing->probing);
        if (result != DDL__CUDA_NOT_READY)
            return ddl__device_is_good(d, "stream_query", result);
        if (ddl__now() > limit) {
            ddl__fail(DDL_ESYSTEM, "%s: GPU %d has not come to a copy in time",
                      d->config.names[d->config.rank], d->number);
            return false;
        }
        ddl__device_pause(tries);
    }
}

static float number_of(int rank)
{
    return (float)(rank + 1);
}

static bool write_number(ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    size_t table = (size_t)d->config.size * sizeof(ddl__reduction), probe = PROBE_NUMBERS * 4;
    if (!(s->numbers = ddl__pinned_take(d, table > probe ? table : probe, 1)) ||
        !DDL__GOOD(d, stream_create, &s->probing, DDL__CUDA_STREAM_NON_BLOCKING))
        return false;
    memset(s->numbers->memory, 0, probe);
    *(float *)(void *)s->numbers->memory = number_of(d->config.rank);
    return DDL__GOOD(d, copy_to_device, s->exports[0].base, s->numbers->memory, probe,
                     s->probing) &&
           await(d);
}

static bool copy_numbers(ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    size_t bytes = (size_t)d->config.size * sizeof(ddl__reduction);
    ddl__reduction *table = (void *)s->numbers->memory;
    if (!s->leads)
        return true;
    memset(table, 0, bytes);
    for (int r = 0; r < d->config.size; r++) {
        ddl__cuda_pointer probe = s->is_own_process[r] ? d->peers[r].probe : s->opened[r][0];
        table[r].n_in = table[r].n_out = 1;
        table[r].in[0] = probe;
        table[r].out[0] = probe + (unsigned)(1 + s->own_gpu) * sizeof(float);
        ddl__reduction_count(&table[r], DDL_F32, 1, false);
    }
    const ddl__kernel *kernel = ddl__reducer_known(s->reducer, DDL_F32, DDL_SUM, false);
    return DDL__GOOD(d, copy_to_device, s->table, table, bytes, s->probing) &&
           ddl__reducer_launch(d, s->reducer, kernel, 1, (unsigned)d->config.size, s->table,
                               s->probing) &&
           await(d);
}

static int leader_of(const ddl__device *d, int gpu)
{
    int r = 0;
    while (d->sharing->gpus[r] != gpu)
        r++;
    return r;
}

static bool see_numbers(ddl__device *d)
{
    const ddl__device_sharing *s = d->sharing;
    const float *numbers = (const void *)s->numbers->memory;
    if (!DDL__GOOD(d, copy_to_host, s->numbers->memory, s->exports[0].base, PROBE_NUMBERS * 4,
                   s->probing) ||
        !await(d))
        return false;
    for (int g = 0; g < s->n_gpus; g++)
        if (numbers[1 + g] != number_of(d->config.rank)) {
            ddl__fail(DDL_ESYSTEM, "what the GPU of %s writes to that of %s does not arrive",
                      d->config.names[leader_of(d, g)], d->config.names[d->config.rank]);
            return false;
        }
    return true;
}

ddl_status ddl__sharing_start(ddl__device *d, int64_t timeout_ms, bool *is_possible, char *why)
{
    static bool (*const steps[])(ddl__device *) = {begin, write_number, copy_numbers, see_numbers};
    ddl_status status = DDL_OK;
    find_leaders(d);
    *is_possible = suits(d, why);
    for (unsigned i = 0; i < sizeof steps / sizeof *steps && *is_possible; i++) {
        bool is_good = steps[i](d);
        snprintf(why, DDL__MESSAGE_MAX, "%s",
                 is_good ? "some ranks cannot access the memory of others" : ddl__message());
        if (!is_good && d->config.rank)
            ddl__log(DDL__INFO, "%s", why);
        status = ddl__device_find_all(d, is_good, timeout_ms, is_possible);
    }
    return status;
}
