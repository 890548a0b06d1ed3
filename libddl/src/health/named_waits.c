/* SPDX-License-Identifier: Apache-2.0 */
/* Checks named operations that wait until all ranks have called them. Rank 0 matches names, so it
 * knows which ranks have not called a name. The other ranks ask rank 0, and log its answer.
 * Questions and answers contain the asking rank, because in a sparse comm neighbours forward
 * them. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/time_limits.h"
#include "connect/addresses/neighbours.h"
#include "connect/handshake/hello.h"
#include "engine/calls/describe.h"
#include "health/health_state.h"

/* The time before an operation's limit at which rank 0 is asked: the answer takes two heartbeats.
 */
#define ASK_BEFORE (500 * DDL__MS)

typedef struct question {
    const ddl__health *health;
    const char *name;
} question;

/* Send a message about the question of rank `asking` to rank `to`, or to the next hop. If a rank on
 * the way has exited, the message is lost, and a warning may be missing. */
static void route(ddl__health *h, int to, ddl__control_msg message, int asking, const char *text)
{
    unsigned char content[sizeof(int32_t) + DDL__NAME_STATE];
    int32_t head = asking;
    size_t bytes = strlen(text);
    int next = h->members[to].conn.fd >= 0 ? to : ddl__next_hop(h->rank, to);
    if (next < 0)
        return;
    memcpy(content, &head, sizeof head);
    memcpy(content + sizeof head, text, bytes);
    ddl__control_conn_send(&h->members[next].conn, message, content, sizeof head + bytes);
}

/* Parse a message that `route` has sent. Return false if it is invalid. */
static bool routed_read(const ddl__health *h, const unsigned char *content, size_t bytes,
                        int *asking, char *text, size_t size)
{
    int32_t head;
    if (bytes < sizeof head || bytes - sizeof head >= size)
        return false;
    memcpy(&head, content, sizeof head);
    memcpy(text, content + sizeof head, bytes - sizeof head);
    text[bytes - sizeof head] = 0;
    *asking = head;
    return head > 0 && head < h->size;
}

static bool is_missing(const void *context, int rank)
{
    const question *q = context;
    char last[DDL_NAME_MAX];
    return ddl__engine_name_is_missing(q->health->engine, q->name, rank, last);
}

/* Describe the rank's last operations, by name and by order. */
static size_t describe_last(const question *q, int rank, char *text, size_t size)
{
    const ddl__health *h = q->health;
    ddl__position position =
        rank == h->rank ? ddl__health_position(h, ddl__now()) : h->members[rank].position;
    char last[DDL_NAME_MAX], operation[DDL__CALL_MAX];
    ddl__engine_name_is_missing(h->engine, q->name, rank, last);
    size_t n = (size_t)snprintf(text, size,
                                last[0] ? "; %s last called \"%s\"" : "; %s has called no name",
                                h->names[rank], last);
    if (!position.last.words[0] || n >= size)
        return n;
    ddl__describe_whole(operation, sizeof operation, &position.last);
    return n + (size_t)snprintf(text + n, size - n, ", and %s %s as operation %u",
                                position.ended ? "has completed" : "is in", operation,
                                (unsigned)(position.last.words[0] >> 32));
}

/* At rank 0: list the ranks that have not called the name, and their last operations, as far as
 * there is room. */
static void describe_missing(const ddl__health *h, const char *name, char text[DDL__NAME_STATE])
{
    question q = {h, name};
    char ranks[200];
    if (!ddl__list_ranks(ranks, sizeof ranks, h->size, is_missing, &q)) {
        snprintf(text, DDL__NAME_STATE, "all ranks have called it");
        return;
    }
    size_t at = (size_t)snprintf(text, DDL__NAME_STATE, "not called by %s", ranks);
    for (int rank = 0; rank < h->size && at + 1 < DDL__NAME_STATE; rank++)
        if (is_missing(&q, rank))
            at += describe_last(&q, rank, text + at, DDL__NAME_STATE - at);
}

static void warn_waiting(const ddl__health *h, const ddl__waiting *w, const char *state)
{
    char operation[DDL__CALL_MAX];
    ddl__describe_whole(operation, sizeof operation, &w->signature);
    ddl__log(DDL__WARN, "%s: %s named \"%s\" has waited for %.1f s: %s", h->names[h->rank],
             operation, w->name, (double)(ddl__now() - w->submitted) * 1e-9, state);
}

void ddl__names_explain(const ddl__health *h, const char *name, char *text, size_t size)
{
    char state[DDL__NAME_STATE] = "";
    if (h->rank)
        snprintf(state, sizeof state, "%s", h->name_state);
    else
        describe_missing(h, name, state);
    if (state[0])
        snprintf(text, size, ": %s", state);
}

void ddl__names_check(ddl__health *h, int64_t now)
{
    ddl__waiting oldest;
    char state[DDL__NAME_STATE];
    if (h->membership->announced || !ddl__engine_waiting(h->engine, &oldest, 1))
        return;
    bool stalls = now - oldest.submitted >= h->limits.stall && oldest.submitted > h->warned_of;
    bool expires = oldest.deadline - now < ASK_BEFORE;
    if (h->rank && (stalls || (expires && oldest.submitted > h->asked_of))) {
        h->asked_of = oldest.submitted;
        h->name_state[0] = 0;
        route(h, 0, DDL__ASK_NAME, h->rank, oldest.name);
    } else if (stalls) {
        describe_missing(h, oldest.name, state);
        warn_waiting(h, &oldest, state);
    }
    if (stalls)
        h->warned_of = oldest.submitted;
}

void ddl__names_receive_ask(ddl__health *h, int from, const unsigned char *content, size_t bytes)
{
    char name[DDL_NAME_MAX], state[DDL__NAME_STATE];
    int asking;
    if (!routed_read(h, content, bytes, &asking, name, sizeof name))
        return;
    if (h->rank) {
        if (from > h->rank) /* forward it to rank 0 */
            route(h, 0, DDL__ASK_NAME, asking, name);
        return;
    }
    describe_missing(h, name, state);
    route(h, asking, DDL__ANSWER_NAME, asking, state);
}

void ddl__names_receive_answer(ddl__health *h, int from, const unsigned char *content, size_t bytes)
{
    ddl__waiting oldest;
    char state[DDL__NAME_STATE];
    int asking;
    if (!routed_read(h, content, bytes, &asking, state, sizeof state))
        return;
    if (asking != h->rank) {
        if (from < h->rank && h->rank < asking)
            route(h, asking, DDL__ANSWER_NAME, asking, state);
        return;
    }
    if (!ddl__engine_waiting(h->engine, &oldest, 1) || oldest.submitted != h->asked_of)
        return;
    ddl__sanitize_text(state, sizeof state);
    memcpy(h->name_state, state, sizeof state);
    if (oldest.submitted == h->warned_of)
        warn_waiting(h, &oldest, state);
}
