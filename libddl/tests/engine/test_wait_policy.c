/* SPDX-License-Identifier: Apache-2.0 */
/* The progress of a wait: with a free core, interrupted, next to a thread that yields, next to a
 * thread that computes, and next to a peer that computes. A peer tells that it has computed, but
 * not that it calls again. Beside another program, its thread asks for short time slices. */
#include "engine/executor/wait_policy.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"
#include "comm/comm.h"
#include "engine/state.h"
#include "ranks.h"

enum { ATTEMPTS = 2000, BEFORE_SLEEP = DDL__SPINS + DDL__YIELDS };

static atomic_bool over;
static atomic_int interrupts;

static void spin(int64_t ns)
{
    for (int64_t end = ddl__now() + ns; ddl__now() < end;)
        ;
}

static _Atomic int64_t yield_ns; /* instead of yielding, compute for this time; 0: yield */

int sched_yield(void)
{
    int64_t ns = atomic_load(&yield_ns);
    if (!ns)
        return (int)syscall(SYS_sched_yield);
    spin(ns);
    return 0;
}

static void interrupt(int signal)
{
    atomic_fetch_add(&interrupts, 1);
    spin(20000);
}

/* Return how often other threads have had this core so far. */
static long switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

static uint64_t no_peer(const void *context)
{
    (void)context;
    return 0;
}

static uint64_t a_peer_computed(const void *context)
{
    static uint64_t computed;
    (void)context;
    return ++computed;
}

/* Wait until it is time to sleep. Return the number of turns. */
static uint32_t wait_in_vain(ddl__wait_policy *p)
{
    uint32_t turns = 0;
    while (ddl__wait_policy_turn(p))
        turns++;
    ddl__wait_policy_reset(p);
    return turns;
}

/* Interrupts make yields late, but are no reason to leave a core. Return false if other threads had
 * the core all the time; they cannot if this user may run at real-time priority. */
static bool check_interrupted(void)
{
    struct sched_param first = {sched_get_priority_min(SCHED_FIFO)}, usual = {0};
    bool alone = !sched_setscheduler(0, SCHED_FIFO, &first);
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    int undisturbed = 0;
    for (int i = 0; i < ATTEMPTS && undisturbed < 3; i++) {
        ddl__wait_policy p = {.computed_here = no_peer};
        int met = atomic_load(&interrupts);
        long before = switches();
        uint32_t turns = wait_in_vain(&p);
        if (switches() != before || atomic_load(&interrupts) - met < 4)
            continue; /* other threads ran, or there were no interrupts */
        undisturbed++;
        CHECK(!p.oversubscribed.length && !p.core_taken.length && turns == BEFORE_SLEEP,
              "taken for oversubscribed: oversubscribed %u, core_taken %u, %u turns",
              p.oversubscribed.length, p.core_taken.length, turns);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(!alone || !sched_setscheduler(0, SCHED_OTHER, &usual), "cannot go back");
    CHECK(undisturbed || !alone, "none of %d waits had its core for itself", ATTEMPTS);
    return undisturbed;
}

/* Keep the core for this many nanoseconds at a time. */
static void *share(void *ns)
{
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        spin(*(int64_t *)ns);
        sched_yield();
    }
    return NULL;
}

static pthread_t begin_sharing(int64_t *ns)
{
    pthread_t other;
    atomic_store(&over, false);
    CHECK(!pthread_create(&other, NULL, share, ns), "no thread");
    spin(10000000); /* it runs now */
    return other;
}

static void end_sharing(pthread_t other)
{
    atomic_store(&over, true);
    pthread_join(other, NULL);
}

/* Next to a thread that yields: spin only at first, and again soon after it has exited. */
static void check_oversubscribed(void)
{
    int64_t ns = 20000;
    ddl__wait_policy p = {.computed_here = no_peer};
    pthread_t other = begin_sharing(&ns);
    uint32_t first = 0, spun = 0;
    for (int i = 0; i < 400; i++) {
        spun += !p.oversubscribed.left && !p.core_taken.left;
        for (int turn = 0; turn < DDL__SPINS + 20 && ddl__wait_policy_turn(&p); turn++)
            ;
        ddl__wait_policy_reset(&p);
        first = first ? first : p.oversubscribed.length;
    }
    end_sharing(other);
    CHECK(first && first < 8, "%u waits without spinning for the first late yield", first);
    CHECK(spun < 100, "spun in %u of 400 waits while oversubscribed", spun);
    for (int i = 0; i < 10000 && p.oversubscribed.length; i++) {
        ddl__wait_policy_turn(&p);
        ddl__wait_policy_reset(&p);
    }
    CHECK(!p.oversubscribed.length, "still %u waits without spinning", p.oversubscribed.length);
}

/* Next to a thread that computes: sleep at once, also in the next waits. */
static void check_core_taken(void)
{
    int64_t ns = 50000000;
    ddl__wait_policy p = {.computed_here = no_peer};
    pthread_t other = begin_sharing(&ns);
    wait_in_vain(&p);
    uint32_t core_taken = p.core_taken.left, turns = core_taken ? wait_in_vain(&p) : 0;
    end_sharing(other);
    CHECK(core_taken, "a core that another keeps was not noticed");
    CHECK(turns == 0, "yielded %u times to one who computes", turns);
}

/* Return the length of this thread's time slices in ns; 0: older than Linux 6.12. */
static uint64_t slice(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags, priorities, slice, others[2];
    } now = {.size = sizeof now};
    CHECK(!syscall(SYS_sched_getattr, 0, &now, sizeof now, 0), "sched_getattr: %d", errno);
    return now.slice;
}

/* Next to a thread that computes: ask for short slices, which a child does not inherit. */
static bool check_slices(void)
{
    int64_t ns = 50000000;
    uint64_t usual = slice();
    ddl__wait_policy p = {.computed_here = no_peer};
    pthread_t other = begin_sharing(&ns);
    for (int i = 0; i < 10 && !p.core_taken.length; i++)
        wait_in_vain(&p);
    uint64_t shorter = slice();
    end_sharing(other);
    CHECK(shorter == (usual ? DDL__TIME_SLICE_NS : 0), "slices of %ju ns", (uintmax_t)shorter);
    pid_t child = fork();
    if (!child)
        _exit(slice() != usual);
    int how;
    CHECK(waitpid(child, &how, 0) == child && how == 0, "a child has other slices");
    return usual;
}

/* Return true if a yield of 2 ms is taken for a thread that keeps the core. */
static bool is_taken_after_2_ms(bool sharing)
{
    ddl__wait_policy p = {.oversubscribed = {.left = 1, .length = 4},
                          .sharing = sharing,
                          .switches = -1,
                          .computed_here = no_peer};
    atomic_store(&yield_ns, 2000000);
    ddl__wait_policy_turn(&p);
    atomic_store(&yield_ns, 0);
    return p.core_taken.length;
}

/* Where ranks share cores, several peers may run in such a yield, each for a short time. One try is
 * enough, because other programs may make a yield longer. */
static void check_several_peers(void)
{
    bool yields = false;
    CHECK(is_taken_after_2_ms(false), "a core that another keeps was not noticed");
    for (int i = 0; i < 100 && !yields; i++)
        yields = !is_taken_after_2_ms(true);
    CHECK(yields, "peers that computed for 2 ms together are taken for another program");
}

/* Next to a peer that has computed meanwhile: do not spin, but yield. */
static void check_peer(void)
{
    int64_t ns = 50000000;
    ddl__wait_policy p = {.computed_here = a_peer_computed};
    pthread_t other = begin_sharing(&ns);
    for (int turn = 0; turn < DDL__SPINS + 100 && !p.oversubscribed.length; turn++)
        ddl__wait_policy_turn(&p);
    ddl__wait_policy_reset(&p);
    end_sharing(other);
    CHECK(p.oversubscribed.length, "a core that a peer keeps was not noticed");
    CHECK(!p.core_taken.length, "will sleep %u times beside a peer", p.core_taken.length);
}

/* Make `calls` calls, each after a computation of this many ns. Return how often the peer said
 * meanwhile that it had computed. */
static uint64_t computations(ddl_comm *comm, int calls, int64_t ns)
{
    ddl__engine *engine = comm->engine;
    const ddl__link *link = engine->config.links[1 - ddl_comm_rank(comm)];
    uint64_t before = link->ops->computed_of(link) / (DDL__CORES + 1);
    for (int i = 0; i < calls; i++) {
        float one = 1;
        spin(ns);
        OK(ddl_allreduce(comm, NULL, &one, 1, DDL_F32, DDL_SUM, NULL, NULL));
        pthread_mutex_lock(&engine->lock);
        engine->wait_policy.oversubscribed.length = DDL__BACKOFF_MAX; /* the ranks share a core */
        pthread_mutex_unlock(&engine->lock);
    }
    return link->ops->computed_of(link) / (DDL__CORES + 1) - before;
}

static void check_told(ddl_comm *comm, void *argument)
{
    (void)argument;
    uint64_t called = computations(comm, 400, 0), told = computations(comm, 10, 2000000);
    /* A call after a preemption looks like one after a computation. */
    CHECK(called < 200, "400 calls were taken for %ju computations", (uintmax_t)called);
    CHECK(told >= 5, "10 computations were told %ju times", (uintmax_t)told);
}

int main(void)
{
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    CHECK(!sched_setaffinity(0, sizeof here, &here), "cannot stay on one core");
    usleep(1); /* a first switch, so that the kernel has a count */
    bool sliced = check_slices();
    bool seen = check_interrupted();
    check_oversubscribed();
    check_core_taken();
    check_peer();
    check_several_peers();
    run_ranks(2, DDL_LINK_SHM, check_told, NULL);
    if (!seen)
        printf("others ran all the time: not seen how a wait goes on that is only interrupted\n");
    if (!sliced)
        printf("the kernel has no time slices for a thread to choose: not seen\n");
    return seen && sliced ? 0 : 77;
}
