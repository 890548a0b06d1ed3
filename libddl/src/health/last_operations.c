/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out why an operation waits, and whether the members' operations differ.
 *
 * When an operation has waited for a second, the rank asks all members which operation they have
 * called with the same sequence. The data path compares only the operations of two ranks that send
 * to each other. The answers reveal differences between ranks that exchange no data, and the ranks
 * that have not started the operation. A rank reads its operations from the flight recorder, so
 * asking and answering do not disturb the thread that drives them.
 *
 * Operations that differ may still end on all ranks. To find such a difference, every heartbeat and
 * every leave message carries the sender's last operation, which is compared with the receiver's
 * operation of the same sequence. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "engine/calls/describe.h"
#include "health/health_state.h"

/* If all other ranks have ended the operation, no more data will arrive after this many rounds
 * without progress. */
enum { IDLE_ROUNDS = 5 };

static uint32_t sequence_of(const ddl__signature *signature)
{
    return (uint32_t)(signature->words[0] >> 32);
}

/* Return true if a sequence comes before another one. Sequences wrap. */
static bool sequence_before(uint32_t one, uint32_t other)
{
    return (int32_t)(one - other) < 0;
}

int ddl__list_ranks(char *text, size_t size, int n, bool (*is)(const void *context, int rank),
                    const void *context)
{
    char list[160] = "";
    size_t at = 0;
    int found = 0;
    for (int first = 0; first < n; first++) {
        if (!is(context, first))
            continue;
        int last = first;
        while (last + 1 < n && is(context, last + 1))
            last++;
        if (at + 24 < sizeof list)
            at += (size_t)snprintf(list + at, sizeof list - at, last > first ? "%s%d-%d" : "%s%d",
                                   found ? ", " : "", first, last);
        found += last - first + 1;
        first = last;
    }
    snprintf(text, size, "rank%s %s", found == 1 ? "" : "s", list);
    return found;
}

/* ------------------------------------------------------------------------------------ answering */

void ddl__operations_receive_ask(ddl__health *h, int from, const unsigned char *content,
                                 size_t bytes)
{
    ddl__answer answer = {.stage = DDL__NOT_YET};
    ddl__record last, record;
    const ddl__recorder *recorder = ddl__engine_recorder(h->engine);
    if (bytes != sizeof answer.sequence)
        return;
    memcpy(&answer.sequence, content, bytes);
    if (ddl__record_last(recorder, &last) &&
        !sequence_before(sequence_of(&last.signature), answer.sequence)) {
        answer.stage = DDL__FORGOTTEN;
        if (ddl__record_find(recorder, answer.sequence, &record)) {
            answer.stage = record.ended ? DDL__ENDED : DDL__PENDING;
            answer.signature = record.signature;
        }
    }
    ddl__control_conn_send(&h->members[from].conn, DDL__ANSWER, &answer, sizeof answer);
}

void ddl__operations_receive_answer(ddl__health *h, int from, const unsigned char *content,
                                    size_t bytes)
{
    if (bytes == sizeof h->members[from].answer)
        memcpy(&h->members[from].answer, content, bytes);
}

/* ------------------------------------------------------------------------------------ comparing */

/* This rank's operation, and the members' answers about it. */
typedef struct question {
    const ddl__health *health;
    ddl__signature own, chosen;
} question;

/* Return the operation that the rank has called with the sequence in question; NULL if it has
 * called none, or if this is unknown. */
static const ddl__signature *operation_called(const question *q, int rank)
{
    const ddl__answer *answer = &q->health->members[rank].answer;
    if (rank == q->health->rank)
        return &q->own;
    bool known = answer->sequence == sequence_of(&q->own) &&
                 (answer->stage == DDL__PENDING || answer->stage == DDL__ENDED);
    return known ? &answer->signature : NULL;
}

static bool has_called_chosen(const void *context, int rank)
{
    const question *q = context;
    const ddl__signature *signature = operation_called(q, rank);
    return signature && ddl__signatures_agree(signature, &q->chosen);
}

/* Return the first rank whose operation is known and differs from the n chosen ones; -1 if there is
 * none. */
static int find_different(question *q, const ddl__signature *chosen, int n)
{
    for (int rank = 0; rank < q->health->size; rank++) {
        const ddl__signature *signature = operation_called(q, rank);
        bool known = !signature;
        for (int i = 0; i < n && !known; i++)
            known = ddl__signatures_agree(signature, &chosen[i]);
        if (!known)
            return rank;
    }
    return -1;
}

/* End the comm if not all ranks have called the same operation. The message lists the smallest
 * group of ranks first. */
static bool find_difference(ddl__health *h, question *q)
{
    enum { DIFFERENT = 3 };
    ddl__signature chosen[DIFFERENT];
    char ranks[DIFFERENT][200], operation[DDL__CALL_MAX];
    int counts[DIFFERENT], n = 0;
    for (int rank; n < DIFFERENT && (rank = find_different(q, chosen, n)) >= 0; n++) {
        q->chosen = chosen[n] = *operation_called(q, rank);
        counts[n] = ddl__list_ranks(ranks[n], sizeof ranks[n], h->size, has_called_chosen, q);
    }
    if (n < 2)
        return false;
    for (int i = 1; i < n; i++)
        ddl__name_wires(&chosen[0], &chosen[i]);
    char text[DDL__MESSAGE_MAX] = "";
    size_t at = 0;
    for (int listed = 0; listed < n; listed++) {
        int least = -1;
        for (int i = 0; i < n; i++)
            if (counts[i] && (least < 0 || counts[i] < counts[least]))
                least = i;
        ddl__describe_whole(operation, sizeof operation, &chosen[least]);
        if (at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%s called %s",
                                   listed ? "; " : "", ranks[least], operation);
        if (!listed && at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, " as operation %u",
                                   sequence_of(&q->own));
        counts[least] = 0;
    }
    ddl__health_end(h, DDL_EMISMATCH, "%s", text);
    return true;
}

/* Return true if the rank has ended this operation, as far as this rank knows. A member without a
 * control connection counts as having ended it unless other members report otherwise
 * (positions.c). */
static bool has_ended(const question *q, int rank)
{
    const ddl__member *member = &q->health->members[rank];
    if (!member->peer->late || member->conn.fd >= 0)
        return operation_called(q, rank) && member->answer.stage == DDL__ENDED;
    uint32_t at = sequence_of(&member->position.last), own = sequence_of(&q->own);
    return !ddl__position_is_known(q->health, rank) || sequence_before(own, at) ||
           (at == own && member->position.ended);
}

/* End the comm if all other ranks have ended the operation and no more data arrives: two ranks then
 * disagree on the data between them. */
static void find_nothing_coming(ddl__health *h, const question *q)
{
    char operation[DDL__CALL_MAX];
    bool all_ended = true;
    for (int rank = 0; rank < h->size; rank++)
        all_ended = all_ended && (rank == h->rank || has_ended(q, rank));
    uint64_t moves = ddl__engine_snapshot(h->engine).moves;
    h->stall.idle = all_ended && moves == h->stall.moves ? h->stall.idle + 1 : 0;
    h->stall.moves = moves;
    if (h->stall.idle < IDLE_ROUNDS)
        return;
    ddl__describe_whole(operation, sizeof operation, &q->own);
    ddl__health_end(
        h, DDL_EMISMATCH,
        "%s waits in %s as operation %u for data that no rank has sent: all others have "
        "completed it, so its counts and those of another rank do not match",
        h->names[h->rank], operation, sequence_of(&q->own));
}

/* End the comm if a member has left it before this operation: the member will never start it. */
static bool find_leaver(ddl__health *h, const ddl__signature *own)
{
    for (int rank = 0; rank < h->size; rank++) {
        const ddl__member *member = &h->members[rank];
        uint32_t last = sequence_of(&member->position.last);
        if (rank == h->rank || member->peer->state != DDL__LEFT ||
            !member->position.last.words[0] || !sequence_before(last, sequence_of(own)))
            continue;
        char operation[DDL__CALL_MAX];
        ddl__describe_whole(operation, sizeof operation, own);
        ddl__health_end(h, DDL_EPEER,
                        "%s left the comm after operation %u; %s called %s as operation %u",
                        h->names[rank], last, h->names[h->rank], operation, sequence_of(own));
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------ last operations */

/* Find this rank's operation of this sequence, if it is still recorded; `last` is this rank's last
 * operation. */
static bool find_own(const ddl__health *h, const ddl__record *last, uint32_t sequence,
                     ddl__record *own)
{
    uint32_t since = sequence_of(&last->signature) - sequence;
    *own = *last;
    return since == 0 || (since < DDL__RECORDS &&
                          ddl__record_find(ddl__engine_recorder(h->engine), sequence, own));
}

bool ddl__operations_compare_last(ddl__health *h, char text[DDL__MESSAGE_MAX])
{
    ddl__record last, own;
    if (ddl__engine_snapshot(h->engine).status != DDL_OK ||
        !ddl__record_last(ddl__engine_recorder(h->engine), &last))
        return false;
    for (int rank = 0; rank < h->size; rank++) {
        const ddl__member *member = &h->members[rank];
        const ddl__signature *theirs = &member->position.last;
        if (rank == h->rank || !theirs->words[0] ||
            !find_own(h, &last, sequence_of(theirs), &own) ||
            ddl__signatures_agree(&own.signature, theirs))
            continue;
        char their_call[DDL__CALL_MAX], own_call[DDL__CALL_MAX];
        ddl__signature called = *theirs;
        ddl__name_wires(&called, &own.signature);
        ddl__describe_whole(their_call, sizeof their_call, &called);
        ddl__describe_whole(own_call, sizeof own_call, &own.signature);
        snprintf(text, DDL__MESSAGE_MAX, "%s called %s as operation %u; %s called %s",
                 h->names[rank], their_call, sequence_of(theirs), h->names[h->rank], own_call);
        return true;
    }
    return false;
}

/* Describe the first operation that rank `more` has called and rank `less` has not. */
static void describe_surplus(const ddl__health *h, int more, const ddl__signature *called, int less,
                             uint32_t last, char text[DDL__MESSAGE_MAX])
{
    char call[DDL__CALL_MAX];
    ddl__describe_whole(call, sizeof call, called);
    snprintf(text, DDL__MESSAGE_MAX,
             "%s called %s as operation %u; the last operation of %s is number %u", h->names[more],
             call, sequence_of(called), h->names[less], last);
}

bool ddl__operations_compare_numbers(ddl__health *h, char text[DDL__MESSAGE_MAX])
{
    ddl__record last, surplus;
    if (ddl__engine_snapshot(h->engine).status != DDL_OK ||
        !ddl__record_last(ddl__engine_recorder(h->engine), &last) || !last.ended ||
        last.status != DDL_OK)
        return false;
    uint32_t own = sequence_of(&last.signature);
    for (int rank = 0; rank < h->size; rank++) {
        const ddl__position *position = &h->members[rank].position;
        uint32_t theirs = sequence_of(&position->last);
        bool fine =
            h->members[rank].peer->state == DDL__ALIVE || h->members[rank].peer->state == DDL__LEFT;
        if (rank == h->rank || !position->last.words[0] || !fine)
            continue;
        if (h->members[rank].peer->state == DDL__LEFT && sequence_before(theirs, own) &&
            find_own(h, &last, theirs + 1, &surplus)) {
            describe_surplus(h, h->rank, &surplus.signature, rank, theirs, text);
            return true;
        }
        if (position->ended == DDL__ENDED_OK && sequence_before(own, theirs)) {
            describe_surplus(h, rank, &position->last, h->rank, own, text);
            return true;
        }
    }
    return false;
}

/* --------------------------------------------------------------------------------------- stalls */

bool ddl__member_is_late(const ddl__health *h, int rank, const ddl__signature *own)
{
    const ddl__member *member = &h->members[rank];
    return rank != h->rank && member->peer->state == DDL__ALIVE &&
           ddl__position_is_known(h, rank) &&
           sequence_before(sequence_of(&member->position.last), sequence_of(own));
}

typedef struct lateness {
    const ddl__health *health;
    const ddl__signature *own;
    int64_t since; /* time when the operation started */
} lateness;

static bool is_late_rank(const void *context, int rank)
{
    const lateness *l = context;
    return ddl__member_is_late(l->health, rank, l->own);
}

/* Describe the last operations of the late ranks, as far as there is room. */
static void describe_late(const lateness *l, char *text, size_t size)
{
    size_t at = 0;
    text[0] = 0;
    for (int rank = 0; rank < l->health->size && at + 1 < size; rank++) {
        const ddl__position *position = &l->health->members[rank].position;
        if (!is_late_rank(l, rank))
            continue;
        char operation[DDL__CALL_MAX];
        ddl__describe_whole(operation, sizeof operation, &position->last);
        at += (size_t)snprintf(text + at, size - at, "; %s %s %s as operation %u",
                               l->health->names[rank], position->ended ? "has completed" : "is in",
                               operation, sequence_of(&position->last));
    }
}

static void warn_stalled(const ddl__health *h, const ddl__record *record, int64_t now)
{
    lateness late = {h, &record->signature, 0};
    char ranks[200], what[600], operation[DDL__CALL_MAX];
    int n = ddl__list_ranks(ranks, sizeof ranks, h->size, is_late_rank, &late);
    describe_late(&late, what, sizeof what);
    ddl__describe_whole(operation, sizeof operation, &record->signature);
    ddl__log(DDL__WARN, "%s: %s as operation %u has waited for %.1f s: %s%s%s", h->names[h->rank],
             operation, sequence_of(late.own), (double)(now - record->started) * 1e-9,
             n                       ? "not called by "
             : h->membership->n_late ? "no rank is known to be late"
                                     : "all ranks have called it",
             n ? ranks : "", what);
}

/* Return true if the member is late, and its position was received after this rank's operation
 * started. */
static bool is_missing_since(const void *context, int rank)
{
    const lateness *l = context;
    return is_late_rank(l, rank) && l->health->members[rank].position_at > l->since;
}

void ddl__operations_explain(void *health, const ddl__signature *operation, const char *name,
                             char *text, size_t size)
{
    ddl__health *h = health;
    ddl__record record;
    char ranks[200], what[300];
    pthread_mutex_lock(&h->detector->lock);
    if (!operation) {
        ddl__names_explain(h, name, text, size);
    } else if (ddl__record_find(ddl__engine_recorder(h->engine), sequence_of(operation), &record)) {
        lateness late = {h, operation, record.started};
        if (ddl__list_ranks(ranks, sizeof ranks, h->size, is_missing_since, &late)) {
            describe_late(&late, what, sizeof what);
            snprintf(text, size, ": not called by %s%s", ranks, what);
        }
    }
    pthread_mutex_unlock(&h->detector->lock);
}

void ddl__operations_check(ddl__health *h, int64_t now)
{
    ddl__record record;
    ddl__stall *stall = &h->stall;
    char difference[DDL__MESSAGE_MAX];
    if (ddl__operations_compare_last(h, difference)) {
        ddl__health_end(h, DDL_EMISMATCH, "%s", difference);
        return;
    }
    if (h->membership->announced || !ddl__record_last(ddl__engine_recorder(h->engine), &record) ||
        record.ended || now - record.started < DDL__LEFT_AFTER || find_leaver(h, &record.signature))
        return;
    if (stall->number != record.number + 1)
        *stall = (ddl__stall){.number = record.number + 1};
    int64_t waited = now - record.started;
    if (waited >= h->limits.stall && !stall->warned) {
        stall->warned = true;
        warn_stalled(h, &record, now);
    }
    if (waited < DDL__ASK_AFTER)
        return;
    question q = {.health = h, .own = record.signature};
    if (!stall->asked_at || now - stall->asked_at >= DDL__ASK_AFTER) {
        uint32_t sequence = sequence_of(&record.signature);
        if (stall->asked_at)
            find_nothing_coming(h, &q);
        for (int rank = 0; rank < h->size; rank++)
            h->members[rank].answer.stage = 0;
        stall->asked_at = now;
        ddl__health_broadcast(h, DDL__ASK, &sequence, sizeof sequence);
    } else if (now - stall->asked_at >= DDL__ANSWER_LIMIT) {
        find_difference(h, &q);
    }
}
