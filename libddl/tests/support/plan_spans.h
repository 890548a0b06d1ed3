/* SPDX-License-Identifier: Apache-2.0 */
/* plan_spans.h - spans, and the queues they travel in. */
#ifndef DDL_TESTS_PLAN_SPANS_H
#define DDL_TESTS_PLAN_SPANS_H

#include "check.h"
#include "plan/builder.h"
#include "plan_values.h"

typedef struct span {
    const uint64_t *lent; /* where the values still must be on arrival, or NULL */
    bool returns;         /* the reader may store its result there */
    int64_t count;
    uint64_t heard; /* the ranks of whom the sender had heard */
    unsigned readers;
    struct span *next; /* in its outlet */
    uint64_t values[];
} span;

static span *span_create(const uint64_t *values, int64_t count)
{
    span *s = malloc(sizeof *s + (size_t)count * sizeof *values);
    CHECK(s, "out of memory");
    *s = (span){.count = count};
    memcpy(s->values, values, (size_t)count * sizeof *values);
    return s;
}

/* Memory that is reused in order, up to the oldest span that a reader has not released. */
typedef struct outlet {
    span *oldest, **end;
    int64_t bytes;
} outlet;

static void outlet_add(outlet *to, span *s, size_t element)
{
    *to->end = s;
    to->end = &s->next;
    to->bytes += s->count * (int64_t)element;
}

static void outlet_drop(outlet *from, size_t element, bool all)
{
    span *oldest;
    while ((oldest = from->oldest) && (oldest->readers == 0 || all)) {
        from->oldest = oldest->next;
        from->bytes -= oldest->count * (int64_t)element;
        free(oldest);
    }
    if (!from->oldest)
        from->end = &from->oldest;
}

/* Spans on their way to one reader. */
typedef struct queue {
    span *spans[DDL__LINK_SPANS];
    unsigned first, n;
} queue;

/* Until the next one is sent. */
static inline const span *queue_last_taken(const queue *from)
{
    return from->spans[(from->first + DDL__LINK_SPANS - 1) % DDL__LINK_SPANS];
}

static void queue_add(queue *to, span *s)
{
    s->readers++;
    to->spans[(to->first + to->n++) % DDL__LINK_SPANS] = s;
}

/* The next span, for its reader. NULL with an error if there is none. *error is set, too, if the
 * span has another length, or if it was lent and changed on its way. */
static span *queue_take(queue *from, int64_t count, const char **error)
{
    if (from->n == 0) { /* an operand twice */
        *error = "a span is missing";
        return NULL;
    }
    span *s = from->spans[from->first];
    from->first = (from->first + 1) % DDL__LINK_SPANS;
    from->n--;
    s->readers--;
    if (s->count != count)
        *error = "a span has another length";
    else if (s->lent && memcmp(s->lent, s->values, (size_t)count * sizeof *s->lent))
        *error = "lent memory was overwritten";
    return s;
}

#endif
