/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of ddl_alloc. Results equal those of ordinary memory bit by bit, whichever members use
 * which; if all use them, nothing is copied; frees leak nothing; a death during an operation ends
 * it for the others and does not change buffers that were only sent. Ranks are processes. */
#include "entries.h"
#include "net/shm/lending.h"
#include "shared_buffers.h"

enum { SIZE = 3, ELEMENTS = 100003, MIB = 1 << 20, WIDEST = 16 };

/* Elements for which each rank's share is as long as the shortest zero-copy span. */
enum { SHORT = SIZE * DDL__LEND_LEAST / 4 };

/* ---------------------------------------------------------------------------------- the results */

typedef enum operation {
    REDUCE_ALL,
    SCATTER,
    GATHER,
    BROADCAST,
    ALL_TO_ALL,
    ROOTED,
    ORDERED, /* this and the next operation are never in place here */
    GATHER_TO_ROOT,
    SCATTER_FROM_ROOT,
    UNEVEN_SCATTER,
    UNEVEN_GATHER,
    UNEVEN_ALL_TO_ALL,
    OPERATIONS
} operation;

typedef struct memory {
    char *send, *recv;
} memory;

static ddl_order *ordered; /* each rank passes one part */

/* Run an operation that is not in place. */
static ddl_status run_apart(ddl_comm *comm, operation what, const memory *m, int64_t count,
                            ddl_dtype dtype, ddl_op op)
{
    const int64_t third = count / SIZE, least = third - third / 4, most = third + third / 4;
    const int64_t counts[SIZE] = {least, third, most}, places[SIZE] = {0, least, least + third};
    const void *send = m->send;
    int64_t pairs[SIZE], from[SIZE]; /* equal for both ranks of a pair */
    for (int r = 0, rank = ddl_comm_rank(comm); r < SIZE; r++) {
        pairs[r] = counts[(rank + r) % SIZE];
        from[r] = r ? from[r - 1] + pairs[r - 1] : 0;
    }
    switch (what) {
    case ORDERED:
        return ddl_allreduce_ordered(comm, ordered, &send, m->recv, count, dtype, op, NULL, NULL);
    case GATHER_TO_ROOT: return ddl_gather(comm, send, m->recv, third, dtype, 1, NULL, NULL);
    case SCATTER_FROM_ROOT: return ddl_scatter(comm, send, m->recv, third, dtype, 1, NULL, NULL);
    case UNEVEN_SCATTER:
        return ddl_reduce_scatterv(comm, send, m->recv, counts, dtype, op, NULL, NULL);
    case UNEVEN_GATHER:
        return ddl_allgatherv(comm, send, m->recv, counts, places, dtype, NULL, NULL);
    case UNEVEN_ALL_TO_ALL:
        return ddl_alltoallv(comm, send, pairs, from, m->recv, pairs, from, dtype, NULL, NULL);
    case REDUCE_ALL:
    case SCATTER:
    case GATHER:
    case BROADCAST:
    case ALL_TO_ALL:
    case ROOTED:
    case OPERATIONS: break;
    }
    return DDL_EINVAL;
}

static ddl_status run(ddl_comm *comm, operation what, bool in_place, const memory *m, int64_t count,
                      ddl_dtype dtype, ddl_op op)
{
    const void *send = in_place ? NULL : m->send;
    switch (what) {
    case REDUCE_ALL: return ddl_allreduce(comm, send, m->recv, count, dtype, op, NULL, NULL);
    case SCATTER:
        return ddl_reduce_scatter(comm, send, m->recv, count / SIZE, dtype, op, NULL, NULL);
    case GATHER: return ddl_allgather(comm, send, m->recv, count / SIZE, dtype, NULL, NULL);
    case BROADCAST: return ddl_broadcast(comm, m->recv, count, dtype, 1, NULL, NULL);
    case ALL_TO_ALL: return ddl_alltoall(comm, send, m->recv, count / SIZE, dtype, NULL, NULL);
    case ROOTED: return ddl_reduce(comm, send, m->recv, count, dtype, op, 2, NULL, NULL);
    case ORDERED:
    case GATHER_TO_ROOT:
    case SCATTER_FROM_ROOT:
    case UNEVEN_SCATTER:
    case UNEVEN_GATHER:
    case UNEVEN_ALL_TO_ALL:
        return in_place ? DDL_EUNSUPPORTED : run_apart(comm, what, m, count, dtype, op);
    case OPERATIONS: break;
    }
    return DDL_EINVAL;
}

/* Run an operation on ordinary memory, then on `m`, and compare all bytes; send buffers must not
 * change. */
static void compare(ddl_comm *comm, operation what, bool in_place, const memory *m,
                    const memory *ordinary, int64_t count, ddl_dtype dtype, ddl_op op, int salt)
{
    const memory *both[] = {ordinary, m};
    int rank = ddl_comm_rank(comm);
    size_t bytes = (size_t)count * ddl_dtype_size(dtype);
    bool kept = ddl_dtype_size(dtype) && !in_place;
    for (int i = 0; i < 2; i++) {
        fill(both[i]->send, bytes, rank, dtype, salt);
        fill(both[i]->recv, bytes, rank, dtype, salt + 1);
        ddl_status status = run(comm, what, in_place, both[i], count, dtype, op);
        if (status == DDL_EUNSUPPORTED)
            return;
        CHECK(status == DDL_OK, "%d %s", status, ddl_last_error());
    }
    CHECK(!memcmp(m->recv, ordinary->recv, bytes), "operation %d, dtype %d, op %d: other bits",
          what, dtype, op);
    fill(ordinary->recv, bytes, rank, dtype, salt);
    CHECK(!kept || !memcmp(m->send, ordinary->recv, bytes), "the send buffer was written to");
}

/* Compare with all buffers shared, with only this rank's send or recv buffers, and with only some
 * ranks'. */
static void compare_all(ddl_comm *comm, unsigned mix, size_t offset)
{
    size_t most = (size_t)ELEMENTS * WIDEST;
    int rank = ddl_comm_rank(comm);
    bool sends = mix == 0 || mix == 1 || (mix == 3 && rank != 1);
    bool receives = mix == 0 || mix == 2 || (mix == 3 && rank == 0);
    char *shared[] = {allocate(most + 4096), allocate(most + 4096)};
    char *plain[4];
    for (int i = 0; i < 4; i++)
        CHECK((plain[i] = malloc(most)), "no memory");
    memory ordinary = {plain[0], plain[1]};
    memory m = {sends ? shared[0] + offset : plain[2], receives ? shared[1] + offset : plain[3]};
    int salt = 0;
    for (int dtype = DDL_BOOL; dtype <= DDL_C128; dtype++)
        for (int op = DDL_SUM; op <= DDL_LOGICAL_OR; op++)
            for (int in_place = 0; in_place < 2; in_place++)
                if (op == DDL_SUM || !mix)
                    compare(comm, REDUCE_ALL, in_place, &m, &ordinary, ELEMENTS, (ddl_dtype)dtype,
                            (ddl_op)op, salt++);
    for (int what = REDUCE_ALL; what < OPERATIONS; what++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (int64_t count = 3 * 512; count <= ELEMENTS * 4; count *= 5)
                compare(comm, (operation)what, in_place, &m, &ordinary, count, DDL_F32, DDL_AVERAGE,
                        salt++);
    for (int i = 0; i < 4; i++)
        free(plain[i]);
    ddl_free(shared[0]);
    ddl_free(shared[1]);
}

static void same_bits(ddl_comm *comm)
{
    static const int owners[] = {0, 0, 1, 1, 2, 2};
    OK(ddl_order_create(owners, 6, SIZE, &ordered));
    bool sampled = SANITIZED && ddl_comm_local_size(comm) < SIZE; /* nothing is read in place */
    for (unsigned mix = 0; mix < 4; mix += sampled ? 3 : 1)
        compare_all(comm, mix, mix % 2 ? 4 : 0);
    ddl_order_destroy(ordered);
    ddl_comm_destroy(comm);
}

/* Number of spans that this process has lent, and of results that it has found in its own
 * memory. */
static int lent, returned;
WRAP(bool, ddl__lending_may,
     (ddl__lending * lending, const ddl__arena *peer, unsigned from, ddl__arena_loans *reader,
      const ddl__region *region))
{
    bool may = __real_ddl__lending_may(lending, peer, from, reader, region);
    lent += may;
    return may;
}

WRAP(bool, ddl__lending_returned,
     (const ddl__lending *lending, uint64_t span, void *place, size_t bytes))
{
    returned++;
    return __real_ddl__lending_returned(lending, span, place, bytes);
}

/* Return the number from the comm's report. */
static long long lent_bytes(ddl_comm *comm)
{
    char report[1 << 13];
    size_t length;
    long long bytes;
    OK(ddl_comm_report(comm, report, sizeof report, &length));
    const char *at = strstr(report, "\"lent_bytes\": ");
    CHECK(at && sscanf(at, "\"lent_bytes\": %lld", &bytes) == 1, "%s", report);
    return bytes;
}

/* Once buffers are known, nothing is sent through the arena: every rank lends its operands, or
 * blocks, to the two others, and also its results, unless it stores them in place. */
static void without_arena(ddl_comm *comm)
{
    enum { ROUNDS = 4 }; /* only the last round counts */
    static const struct {
        operation what;
        bool in_place;
        int64_t count;
        int lent, returned;
    } cases[] = {{REDUCE_ALL, false, ELEMENTS, 4, 0}, {REDUCE_ALL, true, ELEMENTS, 2, 2},
                 {ORDERED, false, ELEMENTS, 4, 0},    {SCATTER, false, ELEMENTS, 2, 0},
                 {GATHER, false, ELEMENTS, 2, 0},     {ALL_TO_ALL, false, ELEMENTS, 2, 0},
                 {REDUCE_ALL, true, SHORT, 2, 2},     {SCATTER, false, SHORT, 2, 0},
                 {GATHER, false, SHORT, 0, 0},        {SCATTER, false, SHORT - SIZE, 0, 0}};
    const bool shared = ddl_comm_local_size(comm) == SIZE;
    const size_t bytes = ELEMENTS * sizeof(float);
    memory m = {allocate(bytes), allocate(bytes)};
    OK(ddl_order_create((const int[]){0, 1, 2}, SIZE, SIZE, &ordered));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int round = 0; round < ROUNDS; round++) {
            fill(m.send, bytes, ddl_comm_rank(comm), DDL_F32, 0);
            fill(m.recv, bytes, ddl_comm_rank(comm), DDL_F32, 1);
            lent = returned = 0;
            OK(run(comm, cases[i].what, cases[i].in_place, &m, cases[i].count, DDL_F32, DDL_SUM));
            bool right = lent == shared * cases[i].lent && returned == shared * cases[i].returned;
            CHECK(right || round < ROUNDS - 1, "operation %d of %lld: %d lent, %d returned",
                  cases[i].what, (long long)cases[i].count, lent, returned);
        }
    long long before = lent_bytes(comm);
    OK(run(comm, GATHER, false, &m, ELEMENTS, DDL_F32, DDL_SUM));
    long long block = ELEMENTS / SIZE * (long long)sizeof(float), told = lent_bytes(comm) - before;
    CHECK(told == (shared ? 2 * block : 0), "%lld bytes are lent, blocks of %lld", told, block);
    ddl_order_destroy(ordered);
    ddl_comm_destroy(comm);
}

/* ------------------------------------------------------------------------------------ lifetimes */

/* Read a line of a file of /proc, by the format; or without one, count its lines. */
static long read_number(const char *path, const char *format)
{
    char line[512];
    long number = -1, lines = 0;
    FILE *file = fopen(path, "r");
    for (; number < 0 && fgets(line, sizeof line, file); lines++)
        if (format)
            sscanf(line, format, &number);
    fclose(file);
    return format ? number : lines;
}

typedef struct usage {
    long descriptors, mappings, address_space, resident; /* the last two in KiB */
} usage;

static usage usage_now(void)
{
    return (usage){count_descriptors(), read_number("/proc/self/maps", NULL),
                   read_number("/proc/self/status", "VmSize: %ld"),
                   read_number("/proc/self/status", "VmRSS: %ld")};
}

/* test_regions frees 10000: that many rounds */
static int rounds_of_frees = SANITIZED ? 300 : 3000;

/* The other ranks read each buffer through the arena, then in place, and it is freed while they map
 * it. After a tenth of the rounds, every member has used all the memory that it ever uses. */
static void frees(ddl_comm *comm)
{
    enum { BYTES = 128 * 1024, SLACK = 4096 };
    const bool shared = ddl_comm_local_size(comm) == SIZE;
    const int rounds = shared ? rounds_of_frees : 300;
    static char all[SIZE * BYTES];
    usage before = {0}, after;
    for (int i = 0; i < rounds; i++) {
        char *own = allocate(BYTES), mark = (char)(i % 40 + 40 * ddl_comm_rank(comm));
        CHECK(!own[0] && !own[BYTES - 1], "not zeroed");
        memset(own, mark, BYTES);
        for (int use = 0; use < 2; use++) {
            memset(all, 0xff, sizeof all);
            OK(ddl_allgather(comm, own, all, BYTES, DDL_U8, NULL, NULL));
            for (int r = 0; r < SIZE; r++)
                CHECK(all[(r + 1) * BYTES - 1] == i % 40 + 40 * r, "rank %d, round %d", r, i);
        }
        ddl_free(own);
        if (i == rounds / 10)
            before = usage_now();
    }
    after = usage_now();
    CHECK(after.descriptors <= before.descriptors, "%ld descriptors, then %ld", before.descriptors,
          after.descriptors);
    CHECK(after.mappings <= before.mappings + 16, "%ld mappings, then %ld", before.mappings,
          after.mappings);
    CHECK(after.address_space < before.address_space + SLACK || SANITIZED,
          "%ld KiB mapped, then %ld", before.address_space, after.address_space);
    CHECK(after.resident < before.resident + SLACK || SANITIZED, "%ld KiB resident, then %ld",
          before.resident, after.resident);
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
}

/* Allocate more than can be shared, in a destroyed endpoint, and in a forked child. */
static void limits(ddl_comm *comm)
{
    enum { MANY = 300, BYTES = 256 * 1024 };
    static char *buffers[MANY];
    void *none = NULL;
    if (read_number("/proc/sys/vm/overcommit_memory", "%ld") != 1 && !SANITIZED)
        CHECK(ddl_alloc(process_endpoint, (size_t)1 << 45, &none) == DDL_ENOMEM, "32 TiB");
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < MANY; i++) {
            if (!round)
                buffers[i] = allocate(BYTES);
            CHECK((uintptr_t)buffers[i] % 64 == 0, "alignment");
            memset(buffers[i], i % 100, BYTES);
            OK(ddl_allreduce(comm, NULL, buffers[i], BYTES, DDL_U8, DDL_MAX, NULL, NULL));
            CHECK(buffers[i][BYTES - 1] == i % 100, "buffer %d", i);
        }
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < MANY; i++)
            ddl_free(buffers[i]);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status, "the child ended with %x", status);
    OK(ddl_allreduce(comm, NULL, buffers[0], BYTES, DDL_U8, DDL_MAX, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(process_endpoint);
    for (int i = 0; i < MANY; i++) {
        buffers[i][0] = 1;
        ddl_free(buffers[i]);
    }
    ddl_free(NULL);
}

/* ------------------------------------------------------------------------------------- failures */

/* One rank dies somewhere in a loop of operations. The others end with DDL_EPEER; their send
 * buffers are unchanged, and their memory can be freed and written at once. */
static void death(ddl_comm *comm)
{
    enum { BYTES = 8 * MIB };
    int rank = ddl_comm_rank(comm);
    char *send = allocate(BYTES), *recv = allocate(BYTES);
    fill(send, BYTES, rank, DDL_F32, 0);
    if (rank == 1 && !fork()) { /* kills its parent during an operation */
        usleep(30000 + (unsigned)getpid() * 7919 % 40000);
        kill(getppid(), SIGKILL);
        _exit(0);
    }
    ddl_status status = DDL_OK;
    while (status == DDL_OK)
        status = ddl_allreduce(comm, send, recv, BYTES / 4, DDL_F32, DDL_SUM, NULL, NULL);
    CHECK(status == DDL_EPEER, "%d %s", status, ddl_last_error());
    char *right = malloc(BYTES);
    fill(right, BYTES, rank, DDL_F32, 0);
    CHECK(!memcmp(send, right, BYTES), "the send buffer was written to");
    memset(send, 0xff, BYTES);
    ddl_free(send);
    ddl_free(recv);
    free(right);
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(process_endpoint);
}

/* A rank abandons an operation and overwrites its buffer at once. No other rank uses that as
 * data. */
static void overwritten(ddl_comm *comm)
{
    enum { BYTES = 4 * MIB, CALLS = 100000 };
    int rank = ddl_comm_rank(comm);
    float *send = (float *)(void *)allocate(BYTES), *recv = (float *)(void *)allocate(BYTES);
    if (rank == 1 && !fork()) {
        usleep(30000 + (unsigned)getpid() * 7919 % 20000);
        kill(getppid(), SIGKILL);
        _exit(0);
    }
    ddl_status status = DDL_OK;
    for (int i = 0; i < CALLS && status == DDL_OK; i++) {
        for (int k = 0; k < BYTES / 4; k += 64)
            send[k] = 1;
        status = ddl_allreduce(comm, send, recv, BYTES / 4, DDL_F32, DDL_SUM, NULL, NULL);
        if (status != DDL_OK)
            memset(send, 0x7f, BYTES);
        for (int k = 0; status == DDL_OK && k < BYTES / 4; k += 64)
            CHECK(recv[k] == SIZE, "%g at %d", (double)recv[k], k);
    }
    CHECK(status == DDL_EPEER, "%d %s", status, ddl_last_error());
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {
        {"same_bits", same_bits, 0}, {"without_arena", without_arena, 0},
        {"frees", frees, 0},         {"limits", limits, 0},
        {"death", death, 2},         {"overwritten", overwritten, 2}};
    if (argc > 2)
        rounds_of_frees = atoi(argv[2]);
    run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
}
