/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out random schedules of the explorer (explore/model.h) with a process for each member,
 * and compares the state of each process with the model.
 *
 *     explore_real shm|tcp N FAULTS SCHEDULES [SEED]
 *
 * Schedules with launchers are left out. A network is cut only for control connections: their
 * messages are not handled. With shared memory all members are on one host, with TCP each member
 * has its own host. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "explore/real/rank.h"
#include "support/check.h"

enum { STEPS = 2000, REPORT_TRIES = 400 };

static const unsigned KINDS =
    1u << KILL | 1u << CUT | 1u << STOP | 1u << ABORT | 1u << EXPEL | 1u << LEAVE | 1u << LATE;

static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

typedef struct member {
    pid_t pid;
    int fd;
    bool is_stopped, has_left;
    bool has_joined; /* it has joined a creation that the schedule has not ended yet */
} member;

/* One schedule that is being carried out. */
typedef struct run {
    model m;
    world *w;
    bool tcp;
    member members[RANKS_MAX];
    event events[STEPS];
    int n;
    bool has_fault_in_creation;
    char why[300]; /* a difference from the model; "": none */
} run;

static void start(run *r)
{
    rank_address addresses[RANKS_MAX];
    size_t bytes = (size_t)r->m.n * sizeof *addresses;
    fflush(NULL);
    for (int rank = 0; rank < r->m.n; rank++) {
        int fds[2];
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds), "no socket");
        pid_t pid = fork();
        CHECK(pid >= 0, "no process");
        if (!pid) {
            for (int b = 0; b < rank; b++)
                close(r->members[b].fd);
            close(fds[0]);
            run_rank(rank, r->m.n, r->tcp ? DDL_LINK_TCP : DDL_LINK_SHM, fds[1]);
        }
        close(fds[1]);
        r->members[rank] = (member){.pid = pid, .fd = fds[0]};
    }
    for (int rank = 0; rank < r->m.n; rank++)
        CHECK(recv(r->members[rank].fd, &addresses[rank], sizeof *addresses, MSG_WAITALL) ==
                  sizeof *addresses,
              "rank %d has not started", rank);
    for (int rank = 0; rank < r->m.n; rank++)
        CHECK(send(r->members[rank].fd, addresses, bytes, 0) == (ssize_t)bytes,
              "rank %d has not started", rank);
    reply ready;
    for (int rank = 0; rank < r->m.n; rank++)
        CHECK(recv(r->members[rank].fd, &ready, sizeof ready, MSG_WAITALL) == sizeof ready,
              "rank %d has not started", rank);
}

static void end_process(member *p)
{
    if (!p->pid)
        return;
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    close(p->fd);
    p->pid = 0;
}

/* True if the process can receive orders. */
static bool is_here(const run *r, int rank)
{
    return r->members[rank].pid && !r->members[rank].is_stopped && !r->members[rank].has_left;
}

static reply ask(run *r, int rank, order what, int value)
{
    request q = {(int)what, value};
    reply a;
    memset(&a, 0, sizeof a);
    int fd = r->members[rank].fd;
    if (send(fd, &q, sizeof q, MSG_NOSIGNAL) != sizeof q ||
        recv(fd, &a, sizeof a, MSG_WAITALL) != sizeof a)
        snprintf(r->why, sizeof r->why, "the process of rank %d has ended", rank);
    return a;
}

static void require(run *r, int rank, order what, int value)
{
    reply a = ask(r, rank, what, value);
    if (!a.ok && !r->why[0])
        snprintf(r->why, sizeof r->why, "rank %d did not carry out order %d %d: %d", rank,
                 (int)what, value, a.value);
}

/* Deliver a member's next message, which must be the same as in the model. */
static void deliver(run *r, int to, int from)
{
    int kind = world_next_kind(&r->m, r->w, to, from);
    reply a = ask(r, to, DO_DELIVER, from);
    if (a.value != kind && !r->why[0])
        snprintf(r->why, sizeof r->why, "rank %d received message %d of rank %d, not %d", to,
                 a.value, from, kind);
}

/* Stop a process, or let it continue. */
static void set_stopped(run *r, int rank, bool stopped)
{
    member *p = &r->members[rank];
    int status;
    if (!p->pid || p->is_stopped == stopped)
        return;
    kill(p->pid, stopped ? SIGSTOP : SIGCONT);
    waitpid(p->pid, &status, stopped ? WUNTRACED : WCONTINUED);
    p->is_stopped = stopped;
}

/* Send an order to a process that may be stopped. */
static void require_of_stopped(run *r, int rank, order what, int value)
{
    bool was_stopped = r->members[rank].is_stopped;
    set_stopped(r, rank, false);
    if (is_here(r, rank))
        require(r, rank, what, value);
    set_stopped(r, rank, was_stopped);
}

/* Reset the connections between all members of two hosts. */
static void reset(run *r, event e)
{
    for (int a = 0; a < r->m.n; a++)
        for (int b = 0; b < r->m.n; b++)
            if (r->m.host[a] == r->m.host[e.a] && r->m.host[b] == r->m.host[e.b]) {
                require_of_stopped(r, a, DO_RESET, b);
                require_of_stopped(r, b, DO_RESET, a);
            }
}

static void end(run *r, event e)
{
    for (int b = 0; b < r->m.n; b++) /* only the schedule may lose messages */
        if (is_here(r, b))
            require(r, b, DO_DRAIN, 0);
    end_process(&r->members[e.a]);
    for (int b = 0; b < r->m.n && e.flag && r->tcp; b++)
        require_of_stopped(r, b, DO_LOSE, e.a);
}

/* True if none of these members is stopped in its creation. */
static bool are_here(const run *r, uint64_t list)
{
    for (int b = 0; b < r->m.n; b++)
        if (list >> b & 1 && r->members[b].is_stopped && !r->members[b].has_joined)
            return false;
    return true;
}

/* If all members of a list create the next comm, wait until all of them have succeeded. */
static void await_joins(run *r)
{
    for (int a = 0; a < r->m.n && !r->why[0]; a++) {
        member_view view = world_view(&r->m, r->w, a);
        if (view.creates && view.may_create && !r->members[a].has_joined && is_here(r, a) &&
            are_here(r, view.list)) {
            require(r, a, DO_AWAIT_JOIN, 0);
            r->members[a].has_joined = true;
        }
    }
}

static bool is_creating(const run *r)
{
    for (int a = 0; a < r->m.n; a++)
        if (world_view(&r->m, r->w, a).creates)
            return true;
    return false;
}

static void carry_out(run *r, event e)
{
    r->has_fault_in_creation = r->has_fault_in_creation || (e.type >= NATURAL && is_creating(r));
    switch ((event_type)e.type) {
    case DELIVER: deliver(r, e.a, e.b); break;
    case ADVANCE: require(r, e.a, DO_ADVANCE, 0); break;
    case SHRINK: require(r, e.a, DO_SHRINK, 0); break;
    case CREATED:
    case UNCREATED:
        require(r, e.a, e.type == CREATED ? DO_CREATED : DO_UNCREATED, 0);
        r->members[e.a].has_joined = false;
        break;
    case GRACE: require(r, e.a, DO_GRACE, 0); break;
    case WAIT: require(r, e.a, DO_WAIT, 0); break;
    case SILENCE: require(r, e.a, DO_SILENCE, e.b); break;
    case KILL: end(r, e); break;
    case ABORT: require(r, e.a, DO_ABORT, 0); break;
    case EXPEL: require(r, e.a, DO_EXPEL, e.b); break;
    case STOP:
    case RESUME: set_stopped(r, e.a, e.type == STOP); break;
    case LEAVE:
        require(r, e.a, DO_LEAVE, 0);
        r->members[e.a].has_left = true;
        break;
    case LATE: require(r, e.a, DO_LATE, 0); break;
    case CUT:
        if (e.flag)
            reset(r, e);
        break;
    case HEAL: break; /* only the model knows what was cut */
    case CLOSE:
    case WITNESS:
    case BELIEVE:
    case DIAL:
    case MISS:
    case UNREACHED:
    case TYPES: snprintf(r->why, sizeof r->why, "event %d cannot be carried out", e.type); break;
    }
}

/* Compare a process's report with the model, and describe a difference in r->why. */
static void compare(run *r, int rank)
{
    member_view want = world_view(&r->m, r->w, rank);
    reply have = {0};
    bool same = false;
    for (int i = 0; i < REPORT_TRIES && !same; i++) {
        have = ask(r, rank, DO_REPORT, 0);
        same = have.ok && have.phase == (int)want.phase && have.has_ended == want.ended &&
               (want.phase != HAS_RETURNED || have.list == want.list) &&
               !memcmp(have.states, want.states, (size_t)r->m.n);
    }
    if (same || r->why[0])
        return;
    int n = snprintf(r->why, sizeof r->why,
                     "rank %d: phase %d, failed %d, list %llx, not %d %d %llx; states", rank,
                     have.phase, have.has_ended, (unsigned long long)have.list, (int)want.phase,
                     want.ended, (unsigned long long)want.list);
    for (int b = 0; b < r->m.n; b++)
        n += snprintf(r->why + n, sizeof r->why - (size_t)n, " %d (not %d)", have.states[b],
                      want.states[b]);
}

/* True if the event is not possible with real processes: a creation succeeds only after all members
 * have created the comm, so not while one is stopped. */
static bool is_left_out(const run *r, event e)
{
    return e.type == CLOSE || e.type == UNREACHED ||
           (e.type == CREATED && !r->members[e.a].has_joined);
}

/* Choose the next event: sometimes a fault, mostly during the creation of the next comm. */
static bool choose(run *r, uint64_t *seed, unsigned rare, event *chosen)
{
    static event events[EVENTS];
    bool faults = r->n == 0 || next_random(seed) % (is_creating(r) ? 3 : rare) == 0;
    int n = world_events(&r->m, r->w, events, faults), kept = 0;
    for (int i = 0; i < n; i++)
        if (!is_left_out(r, events[i]))
            events[kept++] = events[i];
    int first = 0;
    while (faults && first < kept && events[first].type < NATURAL)
        first++;
    first = first == kept ? 0 : first;
    if (kept)
        *chosen = events[first + (int)(next_random(seed) % (uint64_t)(kept - first))];
    return kept;
}

static void carry_out_schedule(run *r, uint64_t seed)
{
    unsigned rare = 4 + (unsigned)(next_random(&seed) % 40);
    event e;
    const char *broken = NULL;
    world_init(&r->m, r->w);
    r->n = 0;
    r->why[0] = 0;
    r->has_fault_in_creation = false;
    start(r);
    while (r->n < STEPS && !r->why[0] && !broken && choose(r, &seed, rare, &e)) {
        r->events[r->n++] = e;
        carry_out(r, e);
        broken = world_apply(&r->m, r->w, e);
        await_joins(r);
    }
    if (broken)
        snprintf(r->why, sizeof r->why, "the model: %s", broken);
    for (int rank = 0; rank < r->m.n && !r->why[0]; rank++) {
        set_stopped(r, rank, false);
        if (is_here(r, rank))
            compare(r, rank);
    }
    for (int rank = 0; rank < r->m.n; rank++)
        end_process(&r->members[rank]);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: explore_real shm|tcp N FAULTS SCHEDULES [SEED]\n");
        return 2;
    }
    run *r = calloc(1, sizeof *r);
    CHECK(r, "no memory");
    r->tcp = !strcmp(argv[1], "tcp");
    r->m = (model){
        .n = atoi(argv[2]), .faults = (unsigned)atoi(argv[3]), .kinds = KINDS, .heals = true};
    CHECK(r->m.n >= 2 && r->m.n <= RANKS_MAX, "%d members", r->m.n);
    for (int i = 0; i < r->m.n; i++)
        r->m.host[i] = (unsigned char)(r->tcp ? i : 0);
    r->w = malloc(world_bytes(&r->m));
    CHECK(r->w, "no memory");
    long schedules = atol(argv[4]), in_creation = 0, events = 0;
    uint64_t seed = argc > 5 ? strtoull(argv[5], NULL, 10) : 1;
    setenv("DDL_LOG", "off", 0);
    double begun = seconds();
    for (long i = 0; i < schedules; i++) {
        carry_out_schedule(r, seed + (uint64_t)i);
        in_creation += r->has_fault_in_creation;
        events += r->n;
        if (!r->why[0])
            continue;
        printf("seed %llu over %s: %s\n", (unsigned long long)(seed + (uint64_t)i), argv[1],
               r->why);
        for (int j = 0; j < r->n; j++)
            event_print(r->events[j]);
        world_print(&r->m, r->w);
        return 1;
    }
    printf("%ld schedules of %d members over %s: the same results; %ld with a fault during a "
           "creation, %.0f events each, %.1f s\n",
           schedules, r->m.n, argv[1], in_creation, (double)events / (double)schedules,
           seconds() - begun);
    free(r->w);
    free(r);
    return 0;
}
