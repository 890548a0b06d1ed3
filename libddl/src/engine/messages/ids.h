/* SPDX-License-Identifier: Apache-2.0 */
/* ids.h - numbers by which a peer refers to works. */
#ifndef DDL_ENGINE_MESSAGES_IDS_H
#define DDL_ENGINE_MESSAGES_IDS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/calls/work.h"

typedef struct ddl__ids {
    ddl_work **works; /* by number; NULL where it is free */
    uint32_t *after;  /* for a free number: the next free one */
    uint32_t free, capacity;
} ddl__ids;

/* Give the work a unique number; false when out of memory. */
bool ddl__ids_add(ddl__ids *ids, ddl_work *work, uint32_t *id);

/* The work with this number, or NULL. A peer may send any number. */
ddl_work *ddl__ids_get(const ddl__ids *ids, uint32_t id);
void ddl__ids_remove(ddl__ids *ids, uint32_t id);

void ddl__ids_clear(ddl__ids *ids);

#endif
