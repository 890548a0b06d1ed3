/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks lead, and whether they can: sharing.h has the design notes.
 *
 * Between GPUs, memory may be opened, and accesses to it may still be lost: some machines and
 * virtual machines do that. So leaders of several GPUs try it. Each rank exports a small
 * allocation, its probe, and writes its number there. Each leader then copies the number within the
 * probe by its kernel, and the rank looks at what has come. */
#include "device/sharing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"

/* As long as what a thread of the kernel loads at once. */
typedef struct number {
    float words[DDL__PACK_BYTES / sizeof(float)];
} number;

/* The rank's number, and what the leader of each GPU has copied. */
typedef struct probe {
    number own, copies[DDL__REDUCTION_MAX];
} probe;

enum { PROBE_WAITS = 4 /* within the operation's limit: one more than there are */ };

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

/* What was queued is done. Memory is not freed: the driver would wait for the caller's streams. */
static void end_probes(ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    if (s->probing)
        d->cuda.stream_destroy(s->probing);
    ddl__pinned_give_back(d, s->numbers);
    s->probing = NULL;
    s->numbers = NULL;
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

/* The first that is exported, also if the ranks could not tell each other before. */
bool ddl__sharing_export_probe(const ddl__device *d, ddl__peer *own)
{
    ddl__device_sharing *s = d->sharing;
    ddl__cuda_pointer *base = &s->exports[0].base;
    s->n_exports = 1;
    if (!*base && !DDL__GOOD(d, memory_alloc, base, sizeof(probe)))
        return false;
    own->probe = *base;
    return DDL__GOOD(d, ipc_export, &own->handle, *base);
}

void ddl__sharing_find_gpus(const ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    int rank = d->config.rank;
    const ddl__peer *all = d->peers, *own = &all[rank];
    for (int r = 0; r < d->config.size; r++) {
        int first = 0;
        while (memcmp(&all[first].uuid, &all[r].uuid, sizeof own->uuid))
            first++;
        s->gpus[r] = first < r ? s->gpus[first] : s->n_gpus++;
        s->leads = r == rank ? first == r : s->leads;
        s->is_own_process[r] = all[r].process == own->process && all[r].namespace == own->namespace;
    }
    s->own_gpu = s->gpus[rank];
    s->exports_memory = s->n_gpus > 1 || !s->is_own_process[0];
    int flushes = 0;
    s->flushes = s->n_gpus > 1 &&
                 DDL__GOOD(d, device_attribute, &flushes, DDL__CUDA_DEVICE_FLUSHES_REMOTE_WRITES,
                           d->number) &&
                 flushes;
}

/* Ranks of one process with a GPU each. There the driver may let one GPU wait for the other when
 * memory is freed, and so for a rank that is in that call. */
static bool share_a_process(const ddl__device *d, int *one, int *other)
{
    for (*one = 0; *one < d->config.size; ++*one)
        for (*other = 0; *other < *one; ++*other)
            if (d->sharing->gpus[*one] != d->sharing->gpus[*other] &&
                d->peers[*one].process == d->peers[*other].process &&
                d->peers[*one].namespace == d->peers[*other].namespace)
                return true;
    return false;
}

/* All ranks find the same. */
static bool suits(const ddl__device *d, char *why)
{
    int hosts = d->config.topology->groups[DDL__HOSTS], one, other;
    if (d->sharing->n_gpus > 1 && hosts > 1) {
        snprintf(why, DDL__MESSAGE_MAX, "the GPUs are on %d hosts", hosts);
        return false;
    }
    if (share_a_process(d, &one, &other)) {
        snprintf(why, DDL__MESSAGE_MAX, "%s and %s are in one process, on two GPUs",
                 d->config.names[other], d->config.names[one]);
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

static bool open_probes(const ddl__device *d)
{
    ddl__device_sharing *s = d->sharing;
    for (int r = 0; r < d->config.size; r++)
        if (!s->is_own_process[r] && !DDL__GOOD(d, ipc_open, &s->opened[r][0], d->peers[r].handle,
                                                DDL__CUDA_IPC_LAZY_PEER_ACCESS)) {
            s->opened[r][0] = 0;
            return false;
        }
    return true;
}

/* Memory of the others, kernels, the table, and the thread. */
static bool begin(ddl__device *d, int64_t timeout_ms)
{
    (void)timeout_ms;
    ddl__device_sharing *s = d->sharing;
    if (!s->leads)
        return true;
    if (!(s->opened = calloc((size_t)d->config.size, sizeof *s->opened))) {
        ddl__fail(DDL_ENOMEM, "no memory for what %d ranks export", d->config.size);
        return false;
    }
    return open_probes(d) && (s->reducer = ddl__reducer_create(d)) &&
           DDL__GOOD(d, memory_alloc, &s->table, ddl__leader_table_bytes(d, DDL__ALLTOALL)) &&
           ddl__leader_start(d) == DDL_OK;
}

/* ---------------------------------------------------------------------------------- the probes */

/* Wait for what was queued. The other ranks wait for this one until their limits. */
static bool await(ddl__device *d, int64_t timeout_ms)
{
    int64_t own = timeout_ms / PROBE_WAITS, most = DDL__DEVICE_PROBE_LIMIT / DDL__MS;
    int64_t limit = ddl__now() + (own < most ? own : most) * DDL__MS;
    for (int tries = 0;; tries++) {
        ddl__cuda_result result = d->cuda.stream_query(d->sharing->probing);
        if (result != DDL__CUDA_NOT_READY)
            return ddl__device_is_good(d, "stream_query", result);
        pthread_mutex_lock(&d->lock);
        bool goes_on = ddl__device_is_alive(d) && ddl__now() < limit;
        pthread_mutex_unlock(&d->lock);
        if (!goes_on) {
            ddl__fail(DDL_ESYSTEM, "%s: GPU %d has not come to a copy in time",
                      d->config.names[d->config.rank], d->number);
            return false;
        }
        ddl__device_pause(tries);
    }
}

static number number_of(int rank)
{
    float word = (float)(rank + 1);
    return (number){{word, -word, word, -word}};
}

static bool write_number(ddl__device *d, int64_t timeout_ms)
{
    ddl__device_sharing *s = d->sharing;
    size_t table = (size_t)d->config.size * sizeof(ddl__reduction);
    if (!(s->numbers = ddl__pinned_take(d, table > sizeof(probe) ? table : sizeof(probe), 1)) ||
        !DDL__GOOD(d, stream_create, &s->probing, DDL__CUDA_STREAM_NON_BLOCKING))
        return false;
    *(probe *)(void *)s->numbers->memory = (probe){.own = number_of(d->config.rank)};
    return DDL__GOOD(d, copy_to_device, s->exports[0].base, s->numbers->memory, sizeof(probe),
                     s->probing) &&
           await(d, timeout_ms);
}

static bool copy_numbers(ddl__device *d, int64_t timeout_ms)
{
    ddl__device_sharing *s = d->sharing;
    size_t bytes = (size_t)d->config.size * sizeof(ddl__reduction);
    ddl__reduction *table = (void *)s->numbers->memory;
    if (!s->leads)
        return true;
    memset(table, 0, bytes);
    for (int r = 0; r < d->config.size; r++) {
        ddl__cuda_pointer at = s->is_own_process[r] ? d->peers[r].probe : s->opened[r][0];
        table[r].n_in = table[r].n_out = 1;
        table[r].in[0] = at + offsetof(probe, own);
        table[r].out[0] = at + offsetof(probe, copies) + (size_t)s->own_gpu * sizeof(number);
        ddl__reduction_count(&table[r], DDL_F32, sizeof(number) / sizeof(float), false);
    }
    const ddl__kernel *kernel = ddl__reducer_known(s->reducer, DDL_F32, DDL_SUM, false);
    return DDL__GOOD(d, copy_to_device, s->table, table, bytes, s->probing) &&
           ddl__reducer_launch(d, s->reducer, kernel, 1, (unsigned)d->config.size, s->table,
                               s->probing) &&
           await(d, timeout_ms);
}

static int leader_of(const ddl__device *d, int gpu)
{
    int r = 0;
    while (d->sharing->gpus[r] != gpu)
        r++;
    return r;
}

static bool see_numbers(ddl__device *d, int64_t timeout_ms)
{
    const ddl__device_sharing *s = d->sharing;
    const probe *seen = (const void *)s->numbers->memory;
    if (!DDL__GOOD(d, copy_to_host, s->numbers->memory, s->exports[0].base, sizeof(probe),
                   s->probing) ||
        !await(d, timeout_ms))
        return false;
    for (int g = 0; g < s->n_gpus; g++)
        if (memcmp(&seen->copies[g], &seen->own, sizeof(number))) {
            ddl__fail(DDL_ESYSTEM, "what the GPU of %s writes to that of %s does not arrive",
                      d->config.names[leader_of(d, g)], d->config.names[d->config.rank]);
            return false;
        }
    return true;
}

/* One GPU needs no probes. */
ddl_status ddl__sharing_start(ddl__device *d, int64_t timeout_ms, bool *is_possible, char *why)
{
    static bool (*const steps[])(ddl__device *, int64_t) = {begin, write_number, copy_numbers,
                                                            see_numbers};
    unsigned n = d->sharing->n_gpus > 1 ? sizeof steps / sizeof *steps : 1;
    ddl_status status = DDL_OK;
    *is_possible = suits(d, why);
    for (unsigned i = 0; i < n && *is_possible; i++) {
        bool is_good = steps[i](d, timeout_ms);
        snprintf(why, DDL__MESSAGE_MAX, "%s",
                 is_good ? "another rank cannot take part; with DDL_LOG=info it says why"
                         : ddl__message());
        if (!is_good && d->config.rank)
            ddl__log(DDL__INFO, "%s", why);
        status = ddl__device_find_all(d, is_good, timeout_ms, is_possible);
    }
    if (*is_possible)
        end_probes(d);
    return status;
}

bool ddl__sharing_settle_probes(ddl__device *d)
{
    int64_t limit = ddl__now() + DDL__DEVICE_DRAIN_LIMIT;
    if (!d->sharing || !d->sharing->probing || !ddl__device_enter(d))
        return true;
    int tries = 0;
    bool waits;
    while ((waits = d->cuda.stream_query(d->sharing->probing) == DDL__CUDA_NOT_READY) &&
           ddl__now() < limit)
        ddl__device_pause(tries++);
    ddl__device_leave(d);
    return !waits;
}
