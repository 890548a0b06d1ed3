#include "connect/counters.h"

#include <stdlib.h>

typedef struct ddl__counter {
    struct ddl__counter *next;
    ddl__digest list;
    uint64_t count;
} counter;

uint64_t ddl__counters_add(ddl__counters *counters, ddl__digest list, int64_t n)
{
    counter *c = counters->first;
    while (c && !ddl__digest_equal(c->list, list))
        c = c->next;
    if (!c && (c = calloc(1, sizeof *c))) {
        c->list = list;
        c->next = counters->first;
        counters->first = c;
    }
    return c ? c->count += (uint64_t)n : 0;
}

void ddl__counters_free(ddl__counters *counters)
{
    for (counter *c; (c = counters->first);) {
        counters->first = c->next;
        free(c);
    }
}
