/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "device/core/device_state.h"

/* Round up to a power of two, so that memory is reused for different sizes. Pinned memory is freed
 * only with the device, because freeing may make the driver wait for the GPU, which may in turn
 * wait for this call. */
static size_t rounded(size_t bytes)
{
    size_t up = DDL__WORD_BYTES;
    while (up < bytes)
        up *= 2;
    return up;
}

static ddl__pinned *pinned_create(ddl__device *d, size_t bytes, size_t words)
{
    ddl__pinned *p = calloc(1, sizeof *p);
    void *memory;
    if (!p) {
        ddl__fail(DDL_ENOMEM, "out of memory for a GPU's buffers");
        return NULL;
    }
    p->bytes = rounded(bytes);
    p->words = words;
    p->filled = calloc(words, sizeof *p->filled);
    if (!p->filled)
        ddl__fail(DDL_ENOMEM, "out of memory for %zu chunks of a GPU's buffers", words);
    bool good = p->filled && DDL__GOOD(d, host_alloc, &memory, p->bytes + words * DDL__WORD_BYTES,
                                       DDL__CUDA_HOST_PORTABLE | DDL__CUDA_HOST_DEVICEMAP);
    p->memory = good ? memory : NULL;
    good = good && DDL__GOOD(d, host_device_pointer, &p->device_words, p->memory + p->bytes, 0);
    for (size_t i = 0; good && i < words; i++) {
        atomic_init(ddl__pinned_word(p, i), 0);
        good = DDL__GOOD(d, event_create, &p->filled[i], DDL__CUDA_EVENT_DISABLE_TIMING);
    }
    if (good)
        return p;
    ddl__pinned_free(d, p);
    return NULL;
}

ddl__pinned *ddl__pinned_take(ddl__device *d, size_t bytes, size_t words)
{
    ddl__pinned **best = NULL;
    for (ddl__pinned **at = &d->unused; *at; at = &(*at)->next)
        if ((*at)->bytes >= bytes && (*at)->words >= words &&
            (!best || (*at)->bytes < (*best)->bytes))
            best = at;
    ddl__pinned *p = best ? *best : pinned_create(d, bytes, words);
    if (best)
        *best = p->next;
    if (p)
        p->uses++;
    return p;
}

void ddl__pinned_give_back(ddl__device *d, ddl__pinned *p)
{
    if (!p)
        return;
    p->next = d->unused;
    d->unused = p;
}

void ddl__pinned_free(const ddl__device *d, ddl__pinned *p)
{
    for (size_t i = 0; p->filled && i < p->words; i++)
        if (p->filled[i])
            d->cuda.event_destroy(p->filled[i]);
    if (p->memory)
        d->cuda.host_free(p->memory);
    free(p->filled);
    free(p);
}

atomic_uint *ddl__pinned_word(const ddl__pinned *p, size_t i)
{
    return (atomic_uint *)(void *)(p->memory + p->bytes + i * DDL__WORD_BYTES);
}

ddl__cuda_pointer ddl__pinned_device_word(const ddl__pinned *p, size_t i)
{
    return p->device_words + i * DDL__WORD_BYTES;
}
