/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp/slots.h"

#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"

enum { PAGE = 4096 };

struct ddl__slots {
    size_t bytes; /* bytes of one slot */
    unsigned n;
    char *memory;
    atomic_uint users[]; /* by slot: number of links that still have to send it */
};

ddl__slots *ddl__slots_create(size_t slot_bytes, unsigned n)
{
    size_t stride = (slot_bytes + PAGE - 1) / PAGE * PAGE;
    ddl__slots *s = calloc(1, sizeof *s + n * sizeof *s->users);
    char *memory = s ? aligned_alloc(PAGE, n * stride) : NULL;
    if (!memory) {
        ddl__fail(DDL_ENOMEM, "out of memory for %u slots of %zu bytes", n, stride);
        free(s);
        return NULL;
    }
    s->bytes = stride;
    s->n = n;
    s->memory = memory;
    return s;
}

void ddl__slots_destroy(ddl__slots *s)
{
    if (!s)
        return;
    free(s->memory);
    free(s);
}

size_t ddl__slots_bytes(const ddl__slots *s)
{
    return s->bytes;
}

/* Return the lowest free slot: it is the most likely to be in the cache. */
void *ddl__slot_find(ddl__slots *s)
{
    for (unsigned i = 0; i < s->n; i++)
        if (!atomic_load_explicit(&s->users[i], memory_order_acquire))
            return s->memory + i * s->bytes;
    return NULL;
}

atomic_uint *ddl__slot_users(ddl__slots *s, const void *slot)
{
    return &s->users[(size_t)((const char *)slot - s->memory) / s->bytes];
}
