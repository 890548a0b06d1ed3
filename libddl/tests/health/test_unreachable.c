/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of a survivor that creates the next comm and cannot connect to another survivor.
 * The test calls the functions of the membership directly. */
#include "base/time_limits.h"
#include "check.h"
#include "membership/state.h"

enum { SIZE = 40, SELF = 20, PEER = 7 };

static int n_lost; /* LOST about PEER, to one member */

static void record(void *context, int to, const ddl__member_msg *message)
{
    n_lost += to == 0 && message->kind == DDL__LOST && message->rank == PEER;
}

static void send_gone(void *context, int to, const int32_t *ranks, int n)
{
    (void)context, (void)to, (void)ranks, (void)n;
}

static void died(void *context, int rank, const ddl__cause *cause)
{
    (void)context, (void)rank, (void)cause;
}

static void left(void *context, int rank)
{
    (void)context, (void)rank;
}

static void watch(void *context, int rank)
{
    (void)context, (void)rank;
}

static void end(void *context, const ddl__comm_end *why)
{
    (void)context, (void)why;
}

static void continues(void *context, uint32_t attempt)
{
    (void)context, (void)attempt;
}

static bool has_late_pairs(void *context, int rank)
{
    (void)context, (void)rank;
    return true;
}

static uint64_t network(void *context, int rank)
{
    return (uint64_t)rank + 1;
}

/* A member of a sparse comm that creates the comm of all. PEER has a control connection or none. */
static ddl__membership *create(bool is_connected)
{
    static const ddl__member_ports ports = {record, send_gone, died,           left,   watch,
                                            end,    continues, has_late_pairs, network};
    ddl__membership *m = calloc(1, ddl__membership_bytes(SIZE));
    CHECK(m, "no memory");
    ddl__membership_init(m, &ports, NULL, SELF, SIZE);
    m->heartbeat = 100 * DDL__MS;
    m->dead = 3 * DDL__S;
    m->n_late = 1;
    m->attempt = 1;
    for (int rank = 0; rank < SIZE; rank++) {
        m->peers[rank].connected = rank != PEER || is_connected;
        ddl__set_add(ddl__verdict(m, SELF), rank);
    }
    m->peers[PEER].late = !is_connected;
    n_lost = 0;
    return m;
}

/* Check whether the member accuses PEER, and destroy it. */
static void check_accuses(ddl__membership *m, bool expected)
{
    const ddl__peer *peer = &m->peers[PEER];
    bool accuses = ddl__member_is_dead(m, PEER) && !peer->by_report;
    CHECK(accuses == expected, "state %d, by report %d", peer->state, peer->by_report);
    CHECK(n_lost == expected, "%d messages", n_lost);
    free(m);
}

static void test_member_without_connection(void)
{
    ddl__membership *m = create(false);
    ddl__member_cannot_connect(m, PEER, false, 0);
    check_accuses(m, true);

    m = create(false); /* PEER may be stopped */
    ddl__member_cannot_connect(m, PEER, true, 0);
    check_accuses(m, false);

    m = create(false); /* silence proves nothing */
    m->dead = INT64_MAX;
    ddl__member_cannot_connect(m, PEER, false, 0);
    check_accuses(m, false);

    m = create(false); /* PEER is not in the list */
    ddl__set_remove(ddl__verdict(m, SELF), PEER);
    ddl__member_cannot_connect(m, PEER, false, 0);
    check_accuses(m, false);
}

/* PEER counts as dead since others have lost it, but the leader keeps it. */
static void test_member_dead_by_report(void)
{
    ddl__membership *m = create(false);
    m->peers[PEER].state = DDL__SILENT;
    m->peers[PEER].by_report = true;
    CHECK(ddl__agreement_lost(m) < 0, "rank %d", ddl__agreement_lost(m));
    ddl__member_cannot_connect(m, PEER, false, 0);
    CHECK(ddl__agreement_lost(m) == PEER, "rank %d", ddl__agreement_lost(m));
    check_accuses(m, true);
}

static void test_member_with_heartbeats(void)
{
    ddl__membership *m = create(true);
    ddl__member_cannot_connect(m, PEER, true, 0);
    check_accuses(m, true);

    m = create(true); /* PEER may be stopped */
    m->peers[PEER].silent_ns = 4 * m->heartbeat;
    ddl__member_cannot_connect(m, PEER, false, 0);
    check_accuses(m, false);
}

/* Far members send heartbeats less often: not all of PEER's silence is evidence that it is stopped.
 */
static void test_member_with_few_heartbeats(void)
{
    enum { FAR_BEATS = 5 };
    ddl__membership *m = create(true);
    m->far_beats = FAR_BEATS;
    m->peers[PEER].silent_ns = 2 * FAR_BEATS * m->heartbeat;
    CHECK(ddl__member_is_far(m, PEER), "rank %d is near", PEER);
    ddl__member_cannot_connect(m, PEER, true, 0);
    check_accuses(m, true);

    m = create(true); /* PEER may have been stopped since it was dialed */
    m->far_beats = 100;
    m->peers[PEER].silent_ns = 4 * DDL__S;
    ddl__member_cannot_connect(m, PEER, true, 0);
    check_accuses(m, false);
}

int main(void)
{
    test_member_without_connection();
    test_member_dead_by_report();
    test_member_with_heartbeats();
    test_member_with_few_heartbeats();
}
