/* SPDX-License-Identifier: Apache-2.0 */
/* opening_links.h - a member dies, or is dead, while a pair opens its link; for the tests of links
 * that are opened on first use. The test defines before: SIZE, VICTIM, and DIAL, the test point at
 * which the connection is dialed. Ranks are processes. */
#ifndef DDL_TESTS_OPENING_LINKS_H
#define DDL_TESTS_OPENING_LINKS_H

#include <errno.h>

#include "base/test_points.h"
#include "connect/wireup/wireup_state.h"
#include "processes.h"
#include "survivors.h"

static atomic_int *arrived; /* for reach_step */
static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 40000};

/* The moment at which this process dies, or fails, while a link is being opened. */
typedef enum moment {
    NEVER,
    BEFORE_DIALING,
    AFTER_DIALING,
    BEFORE_ANSWERING,
    AFTER_ANSWERING,
    CANNOT_DIAL,
    AFTER_LEAVING
} moment;
static atomic_int dies;

static void die_at(moment at)
{
    if (atomic_load(&dies) == (int)at)
        raise(SIGKILL);
}

static ddl_status disturb_opening(ddl__test_point point, const void *subject)
{
    const ddl__hello *hello = subject;
    if (point == DDL__HELLO_SENT)
        die_at(AFTER_DIALING);
    if (point == DDL__AT_ANSWER)
        die_at(BEFORE_ANSWERING);
    if (point == DDL__AT_OPENING)
        die_at(AFTER_ANSWERING);
    if (point == DDL__AT_ENGINE_END)
        die_at(AFTER_LEAVING);
    if (point != (ddl__test_point)DIAL)
        return DDL_OK;
    die_at(BEFORE_DIALING);
    if (atomic_load(&dies) != CANNOT_DIAL || hello->kind == DDL__CONN_CONTROL)
        return DDL_OK;
    errno = EHOSTUNREACH;
    return ddl__fail(DDL_EUNREACHABLE, "no way");
}

/* Pass the `n`th barrier of `size` ranks, without libddl. */
static void reach_step(int n, int size)
{
    double end = seconds() + 40;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < n * size) {
        CHECK(seconds() < end, "not all come");
        usleep(200);
    }
}

static void exchange(ddl_comm *comm, int peer)
{
    int32_t out = ddl_comm_rank(comm), in = -1;
    ddl_work *sending;
    OK(ddl_send(comm, &out, 1, DDL_I32, peer, 0, NULL, &sending));
    OK(ddl_recv(comm, &in, 1, DDL_I32, peer, 0, NULL, NULL, NULL));
    OK(ddl_work_wait(sending, -1));
    CHECK(in == peer, "%d from %d", in, peer);
}

/* Return the victim's name in errors. */
static const char *victim_name(void)
{
    static char name[24];
    snprintf(name, sizeof name, "rank %d on ", VICTIM);
    return name;
}

/* The victim dies while it opens its link with rank 0, or rank 0 with it. All others learn which
 * rank has died, and continue. */
static void dies_opening(ddl_comm *comm, moment at, bool victim_dials)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = 0;
    ddl_comm *next;
    reach_step(1, SIZE);
    if (rank == VICTIM)
        atomic_store(&dies, (int)at);
    reach_step(2, SIZE);
    if (rank == VICTIM && victim_dials)
        ddl_send(comm, &word, 1, DDL_I32, 0, 0, NULL, NULL);
    if (rank == VICTIM)
        pause();
    ddl_status status = DDL_OK;
    if (rank == 0 && !victim_dials)
        status = ddl_send(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL);
    if (rank == 0 && status == DDL_OK)
        status = ddl_recv(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL, NULL);
    if (rank != 0)
        status = ddl_barrier(comm, NULL, NULL);
    REFUSED(status, DDL_EPEER, victim_name());
    OK(ddl_comm_shrink(comm, &config, &next));
    if (ddl_comm_rank(next) < 2)
        exchange(next, 1 - ddl_comm_rank(next));
    OK(ddl_barrier(next, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_comm_destroy(next);
}

static void dies_before_dialing(ddl_comm *comm)
{
    dies_opening(comm, BEFORE_DIALING, true);
}

static void dies_after_dialing(ddl_comm *comm)
{
    dies_opening(comm, AFTER_DIALING, true);
}

static void dies_before_answering(ddl_comm *comm)
{
    dies_opening(comm, BEFORE_ANSWERING, false);
}

static void dies_after_answering(ddl_comm *comm)
{
    dies_opening(comm, AFTER_ANSWERING, false);
}

/* A member is dead or stopped when its link is first used. */
static void absent(ddl_comm *comm, int signal, const char *said)
{
    int rank = ddl_comm_rank(comm);
    int32_t word = 0;
    reach_step(1, SIZE);
    if (rank == VICTIM && signal)
        raise(signal);
    if (rank == VICTIM) {
        ddl_comm_destroy(comm);
        return;
    }
    ddl_status status = ddl_recv(comm, &word, 1, DDL_I32, VICTIM, 0, NULL, NULL, NULL);
    CHECK(status == DDL_EPEER && strstr(ddl_last_error(), victim_name()) &&
              strstr(ddl_last_error(), said),
          "rank %d: %d %s", rank, status, ddl_last_error());
    ddl_comm_destroy(comm);
}

static void is_killed(ddl_comm *comm)
{
    absent(comm, SIGKILL, "");
}

static void leaves(ddl_comm *comm)
{
    absent(comm, 0, "left the comm");
}

#endif
