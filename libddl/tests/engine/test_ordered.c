/* SPDX-License-Identifier: Apache-2.0 */
/* test_ordered.c - ordered sums on the links named by the argument: the same bits for every number
 * of ranks, owners, links, way of calling and instruction set, which may differ between ranks. The
 * reference is computed by one rank that owns all workers. */
#include "comm/comm.h"
#include "engine/state.h"
#include "fp_modes.h"
#include "ranks.h"

enum {
    WORKERS = 13,
    MOST = SANITIZED ? 3000 : 50000, /* elements */
    MOST_BYTES = MOST * 16,
    WAYS = 4 /* ways of calling */
};

static const int workers_of[] = {1, 2, 3, 4, 8, WORKERS};
static const int64_t counts[] = {0, 1, 37, 1024, MOST};
static const ddl_dtype dtypes[] = {DDL_I8,   DDL_U16, DDL_I32, DDL_I64, DDL_F16,
                                   DDL_BF16, DDL_F32, DDL_F64, DDL_C64, DDL_C128};
enum {
    NUMBERS = sizeof workers_of / sizeof *workers_of,
    COUNTS = sizeof counts / sizeof *counts,
    DTYPES_USED = sizeof dtypes / sizeof *dtypes
};

static char inputs[DTYPES_USED][WORKERS][MOST_BYTES];
static char *expected[NUMBERS][DTYPES_USED][COUNTS][2]; /* by op */

static ddl_dtype part_dtype(ddl_dtype dtype)
{
    return dtype == DDL_F16 || dtype == DDL_BF16 ? DDL_F32 : dtype;
}

/* Compute the sum as ddl.h defines it. */
static void tree_sum(int d, int first, int n, int64_t count, char *sum)
{
    ddl_dtype dtype = part_dtype(dtypes[d]);
    size_t bytes = (size_t)count * types[dtype].size;
    if (n == 1) {
        memcpy(sum, inputs[d][first], bytes);
        return;
    }
    int half = 1;
    while (2 * half < n)
        half *= 2;
    char *right = malloc(bytes + 1);
    tree_sum(d, first, half, count, sum);
    tree_sum(d, first + half, n - half, count, right);
    OK(ddl_add(sum, sum, right, count, dtype));
    free(right);
}

/* ------------------------------------------------------------------------------------- one call */

typedef struct sum_case {
    int number, d, c; /* indices of workers_of, dtypes, counts */
    ddl_op op;
    int way;
} sum_case;

/* Call the sum, and destroy the order as soon as the call has it. */
static void call(ddl_comm *comm, sum_case s, ddl_order *order, const void *const *parts, void *recv)
{
    ddl_work *work;
    ddl_group *group;
    char name[64];
    snprintf(name, sizeof name, "sum %d %d %d", s.number, s.d, s.c);
    ddl_options options = {.struct_size = sizeof options};
#define CALL(options, work)                                                                        \
    ddl_allreduce_ordered(comm, order, parts, recv, counts[s.c], dtypes[s.d], s.op, options, work)
    if (s.way == 0) {
        OK(CALL(NULL, NULL));
        ddl_order_destroy(order);
    } else if (s.way == 3) {
        OK(ddl_group_create(comm, &group));
        options.group = group;
        OK(CALL(&options, NULL));
        OK(CALL(&options, NULL));
        ddl_order_destroy(order);
        for (int i = 0; i < 2; i++) /* a group may be submitted again */
            OK(ddl_group_submit(group, NULL, NULL));
        ddl_group_destroy(group);
    } else {
        options.name = s.way == 2 ? name : NULL;
        OK(CALL(&options, &work));
        ddl_order_destroy(order); /* pending operations keep what they need */
        OK(ddl_work_wait(work, -1));
        ddl_work_destroy(work);
    }
#undef CALL
}

/* Return the *n parts that this rank passes, on the heap. */
static void **bring(const ddl_order *order, int rank, sum_case s, int *n)
{
    int firsts[WORKERS], sizes[WORKERS];
    OK(ddl_order_parts(order, rank, firsts, sizes, WORKERS, n));
    void **parts = malloc(WORKERS * sizeof *parts);
    for (int k = 0; k < *n; k++) {
        parts[k] = malloc((size_t)counts[s.c] * 16 + 1);
        tree_sum(s.d, firsts[k], sizes[k], counts[s.c], parts[k]);
    }
    return parts;
}

/* Reduce-scatters of the same parts, in equal and in unequal blocks, give blocks of the same sum.
 */
static void check_scatters(ddl_comm *comm, sum_case s, const int *owners, const void *const *parts,
                           const char *want)
{
    ddl_order *order;
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    size_t element = types[dtypes[s.d]].size;
    int64_t block = counts[s.c] / size, blocks[16], start = 0;
    char *recv = malloc((size_t)counts[s.c] * element + 1);
    OK(ddl_order_create(owners, workers_of[s.number], size, &order));
    memset(recv, 0x5a, (size_t)block * element + 1);
    OK(ddl_reduce_scatter_ordered(comm, order, parts, recv, block, dtypes[s.d], s.op, NULL, NULL));
    CHECK(!memcmp(recv, want + (size_t)(rank * block) * element, (size_t)block * element) &&
              recv[(size_t)block * element] == 0x5a,
          "reduce-scatter, %d workers on %d ranks, %s, count %d, op %d", workers_of[s.number], size,
          types[dtypes[s.d]].name, (int)counts[s.c], (int)s.op);
    for (int r = 0; r < size; r++)
        blocks[r] = r % 3 == 1 ? 0 : block / 2 + r % 2 * (block / 2);
    for (int r = 0; r < rank; r++)
        start += blocks[r];
    OK(ddl_reduce_scatterv_ordered(comm, order, parts, recv, blocks, dtypes[s.d], s.op, NULL,
                                   NULL));
    CHECK(!memcmp(recv, want + (size_t)start * element, (size_t)blocks[rank] * element),
          "reduce-scatter of unequal blocks, %d workers on %d ranks, %s, count %d",
          workers_of[s.number], size, types[dtypes[s.d]].name, (int)counts[s.c]);
    ddl_order_destroy(order);
    free(recv);
}

static void check_case(ddl_comm *comm, sum_case s, const int *owners)
{
    ddl_order *order;
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), n;
    size_t bytes = (size_t)counts[s.c] * types[dtypes[s.d]].size;
    OK(ddl_order_create(owners, workers_of[s.number], size, &order));
    void **parts = bring(order, rank, s, &n);
    char *recv = malloc(bytes + 1);
    memset(recv, 0x5a, bytes + 1);
    call(comm, s, order, (const void *const *)parts, recv);
    char **want = &expected[s.number][s.d][s.c][s.op == DDL_AVERAGE];
    if (!*want)
        *want = recv;
    CHECK(!memcmp(recv, *want, bytes), "%d workers on %d ranks, %s, count %d, op %d, way %d",
          workers_of[s.number], size, types[dtypes[s.d]].name, (int)counts[s.c], (int)s.op, s.way);
    CHECK(recv[bytes] == 0x5a, "written behind the result");
    if (s.way == 0)
        check_scatters(comm, s, owners, (const void *const *)parts, *want);
    if (*want != recv)
        free(recv);
    for (int k = 0; k < n; k++) {
        char *again = malloc((size_t)counts[s.c] * 16 + 1);
        int firsts[WORKERS], sizes[WORKERS];
        OK(ddl_order_create(owners, workers_of[s.number], size, &order));
        OK(ddl_order_parts(order, rank, firsts, sizes, WORKERS, &n));
        tree_sum(s.d, firsts[k], sizes[k], counts[s.c], again);
        CHECK(!memcmp(again, parts[k], (size_t)counts[s.c] * types[part_dtype(dtypes[s.d])].size),
              "part %d was written", k);
        ddl_order_destroy(order);
        free(again);
        free(parts[k]);
    }
    free(parts);
}

/* ------------------------------------------------------------------------------------ all calls */

/* Ranks may run different instruction sets. */
static void use(ddl_comm *comm, size_t set)
{
    const ddl__kernels *sets[4];
    set %= instruction_sets(sets);
    pthread_mutex_lock(&comm->engine->lock);
    comm->engine->ordered.runner.kernels = sets[set];
    comm->engine->named.stream.runner.kernels = sets[set];
    pthread_mutex_unlock(&comm->engine->lock);
}

static void choose_owners(int *owners, int workers, int size, unsigned turn)
{
    unsigned random = turn * 7919 + (unsigned)workers;
    for (int v = 0; v < workers; v++) {
        random = random * 1103515245 + 12345;
        owners[v] = turn % 2 ? v * size / workers : (int)(random >> 16) % size;
    }
}

static void all_cases(ddl_comm *comm, void *unused)
{
    unsigned turn = 0;
    /* this thread rounds up and flushes subnormals: the bits are the same */
    if (ddl_comm_rank(comm) % 2)
        ddl__fp_set(MODE_FLUSH_UP);
    for (int number = 0; number < NUMBERS; number++)
        for (int d = 0; d < DTYPES_USED; d++)
            for (int c = 0; c < COUNTS; c++)
                for (ddl_op op = DDL_SUM; op <= DDL_AVERAGE; op++, turn++) {
                    int owners[WORKERS];
                    /* Only some of the long ones; all are compared with one rank's results. */
                    if (c == COUNTS - 1 && ddl_comm_size(comm) > 1 && turn % 3)
                        continue;
                    choose_owners(owners, workers_of[number], ddl_comm_size(comm), turn / 2 + turn);
                    use(comm, turn + (unsigned)ddl_comm_rank(comm));
                    check_case(comm, (sum_case){number, d, c, op, (int)(turn / 2 % WAYS)}, owners);
                }
    ddl__fp_set(DDL__FP_STANDARD);
}

/* Use one order for dtypes of one size, some of whose parts are longer, and for two comms at
 * once. */
static void same_order(ddl_comm *comm, void *argument)
{
    ddl_order *order = argument;
    int n, number = NUMBERS - 1, c = 2;
    ddl_comm *other;
    OK(ddl_comm_duplicate(comm, NULL, &other));
    for (int turn = 0; turn < 3; turn++)
        for (int d = 0; d < DTYPES_USED; d++) {
            uint16_t sums[2][1024];
            sum_case s = {number, d, c, DDL_SUM, 0};
            ddl_work *works[2];
            void **parts = bring(order, ddl_comm_rank(comm), s, &n);
            for (int i = 0; types[dtypes[d]].size == 2 && i < 2; i++)
                OK(ddl_allreduce_ordered(i ? other : comm, order, (const void *const *)parts,
                                         sums[i], counts[c], dtypes[d], DDL_SUM, NULL, &works[i]));
            for (int i = 0; types[dtypes[d]].size == 2 && i < 2; i++) {
                OK(ddl_work_wait(works[i], -1));
                ddl_work_destroy(works[i]);
                CHECK(!memcmp(sums[i], expected[number][d][c][0], (size_t)counts[c] * 2),
                      "%s, turn %d, comm %d", types[dtypes[d]].name, turn, i);
            }
            for (int k = 0; k < n; k++)
                free(parts[k]);
            free(parts);
        }
    ddl_comm_destroy(other);
}

/* Check that one rank's results equal plain additions of floats in the standard mode. */
static float plain_sum(int d, int first, int n, int64_t i)
{
    int half = 1;
    float value;
    if (n == 1) {
        memcpy(&value, inputs[d][first] + i * 4, 4);
        return value;
    }
    while (2 * half < n)
        half *= 2;
    float left = plain_sum(d, first, half, i), right = plain_sum(d, first + half, n - half, i);
    return left + right;
}

static void check_plain(void)
{
    for (int d = 0; d < DTYPES_USED; d++)
        for (int number = 0; dtypes[d] == DDL_F32 && number < NUMBERS; number++)
            for (int64_t i = 0; i < MOST; i++) {
                float sum = plain_sum(d, 0, workers_of[number], i), average;
                average = sum / (float)workers_of[number];
                CHECK(!memcmp(expected[number][d][COUNTS - 1][0] + i * 4, &sum, 4), "sum");
                CHECK(!memcmp(expected[number][d][COUNTS - 1][1] + i * 4, &average, 4), "average");
            }
}

int main(int argc, char **argv)
{
    uint32_t links = links_argument(argc, argv);
    for (int d = 0; d < DTYPES_USED; d++)
        for (int v = 0; v < WORKERS; v++)
            if (is_float(dtypes[d]))
                fill_mixed(part_dtype(dtypes[d]), inputs[d][v], MOST);
            else
                for (int i = 0; i < MOST_BYTES; i++)
                    inputs[d][v][i] = (char)random_bits();
    run_ranks(1, 0, all_cases, NULL);
    check_plain();
    for (int size = 2; size <= (SANITIZED ? 4 : 8); size += size > 3 ? 2 : 1) {
        int owners[WORKERS];
        ddl_order *order;
        run_ranks(size, links, all_cases, NULL);
        choose_owners(owners, WORKERS, size, 1);
        OK(ddl_order_create(owners, WORKERS, size, &order));
        run_ranks(size, links, same_order, order);
        ddl_order_destroy(order);
    }
}
