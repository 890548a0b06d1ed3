/* SPDX-License-Identifier: Apache-2.0 */
/* A hundred thousand asynchronous operations, by four threads on four comms, have right results and
 * leak no memory. */
#include <malloc.h>

#include "ranks.h"

enum { OPERATIONS = SANITIZED ? 8000 : 100000, MEASURED = !SANITIZED };
enum { THREADS = 4, WINDOW = 32, LONGEST = 700, GROWTH_MAX = 256 << 10 };

/* A pending operation. */
typedef struct slot {
    ddl_work *work;
    int32_t data[LONGEST];
    int count, kind;
    int32_t base;
} slot;

typedef struct lane {
    ddl_comm *comm;
    int operations;
    pthread_t thread;
} lane;

static void submit(ddl_comm *comm, slot *s, int i)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    s->count = 1 + i * 37 % LONGEST;
    s->kind = i % 5;
    s->base = i;
    for (int k = 0; k < s->count; k += 50)
        s->data[k] = i + k + rank;
    if (s->kind == 4)
        OK(ddl_broadcast(comm, s->data, s->count, DDL_I32, i % size, NULL, &s->work));
    else
        OK(ddl_allreduce(comm, NULL, s->data, s->count, DDL_I32, DDL_SUM, NULL, &s->work));
}

static void check(ddl_comm *comm, slot *s)
{
    int size = ddl_comm_size(comm);
    OK(ddl_work_wait(s->work, -1));
    ddl_work_destroy(s->work);
    s->work = NULL;
    for (int k = 0; k < s->count; k += 50) {
        int32_t want = s->kind == 4 ? s->base + k + s->base % size
                                    : size * (s->base + k) + size * (size - 1) / 2;
        CHECK(s->data[k] == want, "operation %d, element %d: %d, not %d", s->base, k, s->data[k],
              want);
    }
}

static void *run_lane(void *argument)
{
    lane *l = argument;
    slot *slots = calloc(WINDOW, sizeof *slots);
    CHECK(slots, "no memory");
    for (int i = 0; i < l->operations; i++) {
        slot *s = &slots[i % WINDOW];
        if (s->work)
            check(l->comm, s);
        submit(l->comm, s, i);
    }
    for (int i = 0; i < WINDOW; i++)
        if (slots[i].work)
            check(l->comm, &slots[i]);
    free(slots);
    return NULL;
}

static void run_lanes(lane *lanes, int operations)
{
    for (int i = 0; i < THREADS; i++) {
        lanes[i].operations = operations;
        CHECK(!pthread_create(&lanes[i].thread, NULL, run_lane, &lanes[i]), "thread");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(lanes[i].thread, NULL);
}

/* Return the bytes allocated in the process, while all ranks are at the same point. */
static size_t measure(ddl_comm *comm)
{
    OK(ddl_barrier(comm, NULL, NULL));
    /* Sanitizers have their own allocator, and the C library's must not be queried. */
    size_t bytes = MEASURED ? mallinfo2().uordblks + mallinfo2().hblkhd : 0;
    OK(ddl_barrier(comm, NULL, NULL));
    return bytes;
}

static void soak(ddl_comm *comm, void *argument)
{
    lane lanes[THREADS];
    for (int i = 0; i < THREADS; i++)
        OK(ddl_comm_duplicate(comm, NULL, &lanes[i].comm));
    int each = OPERATIONS / THREADS;
    run_lanes(lanes, each / 10); /* fills the caches of plans and buffers */
    size_t before = measure(comm);
    run_lanes(lanes, each - each / 10);
    size_t after = measure(comm);
    if (MEASURED && ddl_comm_rank(comm) == 0)
        CHECK(after < before + GROWTH_MAX, "%zu bytes allocated became %zu", before, after);
    for (int i = 0; i < THREADS; i++)
        ddl_comm_destroy(lanes[i].comm);
}

int main(void)
{
    static const uint32_t links[] = {DDL_LINK_INPROC, DDL_LINK_SHM, DDL_LINK_TCP};
    for (unsigned l = 0; l < 3; l++)
        run_ranks(2, links[l], soak, NULL);
}
