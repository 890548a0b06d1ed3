/* Operations by name that wait for their turn. Rank 0, which matches names, knows who has not
 * called one; the others ask it before they warn, and say what it has answered. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/hello.h"
#include "engine/describe.h"
#include "health/health_state.h"

enum { ANSWER_MAX = 1000 };

typedef struct question {
    const ddl__health *health;
    const char *name;
} question;

static bool is_missing(const void *context, int rank)
{
    const question *q = context;
    char last[DDL_NAME_MAX];
    return ddl__engine_misses(q->health->engine, q->name, rank, last);
}

/* What it has called last, by name and by order. */
static size_t describe_last(const question *q, int rank, char *text, size_t size)
{
    const ddl__health *c = q->health;
    ddl__position position =
        rank == c->rank ? ddl__own_position(c, ddl__now()) : c->members[rank].position;
    char last[DDL_NAME_MAX], operation[DDL__CALL_MAX];
    ddl__engine_misses(c->engine, q->name, rank, last);
    size_t n = (size_t)snprintf(
        text, size, last[0] ? "; %s last called \"%s\"" : "; %s called none", c->names[rank], last);
    if (!position.last.words[0] || n >= size)
        return n;
    ddl__describe_whole(operation, sizeof operation, &position.last);
    return n + (size_t)snprintf(text + n, size - n, ", and %s %s as operation %u",
                                position.ended ? "has ended" : "is in", operation,
                                (unsigned)(position.last.words[0] >> 32));
}

/* At rank 0: who has not called it, and what they do, as long as there is room. */
static void describe_missing(const ddl__health *c, const char *name, char text[ANSWER_MAX])
{
    question q = {c, name};
    char ranks[200];
    if (!ddl__list_ranks(ranks, sizeof ranks, c->size, is_missing, &q)) {
        snprintf(text, ANSWER_MAX, "all have called it");
        return;
    }
    size_t at = (size_t)snprintf(text, ANSWER_MAX, "%s not there yet", ranks);
    for (int rank = 0; rank < c->size && at + 1 < ANSWER_MAX; rank++)
        if (is_missing(&q, rank))
            at += describe_last(&q, rank, text + at, ANSWER_MAX - at);
}

static void warn(const ddl__health *c, const ddl__waiting *w, const char *state)
{
    char operation[DDL__CALL_MAX];
    ddl__describe_whole(operation, sizeof operation, &w->signature);
    ddl__log(DDL__WARN, "%s: %s named \"%s\" has waited for %.1f s: %s", c->names[c->rank],
             operation, w->name, (double)(ddl__now() - w->submitted) * 1e-9, state);
}

void ddl__names_check(ddl__health *c, int64_t now)
{
    ddl__waiting oldest;
    char state[ANSWER_MAX];
    if (c->announced || !ddl__engine_waiting(c->engine, &oldest, 1) ||
        now - oldest.submitted < c->limits.stall || oldest.submitted <= c->warned_of)
        return;
    c->warned_of = oldest.submitted;
    if (c->rank) {
        ddl__control_conn_send(&c->members[0].conn, DDL__ASK_NAME, oldest.name,
                               strlen(oldest.name));
        return;
    }
    describe_missing(c, oldest.name, state);
    warn(c, &oldest, state);
}

void ddl__names_asked(ddl__health *c, int from, const unsigned char *content, size_t bytes)
{
    char name[DDL_NAME_MAX], state[ANSWER_MAX];
    if (c->rank || bytes >= sizeof name)
        return;
    memcpy(name, content, bytes);
    name[bytes] = 0;
    describe_missing(c, name, state);
    ddl__control_conn_send(&c->members[from].conn, DDL__ANSWER_NAME, state, strlen(state));
}

void ddl__names_answered(const ddl__health *c, const unsigned char *content, size_t bytes)
{
    ddl__waiting oldest;
    char state[ANSWER_MAX];
    if (bytes >= sizeof state || !ddl__engine_waiting(c->engine, &oldest, 1) ||
        oldest.submitted != c->warned_of)
        return;
    memcpy(state, content, bytes);
    state[bytes] = 0;
    ddl__sanitize_text(state, sizeof state);
    warn(c, &oldest, state);
}
