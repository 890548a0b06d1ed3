/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/recorder/recorder.h"

#include <stdlib.h>

bool ddl__recorder_open(ddl__recorder *r)
{
    r->slots = calloc(DDL__RECORDS, sizeof *r->slots);
    return r->slots;
}

void ddl__recorder_close(ddl__recorder *r)
{
    free(r->slots);
}

#define GET(field) atomic_load_explicit(&(field), memory_order_acquire)

uint64_t ddl__record_count(const ddl__recorder *r)
{
    return GET(r->next);
}

bool ddl__record_read(const ddl__recorder *r, uint64_t number, ddl__record *to)
{
    const ddl__slot *slot = &r->slots[number % DDL__RECORDS];
    if (GET(slot->stamp) != number + 1)
        return false;
    to->number = number;
    to->ended = GET(slot->ended);
    to->status = (ddl_status)GET(slot->status);
    to->signature.words[0] = GET(slot->words[0]);
    to->signature.words[1] = GET(slot->words[1]);
    to->submitted = GET(slot->submitted);
    to->started = GET(slot->started);
    long long matching_tag = GET(slot->matching_tag);
    to->matching = (ddl__matching)(matching_tag % 4);
    to->tag = (int)(matching_tag / 4);
    return GET(slot->stamp) == number + 1;
}

bool ddl__record_last(const ddl__recorder *r, ddl__record *to)
{
    uint64_t last = GET(r->last_ordered);
    return last && ddl__record_read(r, last - 1, to);
}

bool ddl__record_find(const ddl__recorder *r, uint32_t sequence, ddl__record *to)
{
    uint64_t next = GET(r->last_ordered);
    for (uint64_t back = 1; back <= DDL__RECORDS && back <= next; back++)
        if (ddl__record_read(r, next - back, to) && to->matching == DDL__MATCH_ORDER &&
            (uint32_t)(to->signature.words[0] >> 32) == sequence)
            return true;
    return false;
}
