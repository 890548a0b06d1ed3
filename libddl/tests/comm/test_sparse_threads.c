/* SPDX-License-Identifier: Apache-2.0 */
/* A comm with enough ranks to be sparse, without replaced functions. Ranks are threads. */
#include "check.h"
#include "ddl/ddl.h"

enum { SIZE = 36, ODD = 9, MISSING = 13, WORDS = 500, LARGE = (SANITIZED ? 8 : 64) << 10 };

typedef struct rank_thread {
    int rank;
    uint32_t links;
    pthread_t thread;
} rank_thread;

static ddl_endpoint *endpoints[SIZE];
static unsigned char addresses[SIZE][DDL_ADDRESS_MAX];
static size_t lengths[SIZE];
static atomic_int named; /* number of ranks whose error names the difference */
static int limit_ms = 60000;

static ddl_status create(const rank_thread *self, ddl_comm **comm)
{
    const void *all[SIZE];
    for (int i = 0; i < SIZE; i++)
        all[i] = addresses[i];
    ddl_comm_config config = {
        .struct_size = sizeof config, .links = self->links, .timeout_ms = limit_ms};
    return ddl_comm_create(endpoints[self->rank], all, lengths, self->rank, SIZE, &config, comm);
}

/* Use every pair. */
static void *use_all_pairs(void *argument)
{
    const rank_thread *self = argument;
    static _Thread_local int32_t out[SIZE], in[SIZE], sums[WORDS];
    ddl_comm *comm;
    OK(create(self, &comm));
    for (int i = 0; i < WORDS; i++)
        sums[i] = i + self->rank;
    OK(ddl_allreduce(comm, NULL, sums, WORDS, DDL_I32, DDL_SUM, NULL, NULL));
    for (int i = 0; i < WORDS; i++)
        CHECK(sums[i] == SIZE * i + SIZE * (SIZE - 1) / 2, "%d at %d", sums[i], i);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SIZE; i++)
            out[i] = 1000 * round + SIZE * self->rank + i;
        OK(ddl_alltoall(comm, out, in, 1, DDL_I32, NULL, NULL));
        for (int i = 0; i < SIZE; i++)
            CHECK(in[i] == 1000 * round + SIZE * i + self->rank, "%d from %d", in[i], i);
    }
    int32_t *all = malloc(sizeof *all * SIZE * LARGE);
    CHECK(all, "memory");
    for (int i = 0; i < LARGE; i++)
        all[LARGE * self->rank + i] = self->rank + i;
    OK(ddl_allgather(comm, NULL, all, LARGE, DDL_I32, NULL, NULL));
    for (int i = 0; i < SIZE * LARGE; i++)
        CHECK(all[i] == i / LARGE + i % LARGE, "%d at %d", all[i], i);
    OK(ddl_allreduce(comm, NULL, all, 4 * LARGE, DDL_I32, DDL_SUM, NULL, NULL));
    CHECK(all[1] == SIZE, "%d", all[1]);
    free(all);
    ddl_comm_destroy(comm);
    return NULL;
}

/* Rank 0 completes its part of a named operation before all other ranks have started it, and
 * leaves. */
static void *order_and_leave(void *argument)
{
    const rank_thread *self = argument;
    ddl_comm *comm;
    OK(create(self, &comm));
    ddl_options by_name = {.struct_size = sizeof by_name, .name = "loss", .timeout_ms = 60000};
    int32_t sum = self->rank;
    OK(ddl_reduce(comm, NULL, &sum, 1, DDL_I32, DDL_SUM, 1, &by_name, NULL));
    if (self->rank == 1)
        CHECK(sum == SIZE * (SIZE - 1) / 2, "%d", sum);
    ddl_comm_destroy(comm);
    return NULL;
}

static void check_parts(const int32_t *part, int count, int from)
{
    for (int i = 0; i < count; i++)
        CHECK(part[i] == 100 * from + i, "%d at %d from %d", part[i], i, from);
}

/* Rank 0 receives from any rank while named operations run: short messages, and messages that must
 * be accepted. Most ranks send for the first time. Finally the other ranks leave. */
static void *receive_from_any(void *argument)
{
    enum { SHORT = 3, LONG = 20000, SENT = 4, TAG = 5 };
    const rank_thread *self = argument;
    ddl_comm *comm;
    OK(create(self, &comm));
    ddl_options by_name = {.struct_size = sizeof by_name, .name = "gradient"};
    int32_t *buffer = malloc(sizeof *buffer * LONG);
    CHECK(buffer, "memory");
    for (int i = 0; i < LONG; i++)
        buffer[i] = 100 * self->rank + i;
    for (int k = 0; k < SENT; k++) {
        int count = k % 2 ? LONG : SHORT, tag = TAG + k, from, seen[SIZE] = {0};
        int32_t sum = self->rank;
        ddl_work *work;
        OK(ddl_allreduce(comm, NULL, &sum, 1, DDL_I32, DDL_SUM, &by_name, &work));
        for (int n = 1; self->rank == 0 && n < SIZE; n++) {
            OK(ddl_recv(comm, buffer, count, DDL_I32, DDL_ANY_SOURCE, tag, &from, NULL, NULL));
            CHECK(!seen[from]++, "twice from %d", from);
            check_parts(buffer, count, from);
        }
        if (self->rank)
            OK(ddl_send(comm, buffer, count, DDL_I32, 0, tag, NULL, NULL));
        OK(ddl_work_wait(work, -1));
        ddl_work_destroy(work);
        CHECK(sum == SIZE * (SIZE - 1) / 2, "%d", sum);
    }
    if (self->rank == 0)
        REFUSED(ddl_recv(comm, buffer, 1, DDL_I32, DDL_ANY_SOURCE, TAG, NULL, NULL, NULL),
                DDL_EPEER, "every other rank left the comm");
    free(buffer);
    ddl_comm_destroy(comm);
    return NULL;
}

/* One member does not share memory with its host, as the others expect. */
static void *find_difference(void *argument)
{
    const rank_thread *self = argument;
    ddl_comm *comm;
    ddl_status status = create(self, &comm);
    REFUSED(status, DDL_EINVAL, "rank 9 on ");
    atomic_fetch_add(&named, strstr(ddl_last_error(), "uses shared memory, but ") != NULL);
    return NULL;
}

/* One member never connects. All others report that, even ranks that are not its neighbours. */
static void *miss_one(void *argument)
{
    const rank_thread *self = argument;
    ddl_comm *comm;
    if (self->rank == MISSING)
        return NULL;
    ddl_status status = create(self, &comm);
    const char *found = strstr(ddl_last_error(), "13 on ");
    CHECK(status != DDL_OK && found, "rank %d: %d %s", self->rank, status, ddl_last_error());
    return NULL;
}

static void run(void *(*main)(void *), uint32_t links, uint32_t odd)
{
    static rank_thread threads[SIZE];
    for (int i = 0; i < SIZE; i++) {
        OK(ddl_endpoint_create(NULL, &endpoints[i]));
        OK(ddl_endpoint_address(endpoints[i], addresses[i], DDL_ADDRESS_MAX, &lengths[i]));
    }
    for (int i = 0; i < SIZE; i++) {
        threads[i] = (rank_thread){.rank = i, .links = i == ODD ? odd : links};
        CHECK(!pthread_create(&threads[i].thread, NULL, main, &threads[i]), "rank %d", i);
    }
    for (int i = 0; i < SIZE; i++)
        pthread_join(threads[i].thread, NULL);
    for (int i = 0; i < SIZE; i++)
        ddl_endpoint_destroy(endpoints[i]);
}

int main(void)
{
    setenv("DDL_LOG", "off", 0);
    run(use_all_pairs, 0, 0);
    if (!SANITIZED) { /* the same links; the last test uses both kinds */
        run(use_all_pairs, DDL_LINK_SHM, DDL_LINK_SHM);
        run(use_all_pairs, DDL_LINK_TCP, DDL_LINK_TCP);
    }
    run(use_all_pairs, DDL_LINK_SHM | DDL_LINK_TCP, DDL_LINK_SHM | DDL_LINK_TCP);
    for (int i = 0; i < (SANITIZED ? 1 : 3); i++)
        run(order_and_leave, DDL_LINK_TCP, DDL_LINK_TCP);
    run(order_and_leave, DDL_LINK_SHM, DDL_LINK_SHM);
    run(receive_from_any, DDL_LINK_SHM, DDL_LINK_SHM);
    run(receive_from_any, DDL_LINK_TCP, DDL_LINK_TCP);
    run(find_difference, DDL_LINK_SHM | DDL_LINK_TCP, DDL_LINK_TCP);
    CHECK(named == SIZE, "%d ranks name it", named);
    limit_ms = 5000;
    run(miss_one, DDL_LINK_SHM, DDL_LINK_SHM);
    run(miss_one, DDL_LINK_TCP, DDL_LINK_TCP);
}
