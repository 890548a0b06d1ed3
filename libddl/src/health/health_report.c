/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/text.h"
#include "engine/calls/describe.h"
#include "health/health_state.h"

static const char *member_state(const ddl__health *h, int rank)
{
    const ddl__member *member = &h->members[rank];
    return rank == h->rank                            ? "self"
           : ddl__member_is_dead(h->membership, rank) ? "dead"
           : member->peer->state == DDL__LEFT         ? "left"
           : member->suspect                          ? "suspect"
                                                      : "alive";
}

static void add_member(const ddl__health *h, int rank, const ddl__position *position, ddl__text *to)
{
    const ddl__member *member = &h->members[rank];
    char operation[DDL__CALL_MAX] = "", name[DDL_NAME_MAX];
    if (position->last.words[0])
        ddl__describe_whole(operation, sizeof operation, &position->last);
    ddl__text_add(to, "%s\n{\"rank\": %d, \"name\": ", rank ? "," : "", rank);
    ddl__text_quote(to, h->names[rank]);
    ddl__text_add(to, ", \"state\": \"%s\", \"cause\": ", member_state(h, rank));
    ddl__text_quote(to, member->cause);
    ddl__text_add(to, ", \"silent_s\": ");
    ddl__text_thousandths(to, member->peer->silent_ns / 1000000);
    ddl__text_add(to, ", \"operation\": ");
    ddl__text_quote(to, operation);
    ddl__text_add(to, ", \"sequence\": %u, \"ended\": %s, \"waiting_s\": ",
                  (unsigned)(position->last.words[0] >> 32), position->ended ? "true" : "false");
    ddl__text_thousandths(to, position->ended ? 0 : position->waiting_ms);
    if (h->rank == 0) {
        ddl__engine_name_is_missing(h->engine, "", rank, name);
        ddl__text_add(to, ", \"last_name\": ");
        ddl__text_quote(to, name);
    }
    ddl__text_add(to, "}");
}

/* Return true if this rank is shrinking the comm and waits for `rank` to join the agreement. */
static bool is_late_to_shrink(const ddl__health *h, int rank)
{
    const ddl__member *member = &h->members[rank];
    return h->shrinking && member->peer->state == DDL__ALIVE &&
           member->peer->joined < h->members[h->rank].peer->joined;
}

void ddl__health_report(ddl__health *h, ddl__text *to)
{
    pthread_mutex_lock(&h->detector->lock);
    ddl__position own = ddl__health_position(h, ddl__now());
    ddl__waiting oldest; /* add the oldest waiting operation with a name */
    char last[DDL_NAME_MAX];
    bool named = h->rank == 0 && ddl__engine_waiting(h->engine, &oldest, 1);
    ddl__text_add(to, "\"missing\": [");
    bool first = true;
    for (int rank = 0; rank < h->size; rank++) {
        bool late = !own.ended && ddl__member_is_late(h, rank, &own.last);
        late = late || (named && ddl__engine_name_is_missing(h->engine, oldest.name, rank, last));
        late = late || is_late_to_shrink(h, rank);
        if (rank == h->rank || !late)
            continue;
        ddl__text_add(to, first ? "%d" : ", %d", rank);
        first = false;
    }
    ddl__text_add(to, "], \"members\": [");
    for (int rank = 0; rank < h->size; rank++)
        add_member(h, rank, rank == h->rank ? &own : &h->members[rank].position, to);
    ddl__text_add(to, "]");
    pthread_mutex_unlock(&h->detector->lock);
}

void ddl__health_add_counters(ddl__health *h, ddl_counters *counters)
{
    pthread_mutex_lock(&h->detector->lock);
    counters->deaths = h->membership->n_deaths;
    counters->detection_ns = (uint64_t)h->membership->detection_ns;
    pthread_mutex_unlock(&h->detector->lock);
}
