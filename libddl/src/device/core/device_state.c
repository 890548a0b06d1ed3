/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that device operations use both with and without NCCL. device_state.h has the
 * design notes. */
#include "device/core/device_state.h"

#include <stdlib.h>

typedef ddl__device_operation operation;
typedef ddl__device_chunk chunk;

/* ----------------------------------------------------------------------------------- the driver */

bool ddl__device_is_good(const ddl__device *d, const char *call, ddl__cuda_result result)
{
    if (result == DDL__CUDA_SUCCESS)
        return true;
    char text[128];
    ddl__cuda_describe(&d->cuda, result, text, sizeof text);
    ddl__fail(DDL_ESYSTEM, "%s: the CUDA driver's %s failed on GPU %d: %s",
              d->config.names[d->config.rank], ddl__cuda_symbol(call), d->number, text);
    return false;
}

bool ddl__device_enter(const ddl__device *d)
{
    return DDL__GOOD(d, context_push, d->context);
}

void ddl__device_leave(const ddl__device *d)
{
    ddl__cuda_context context;
    d->cuda.context_pop(&context);
}

ddl_status ddl__device_find_gpu(const ddl__cuda *cuda, const void *address, int *number)
{
    unsigned type = 0;
    ddl__cuda_pointer pointer = ddl__cuda_address(address);
    if (cuda->pointer_attribute(&type, DDL__CUDA_POINTER_MEMORY_TYPE, pointer) ==
            DDL__CUDA_SUCCESS &&
        type == DDL__CUDA_MEMORY_DEVICE &&
        cuda->pointer_attribute(number, DDL__CUDA_POINTER_DEVICE_ORDINAL, pointer) ==
            DDL__CUDA_SUCCESS)
        return DDL_OK;
    return ddl__fail(DDL_EINVAL,
                     "options.memory is DDL_MEMORY_CUDA, but the buffer at %p is not in the memory "
                     "of a GPU",
                     address);
}

ddl_status ddl__device_check(const ddl__device *d, const void *address)
{
    int number;
    ddl_status status = address ? ddl__device_find_gpu(&d->cuda, address, &number) : DDL_OK;
    if (status != DDL_OK || !address || number == d->number)
        return status;
    return ddl__fail(DDL_EINVAL,
                     "the buffer at %p is on GPU %d, but this comm uses GPU %d: duplicate the "
                     "comm for another GPU",
                     address, number, d->number);
}

/* ------------------------------------------------------------------------------------- failures */

bool ddl__device_is_alive(const ddl__device *d)
{
    return d->engine && !d->failed && ddl__engine_status(d->engine) == DDL_OK;
}

void ddl__device_fail(ddl__device *d, ddl_status status, const char *why)
{
    if (d->failed || !d->engine)
        return;
    d->failed = true;
    ddl__engine_fail(d->engine, status, why);
    for (ddl__device_operation *o = d->operations; o; o = o->next)
        if (!o->ended)
            ddl__engine_release_group(d->engine, o->group, status);
}

/* ----------------------------------------------------------------------------------- operations */

void ddl__device_operation_free(operation *o)
{
    ddl__device *d = o->device;
    if (o->start)
        d->cuda.event_destroy(o->start);
    if (o->end)
        d->cuda.event_destroy(o->end);
    for (ddl__pinned *p; (p = o->pinned);) {
        o->pinned = p->next;
        ddl__pinned_give_back(d, p);
    }
    for (int64_t k = 0; k < o->n_chunks; k++)
        free(o->chunks[k].bundle);
    free(o);
}

/* Return true if all agreements of the operation have ended: no stream waits for them. */
static bool is_agreed(const operation *o)
{
    for (int64_t k = 0; k < o->n_chunks; k++)
        if (o->chunks[k].agreement.word &&
            !atomic_load_explicit(&o->chunks[k].agreed, memory_order_acquire))
            return false;
    return true;
}

void ddl__device_free_ended(ddl__device *d)
{
    pthread_mutex_lock(&d->lock);
    for (operation *o; (o = d->operations) && o->ended && is_agreed(o);) {
        d->operations = o->next;
        if (!o->next)
            d->last = &d->operations;
        ddl__engine *engine = d->engine;
        if (engine)
            ddl__engine_drop_group(engine, o->group);
        else
            ddl__group_free(o->group);
        pthread_mutex_unlock(&d->lock);
        ddl__device_operation_free(o);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
}

void ddl__device_place_in_slot(ddl__device *d, chunk *c)
{
    size_t slot = d->n_uses % DDL__SLOTS;
    c->memory = d->slots + slot * DDL__SLOT_BYTES;
    c->freed = d->freed[slot];
    c->word = ddl__pinned_device_word(d->slot_words, slot);
    c->filled = d->slot_words->filled[slot];
    c->hold.word = ddl__pinned_word(d->slot_words, slot);
    c->hold.value = c->value = (uint32_t)(d->n_uses++ / DDL__SLOTS) + 1;
}

void ddl__device_open(ddl__device *d, ddl__hold *hold)
{
    pthread_mutex_lock(&d->lock);
    if (d->engine)
        ddl__engine_release_hold(d->engine, hold);
    pthread_mutex_unlock(&d->lock);
}

static void open_hold(void *argument)
{
    chunk *c = argument;
    ddl__device_open(c->operation->device, &c->hold);
}

bool ddl__device_queue_start(ddl__device *d, chunk *c)
{
    return DDL__GOOD(d, launch_host, d->from, open_hold, c) &&
           DDL__GOOD(d, event_record, c->filled, d->from) &&
           DDL__GOOD(d, stream_wait_event, d->to, c->filled, 0);
}
