/* SPDX-License-Identifier: Apache-2.0 */
/* Comms made from a comm: split, subset, duplicate; many at once; repeatedly; rejected calls. */
#include "comm/comm.h"
#include "ranks.h"

static int32_t sum_of(ddl_comm *comm, int32_t mine)
{
    OK(ddl_allreduce(comm, NULL, &mine, 1, DDL_I32, DDL_SUM, NULL, NULL));
    return mine;
}

/* Split by two colors, with keys that reverse the order; the last rank joins none. */
static void split(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int color = size > 1 && rank == size - 1 ? -1 : rank % 2;
    int members = size > 1 ? size - 1 : 1, mine = (members + !(rank % 2)) / 2;
    for (int round = 0; round < 3; round++) {
        ddl_comm *part = comm;
        OK(ddl_comm_split(comm, color, -rank, NULL, &part));
        if (color < 0) {
            CHECK(!part, "joined a comm without a color");
            continue;
        }
        CHECK(ddl_comm_size(part) == mine, "%d of %d", ddl_comm_size(part), mine);
        CHECK(part->config.timeout_ms == comm->config.timeout_ms,
              "what was left of the split's limit, %lld ms, became the part's own",
              (long long)part->config.timeout_ms);
        CHECK(ddl_comm_rank(part) == mine - 1 - rank / 2, "rank %d became %d", rank,
              ddl_comm_rank(part));
        int32_t want = 0;
        for (int r = rank % 2; r < members; r += 2)
            want += r;
        CHECK(sum_of(part, rank) == want, "sum");
        ddl_comm_destroy(part);
    }
}

/* Create a subset: only its members call, in their own order. */
static void subset(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), chosen[RANKS_MAX], n = 0;
    for (int r = size - 1; r >= 0; r -= 2)
        chosen[n++] = r;
    if ((size - 1 - rank) % 2 == 0) {
        ddl_comm *part;
        OK(ddl_comm_subset(comm, chosen, n, NULL, &part));
        CHECK(ddl_comm_rank(part) == (size - 1 - rank) / 2, "rank");
        int32_t want = 0;
        for (int i = 0; i < n; i++)
            want += chosen[i];
        CHECK(sum_of(part, rank) == want, "sum");
        ddl_comm_destroy(part);
    }
    CHECK(sum_of(comm, 1) == size, "the parent works on");
}

/* Duplicate: the twin outlives its parent's operations, and inherits its configuration. */
static void duplicate(ddl_comm *comm, void *argument)
{
    ddl_comm *twins[4];
    for (int i = 0; i < 4; i++)
        OK(ddl_comm_duplicate(i ? twins[i - 1] : comm, NULL, &twins[i]));
    CHECK(ddl_comm_local_size(twins[3]) == ddl_comm_local_size(comm), "other links");
    for (int i = 3; i >= 0; i--) {
        CHECK(sum_of(twins[i], i) == i * ddl_comm_size(comm), "twin %d", i);
        ddl_comm_destroy(twins[i]);
    }
}

typedef struct busy {
    ddl_comm *comm;
    int salt;
    pthread_t thread;
} busy;

static void *work_alone(void *argument)
{
    busy *b = argument;
    for (int i = 0; i < 300; i++)
        CHECK(sum_of(b->comm, i * b->salt) == i * b->salt * ddl_comm_size(b->comm), "thread %d",
              b->salt);
    return NULL;
}

/* Create several comms of the same ranks at once, each with its own thread. */
static void in_parallel(ddl_comm *comm, void *argument)
{
    enum { N = 4 };
    busy all[N];
    for (int i = 0; i < N; i++) {
        OK(ddl_comm_duplicate(comm, NULL, &all[i].comm));
        all[i].salt = i + 1;
    }
    for (int i = 0; i < N; i++)
        CHECK(!pthread_create(&all[i].thread, NULL, work_alone, &all[i]), "thread");
    for (int i = 0; i < N; i++) {
        pthread_join(all[i].thread, NULL);
        ddl_comm_destroy(all[i].comm);
    }
}

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* The descriptor is readable exactly while there is a completed work to take. */
static void descriptor(ddl_comm *comm, void *argument)
{
    enum { N = 10 };
    int fd, again, taken;
    ddl_work *works[N], *got[N];
    int32_t data[N];
    OK(ddl_comm_fd(comm, &fd));
    OK(ddl_comm_fd(comm, &again));
    CHECK(fd == again && fd >= 0 && !is_readable(fd), "readable from the start");
    ddl_options options = {.struct_size = sizeof options, .queued = 1};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            data[i] = 1;
            OK(ddl_allreduce(comm, NULL, &data[i], 1, DDL_I32, DDL_SUM, &options, &works[i]));
        }
        for (int left = N; left > 0; left -= taken) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            CHECK(poll(&p, 1, 20000) == 1, "nothing came");
            OK(ddl_comm_completed(comm, got, NULL, 3, 0, &taken));
        }
        CHECK(!is_readable(fd), "readable with nothing to take");
        for (int i = 0; i < N; i++)
            ddl_work_destroy(works[i]);
    }
    /* Destroying a work instead of taking it empties the descriptor, too. */
    OK(ddl_allreduce(comm, NULL, data, 1, DDL_I32, DDL_SUM, &options, works));
    OK(ddl_work_wait(works[0], -1));
    CHECK(is_readable(fd), "complete and not readable");
    ddl_work_destroy(works[0]);
    CHECK(!is_readable(fd), "readable after the work was destroyed");
}

static void refusals(ddl_comm *comm, void *argument)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), twice[] = {rank, rank};
    ddl_comm *part = NULL;
    REFUSED(ddl_comm_split(NULL, 0, 0, NULL, &part), DDL_EINVAL, "comm is NULL");
    REFUSED(ddl_comm_split(comm, 0, 0, NULL, NULL), DDL_EINVAL, "new comm is NULL");
    REFUSED(ddl_comm_subset(comm, NULL, 1, NULL, &part), DDL_EINVAL, "ranks is NULL");
    REFUSED(ddl_comm_subset(comm, &rank, 0, NULL, &part), DDL_EINVAL, "size is 0");
    REFUSED(ddl_comm_subset(comm, &size, 1, NULL, &part), DDL_EINVAL, "ranks[0] is");
    if (size > 1) {
        int other = (rank + 1) % size;
        REFUSED(ddl_comm_subset(comm, &other, 1, NULL, &part), DDL_EINVAL, "not in the list");
        REFUSED(ddl_comm_subset(comm, twice, 2, NULL, &part), DDL_EINVAL, "twice");
    }
    ddl_comm_config bad = {.struct_size = sizeof bad, .links = 64};
    REFUSED(ddl_comm_duplicate(comm, &bad, &part), DDL_EINVAL, "links");
    REFUSED(ddl_comm_fd(comm, NULL), DDL_EINVAL, "fd is NULL");
    ddl_status status = ddl_barrier(comm, NULL, NULL); /* a faster rank may have aborted */
    CHECK(status == DDL_OK || status == DDL_EABORTED, "%d: %s", status, ddl_last_error());
    OK(ddl_comm_abort(comm, "enough"));
    status = DDL_OK;
    while (status == DDL_OK)
        status = ddl_comm_status(comm);
    CHECK(ddl_comm_split(comm, 0, 0, NULL, &part) == DDL_EABORTED, "split of a dead comm");
    CHECK(ddl_comm_duplicate(comm, NULL, &part) == DDL_EABORTED, "twin of a dead comm");
    CHECK(!part, "outputs are untouched on failure");
}

/* Return the shared memory in KiB; 0 if the system does not report it. */
static long shared_memory(void)
{
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "RssShmem: %ld", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib;
}

/* A comm uses the memory that its operations need, not all that they may ever need: allocating that
 * took most of the time of a creation. */
static void memory(ddl_comm *comm, void *argument)
{
    /* for each comm, summed over all ranks, which are threads */
    enum { COMMS = 4, MOST_KIB = 1024 };
    ddl_comm *parts[COMMS];
    OK(ddl_barrier(comm, NULL, NULL));
    long before = shared_memory();
    OK(ddl_barrier(comm, NULL, NULL));
    for (int i = 0; i < COMMS; i++)
        OK(ddl_comm_duplicate(comm, NULL, &parts[i]));
    OK(ddl_barrier(comm, NULL, NULL));
    long grown = shared_memory() - before;
    CHECK(grown < COMMS * MOST_KIB * ddl_comm_size(comm), "%d comms take %ld KiB", COMMS, grown);
    OK(ddl_barrier(comm, NULL, NULL));
    for (int i = 0; i < COMMS; i++)
        ddl_comm_destroy(parts[i]);
}

int main(void)
{
    static const uint32_t links[] = {DDL_LINK_INPROC, DDL_LINK_SHM, DDL_LINK_TCP, LINKS_MIXED};
    static rank_fn *const tests[] = {split,      subset,   duplicate, in_parallel,
                                     descriptor, refusals, memory};
    for (unsigned l = SANITIZED; l < 4; l++) /* inproc uses the code of shm */
        for (unsigned t = 0; t < sizeof tests / sizeof *tests; t++)
            for (int size = 1; size <= 5; size += 1 + (size > 2))
                run_ranks(size, links[l], tests[t], NULL);
}
