/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "engine/messages/messages_state.h"

static bool grow(ddl__ids *ids)
{
    uint32_t capacity = ids->capacity ? 2 * ids->capacity : 16;
    ddl_work **works = realloc(ids->works, capacity * sizeof(ddl_work *));
    if (works)
        ids->works = works;
    uint32_t *after = realloc(ids->after, capacity * sizeof *after);
    if (after)
        ids->after = after;
    if (!works || !after)
        return false;
    for (uint32_t i = ids->capacity; i < capacity; i++) {
        works[i] = NULL;
        after[i] = i + 1;
    }
    ids->capacity = capacity;
    return true;
}

bool ddl__ids_add(ddl__ids *ids, ddl_work *work, uint32_t *id)
{
    if (ids->free == ids->capacity && !grow(ids))
        return false;
    *id = ids->free;
    ids->free = ids->after[*id];
    ids->works[*id] = work;
    return true;
}

ddl_work *ddl__ids_get(const ddl__ids *ids, uint32_t id)
{
    return id < ids->capacity ? ids->works[id] : NULL;
}

void ddl__ids_remove(ddl__ids *ids, uint32_t id)
{
    ids->works[id] = NULL;
    ids->after[id] = ids->free;
    ids->free = id;
}

void ddl__ids_clear(ddl__ids *ids)
{
    free(ids->works);
    free(ids->after);
    *ids = (ddl__ids){0};
}
