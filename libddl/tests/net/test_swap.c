/* SPDX-License-Identifier: Apache-2.0 */
/* A job grows and shrinks as planned, without a pause: the next comm is created in a thread in
 * parallel with the running one, a vote decides when all members have it, and then all use it.
 * Ranks 0 and 1 begin, rank 2 joins them, and rank 0 leaves. Ranks are processes. */
#include "processes.h"

enum {
    MOST = 3,
    PLANS = 3,
    STEPS = 200 /* steps before each plan is known, and before rank 2 joins */
};

/* The members of each plan, by the numbers of their processes. */
static const struct plan {
    int size, members[MOST];
} plans[PLANS] = {{2, {0, 1}}, {3, {0, 1, 2}}, {2, {1, 2}}};

typedef struct board {
    unsigned char addresses[MOST][DDL_ADDRESS_MAX];
    size_t lengths[MOST];
    atomic_int listed, known, steps; /* addresses; the last known plan; steps so far */
    atomic_int beside;               /* steps during a creation of a comm */
} board;

static board *b;
static int self; /* the number of this process */
static ddl_endpoint *endpoint;

static void await(const atomic_int *count, int least)
{
    for (double end = seconds() + 40; atomic_load(count) < least; usleep(500))
        CHECK(seconds() < end, "process %d waits for %d", self, least);
}

static int rank_in(int plan)
{
    for (int i = 0; i < plans[plan].size; i++)
        if (plans[plan].members[i] == self)
            return i;
    return -1;
}

static ddl_comm *create(int plan, uint32_t links)
{
    ddl_comm_config config = {
        .struct_size = sizeof config, .links = links, .epoch = (uint64_t)plan + 1};
    const void *addresses[MOST];
    size_t lengths[MOST];
    ddl_comm *comm;
    for (int i = 0; i < plans[plan].size; i++) {
        addresses[i] = b->addresses[plans[plan].members[i]];
        lengths[i] = b->lengths[plans[plan].members[i]];
    }
    OK(ddl_comm_create(endpoint, addresses, lengths, rank_in(plan), plans[plan].size, &config,
                       &comm));
    return comm;
}

/* The creation of the next comm, in a thread. */
typedef struct creation {
    pthread_t thread;
    int plan; /* 0: no creation is in progress */
    uint32_t links;
    ddl_comm *comm;
    atomic_bool ready;
} creation;

static void *run_creation(void *argument)
{
    creation *c = argument;
    c->comm = create(c->plan, c->links);
    atomic_store(&c->ready, true);
    return NULL;
}

/* Start the creation. A rank that is not in the next comm has nothing to create. */
static void begin_creation(creation *c, int plan)
{
    c->plan = plan;
    c->comm = NULL;
    atomic_store(&c->ready, rank_in(plan) < 0);
    if (rank_in(plan) >= 0)
        CHECK(!pthread_create(&c->thread, NULL, run_creation, c), "thread");
}

static void make_step(ddl_comm *comm, int plan, int64_t step)
{
    int64_t sum = (self + 1) * step, want = 0;
    for (int i = 0; i < plans[plan].size; i++)
        want += (plans[plan].members[i] + 1) * step;
    OK(ddl_allreduce(comm, NULL, &sum, 1, DDL_I64, DDL_SUM, NULL, NULL));
    CHECK(sum == want, "step %lld: %lld instead of %lld", (long long)step, (long long)sum,
          (long long)want);
}

static bool vote(ddl_comm *comm, bool ready)
{
    int32_t all = ready;
    OK(ddl_allreduce(comm, NULL, &all, 1, DDL_I32, DDL_MIN, NULL, NULL));
    return all;
}

/* Step until the next plan is in force. Return its comm, or NULL if this process is not in it. */
static ddl_comm *step_until_next(ddl_comm *comm, int plan, int64_t *step, uint32_t links)
{
    creation next = {.links = links};
    for (int made = 0;; made++) {
        make_step(comm, plan, ++*step);
        if (self == 1) {
            atomic_store(&b->steps, (int)*step);
            if (made == STEPS)
                atomic_store(&b->known, plan + 1);
        }
        if (!next.plan && atomic_load(&b->known) > plan)
            begin_creation(&next, plan + 1);
        if (next.plan && self == 1)
            atomic_fetch_add(&b->beside, !atomic_load(&next.ready));
        if (vote(comm, next.plan && atomic_load(&next.ready)))
            break;
    }
    if (rank_in(plan + 1) >= 0)
        pthread_join(next.thread, NULL);
    ddl_comm_destroy(comm);
    return next.comm;
}

static void run_member(uint32_t links)
{
    int plan = self == 2;
    int64_t step = 0;
    if (self == 2) { /* others make steps while their comm with this process is being created */
        await(&b->known, 1);
        await(&b->steps, atomic_load(&b->steps) + STEPS);
    }
    ddl_comm *comm = create(plan, links);
    if (plan)
        OK(ddl_broadcast(comm, &step, 1, DDL_I64, 1, NULL, NULL));
    for (; plan < PLANS - 1; plan++) {
        comm = step_until_next(comm, plan, &step, links);
        if (!comm)
            return;
        if (!plan)
            OK(ddl_broadcast(comm, &step, 1, DDL_I64, 1, NULL, NULL));
    }
    for (int i = 0; i < STEPS; i++)
        make_step(comm, plan, ++step);
    ddl_comm_destroy(comm);
}

static int run_process(uint32_t links)
{
    alarm(120); /* in case it hangs */
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_endpoint_address(endpoint, b->addresses[self], DDL_ADDRESS_MAX, &b->lengths[self]));
    atomic_fetch_add(&b->listed, 1);
    await(&b->listed, MOST);
    run_member(links);
    ddl_endpoint_destroy(endpoint);
    return 0;
}

int main(void)
{
    b = map_shared(sizeof *b);
    for (uint32_t links = DDL_LINK_SHM; links <= DDL_LINK_TCP; links *= 2) {
        pid_t pids[MOST];
        memset(b, 0, sizeof *b);
        fflush(NULL);
        for (self = 0; self < MOST; self++)
            if (!(pids[self] = fork()))
                exit(run_process(links));
        await_exits(pids, MOST);
        printf("%s: %d steps, %d of them beside a creation\n",
               links == DDL_LINK_SHM ? "shm" : "tcp", b->steps, b->beside);
        CHECK(b->beside >= STEPS, "the creations held the steps up");
    }
}
