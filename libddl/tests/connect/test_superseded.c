/* SPDX-License-Identifier: Apache-2.0 */
/* A member that is at an earlier creation of a comm than others begins again, and the creation of
 * the others succeeds, wherever the news reaches it. The ranks are stopped at points of the wireup,
 * so that each test has one order of events. */
#include "base/test_points.h"
#include "connect/wireup/wireup_state.h"
#include "membership/creation.h"
#include "processes.h"

enum { SIZE = 3, HURRIED_MS = 100, AT_LEAST_MS = 20000 };

/* What ranks wait for. */
typedef enum step {
    LEADER_STARTED,
    FIRST_SUPERSEDED,
    HELLO_WAITS,
    FIRST_ENDED,
    HELLO_SENT,
    ANSWERED,
    REFUSED,
    LOSS_NOTICED,
    CALL_ENDED,
    STEPS
} step;

/* The points of a creation at which a member gives up. */
typedef enum place { BEFORE_WIREUP, BEFORE_DIAL, ADMITTED, BEFORE_ANSWER, CONNECTED, POINTS } place;

typedef enum schedule { FREE, UNANSWERED, CROSSED, LATE, FAILS, GIVES_UP } schedule;

static atomic_int *reached; /* by step: shared by all processes */
static schedule now;        /* of this process */
static int self, gives_up;  /* this rank; the rank that gives up */
static place at;            /* the point at which it gives up */
static atomic_bool has_answered;
static const ddl__wireup *wireup; /* of the present creation */

static void reach(step s)
{
    atomic_store(&reached[s], 1);
}

static void await_step(step s)
{
    CHECK(await_count(&reached[s], 1), "rank %d waited in vain for step %d", self, (int)s);
}

/* Delay the member that gives up if this is its point. */
static void pass(place p)
{
    if (now == GIVES_UP && self == gives_up && p == at) {
        now = FREE;
        usleep(2 * HURRIED_MS * 1000);
    }
}

static void at_wireup(const ddl__wireup *w)
{
    wireup = w;
    pass(BEFORE_WIREUP);
    if (now == UNANSWERED && self == 0)
        reach(LEADER_STARTED);
    if (now == UNANSWERED && self == 1 && w->id.number == 1)
        await_step(FIRST_SUPERSEDED);
    if (now == CROSSED && self == 2 && w->id.number == 2)
        await_step(LOSS_NOTICED);
    if (now == FAILS && self == 2)
        await_step(ANSWERED);
    if (now == LATE && self > 0 && w->id.number == 1)
        await_step(FIRST_SUPERSEDED);
}

static void at_hello(const ddl__hello *hello)
{
    pass(BEFORE_DIAL);
    if (now == UNANSWERED && self == 2 && hello->to == 1)
        await_step(FIRST_ENDED);
    if (now == CROSSED && self == 1 && hello->creation == 1) {
        await_step(HELLO_SENT);
        for (double end = seconds() + 20; !atomic_load(&reached[ANSWERED]) && seconds() < end;)
            ddl__wireup_accept_waiting(wireup); /* as while it connects */
        await_step(REFUSED);
    }
}

static ddl_status when_admitted(void)
{
    if ((now == UNANSWERED || now == LATE) && self == 1)
        reach(HELLO_WAITS);
    pass(ADMITTED);
    if (now != FAILS || self != 1)
        return DDL_OK;
    await_step(ANSWERED);
    return ddl__fail(DDL_ENOMEM, "no memory in a test");
}

static void at_accept(void)
{
    if (has_answered) /* and the answer was sent */
        reach(ANSWERED);
    if (now == CROSSED && self == 0 && atomic_load(&reached[REFUSED]))
        await_step(LOSS_NOTICED);
}

static void at_answer(const ddl__hello *answer)
{
    if (answer->status == DDL_OK)
        pass(BEFORE_ANSWER);
    if (answer->status == DDL_OK && ((now == CROSSED && self == 1) || (now == FAILS && self == 0)))
        has_answered = true;
    if (answer->status != DDL_OK && now == CROSSED && self == 0)
        reach(REFUSED);
}

static void at_failure(ddl_status status)
{
    if (now == UNANSWERED && self == 0 && wireup->id.number == 1) {
        CHECK(status == DDL__SUPERSEDED, "%d: %s", status, ddl_last_error());
        reach(FIRST_SUPERSEDED);
        await_step(HELLO_WAITS);
    }
    if (now == UNANSWERED && self == 1)
        reach(FIRST_ENDED);
    if (now == CROSSED && self == 1)
        reach(LOSS_NOTICED);
    if (now == LATE && self == 0 && status == DDL_ETIMEDOUT) {
        reach(FIRST_SUPERSEDED);
        await_step(HELLO_WAITS);
    }
}

static ddl_status follow_schedule(ddl__test_point point, const void *subject)
{
    if (point == DDL__AT_WIREUP)
        at_wireup(subject);
    else if (point == DDL__AT_ENGINE)
        pass(CONNECTED);
    else if (point == DDL__AT_HELLO)
        at_hello(subject);
    else if (point == DDL__HELLO_SENT && now == CROSSED && self == 2 &&
             ((const ddl__hello *)subject)->to == 1)
        reach(HELLO_SENT);
    else if (point == DDL__ADMITTED)
        return when_admitted();
    else if (point == DDL__AT_ACCEPT)
        at_accept();
    else if (point == DDL__AT_ANSWER)
        at_answer(subject);
    else if (point == DDL__AT_SUPERSEDED && now == CROSSED && self == 2)
        await_step(ANSWERED);
    else if (point == DDL__AT_REASON && now == CROSSED && self == 1)
        reach(LOSS_NOTICED);
    else if (point == DDL__AT_FAILURE)
        at_failure(*(const ddl_status *)subject);
    return DDL_OK;
}

static void check_child(ddl_comm *child)
{
    int32_t one = 1;
    OK(ddl_allreduce(child, &one, &one, 1, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(one == SIZE, "%d of %d ranks", one, SIZE);
    OK(ddl_barrier(child, NULL, NULL));
    ddl_comm_destroy(child);
}

/* Rank `early` has given up a creation, so it is at the second one. All others are at the first
 * one, and join the second one. */
static void run_schedule(ddl_comm *comm, schedule which, int early)
{
    ddl_comm *child = NULL;
    ddl_comm_config hurried = {.struct_size = sizeof hurried, .timeout_ms = HURRIED_MS};
    ddl_comm_config patient = {.struct_size = sizeof patient, .timeout_ms = AT_LEAST_MS};
    self = ddl_comm_rank(comm);
    ddl_status status = self == early ? ddl_comm_duplicate(comm, &hurried, &child) : DDL_ETIMEDOUT;
    CHECK(status == DDL_ETIMEDOUT, "%d: %s", status, ddl_last_error());
    start_together(comm);
    now = which;
    if (which == UNANSWERED && self == early)
        await_step(LEADER_STARTED);
    OK(ddl_comm_duplicate(comm, &patient, &child));
    now = FREE;
    check_child(child);
    ddl_comm_destroy(comm);
}

/* Rank 0 is superseded while rank 1, which does not know this, waits for its answer. */
static void unanswered_member(ddl_comm *comm)
{
    run_schedule(comm, UNANSWERED, 2);
}

/* Rank 2 is superseded, and gives up its connection with rank 1, whose answer is on its way. */
static void crossed_answer(ddl_comm *comm)
{
    run_schedule(comm, CROSSED, 0);
}

/* Rank 0 gives up while rank 1 waits for its answer. Rank 1 joins the next attempt of rank 0. */
static void late_with_unanswered_member(ddl_comm *comm)
{
    ddl_comm *child = NULL;
    ddl_comm_config hurried = {.struct_size = sizeof hurried, .timeout_ms = HURRIED_MS};
    ddl_comm_config patient = {.struct_size = sizeof patient, .timeout_ms = AT_LEAST_MS};
    self = ddl_comm_rank(comm);
    start_together(comm);
    now = LATE;
    ddl_status status = self ? DDL_ETIMEDOUT : ddl_comm_duplicate(comm, &hurried, &child);
    CHECK(status == DDL_ETIMEDOUT, "%d: %s", status, ddl_last_error());
    OK(ddl_comm_duplicate(comm, &patient, &child));
    now = FREE;
    check_child(child);
    ddl_comm_destroy(comm);
}

/* Rank 0 gives up and destroys the parent, but its process continues. It never answers the others,
 * whose calls end before their limit. */
static void late_one_destroys_parent(ddl_comm *comm)
{
    ddl_comm *child = NULL;
    ddl_comm_config hurried = {.struct_size = sizeof hurried, .timeout_ms = HURRIED_MS};
    ddl_comm_config patient = {.struct_size = sizeof patient, .timeout_ms = AT_LEAST_MS};
    self = ddl_comm_rank(comm);
    start_together(comm);
    now = LATE;
    ddl_status status = ddl_comm_duplicate(comm, self ? &patient : &hurried, &child);
    CHECK(status == (self ? DDL_EPEER : DDL_ETIMEDOUT), "rank %d: %d: %s", self, status,
          ddl_last_error());
    ddl_comm_destroy(comm);
    atomic_fetch_add(&reached[CALL_ENDED], self > 0);
    CHECK(await_count(&reached[CALL_ENDED], SIZE - 1), "rank %d waited in vain", self);
}

/* Rank 1 fails for its own reason while rank 0's answer is on its way. Rank 0 is then connected to
 * all, but still finds the reason, or that rank 1 has called again: no call fails as if a member
 * had died. */
static void failed_after_answer(ddl_comm *comm)
{
    ddl_comm *child = NULL;
    self = ddl_comm_rank(comm);
    start_together(comm);
    now = FAILS;
    ddl_status status = ddl_comm_duplicate(comm, NULL, &child);
    now = FREE;
    has_answered = false;
    CHECK(status == DDL_ENOMEM || (self != 1 && status == DDL_OK), "rank %d: %d: %s", self, status,
          ddl_last_error());
    if (status != DDL_OK)
        OK(ddl_comm_duplicate(comm, NULL, &child));
    check_child(child);
    ddl_comm_destroy(comm);
}

/* A limit has run out: while the members connect, or in an operation of the creation. */
static bool is_late(ddl_status status)
{
    return status == DDL_ETIMEDOUT || status == DDL_EEXPIRED;
}

/* One rank's limit runs out at a point of the creation, while the others continue. All repeat the
 * call until they have the same child. */
static void give_up_at(ddl_comm *comm, int rank, place p)
{
    ddl_comm *child = NULL;
    ddl_comm_config hurried = {.struct_size = sizeof hurried, .timeout_ms = HURRIED_MS};
    ddl_comm_config patient = {.struct_size = sizeof patient, .timeout_ms = AT_LEAST_MS};
    OK(ddl_barrier(comm, NULL, NULL));
    double start = seconds();
    gives_up = rank;
    at = p;
    now = GIVES_UP;
    ddl_status status = ddl_comm_duplicate(comm, self == rank ? &hurried : &patient, &child);
    now = FREE;
    while (is_late(status) && seconds() < start + 10)
        status = ddl_comm_duplicate(comm, &patient, &child);
    OK(status);
    check_child(child);
}

static void gives_up_anywhere(ddl_comm *comm)
{
    self = ddl_comm_rank(comm);
    start_together(comm);
    for (int rank = 0; rank < SIZE; rank++)
        for (place p = BEFORE_WIREUP; p < POINTS; p++)
            give_up_at(comm, rank, p);
    ddl_comm_destroy(comm);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {
        {"unanswered_member", unanswered_member, 0},
        {"crossed_answer", crossed_answer, 0},
        {"late_with_unanswered", late_with_unanswered_member, 0},
        {"late_one_destroys_parent", late_one_destroys_parent, 0},
        {"failed_after_answer", failed_after_answer, 0},
        {"gives_up_anywhere", gives_up_anywhere, 0},
    };
    reached = map_per_run(STEPS * sizeof *reached);
    ddl__test_hook = follow_schedule;
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
