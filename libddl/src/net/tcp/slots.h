/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - memory for spans that are sent over TCP, shared by the links of one comm. A span fits
 * into one slot. A slot counts the links that still have to send it. */
#ifndef DDL_NET_SLOTS_H
#define DDL_NET_SLOTS_H

#include <stdatomic.h>
#include <stddef.h>

typedef struct ddl__slots ddl__slots;

/* Create slots. Return NULL if out of memory (message set). */
ddl__slots *ddl__slots_create(size_t slot_bytes, unsigned n);
void ddl__slots_destroy(ddl__slots *slots);

/* Return the bytes of one slot. */
size_t ddl__slots_bytes(const ddl__slots *slots);

/* Return a free slot, or NULL. */
void *ddl__slot_find(ddl__slots *slots);

/* Return the counter of the links that still have to send this slot. At zero the slot is free. */
atomic_uint *ddl__slot_users(ddl__slots *slots, const void *slot);

/* Note that one link has sent the slot. users is NULL for memory outside slots. */
static inline void ddl__slot_leave(atomic_uint *users)
{
    if (users)
        atomic_fetch_sub_explicit(users, 1, memory_order_release);
}

#endif
