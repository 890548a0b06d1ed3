/* SPDX-License-Identifier: Apache-2.0 */
/* test_invariant.c - DDL_INVARIANT=size on the links named by the argument: an all-reduce, a reduce
 * and a reduce-scatter of floats have the bits of the tree over the ranks, whatever the size, the
 * slicing, the group, the name and the algorithm. Ordered sums over 8 and 16 workers have the bits
 * of the tree over the workers on 1 to 8 ranks. The reference adds two operands at a time.
 *
 * A second argument is the number of elements of the longest message. The program then prints how
 * many results of all ranks it has compared. */
#include "comm/comm.h"
#include "fp_modes.h"
#include "ranks.h"
#include "reduce/reduce.h"

enum { RANKS = 8, WORKERS = 16, ELEMENTS = SANITIZED ? 6000 : 70000, BYTES = 16 };

static const ddl_dtype dtypes[] = {DDL_F32, DDL_F16,     DDL_BF16,    DDL_F64,
                                   DDL_C64, DDL_F8_E4M3, DDL_F8_E5M2, DDL_C128};
enum { TYPES = sizeof dtypes / sizeof *dtypes };
static const ddl_op ops[] = {DDL_SUM, DDL_AVERAGE, DDL_MIN, DDL_MAX, DDL_PRODUCT};

static int64_t elements = ELEMENTS;
static char *inputs[WORKERS]; /* of one dtype at a time */
static char *expected;
static atomic_llong compared;
static pthread_barrier_t turns;

static void combine(ddl_dtype dtype, ddl_op op, void *to, const void *a, const void *b, int64_t n,
                    int64_t divisor)
{
    const void *const both[] = {a, b};
    ddl__kernels_best()->reduce[dtype][op](to, both, 2, (size_t)n, divisor);
}

/* Compute the tree's result over ranks [first, first + n). `root`: the last step of an average. */
static void tree(ddl_dtype dtype, ddl_op op, int first, int n, bool root, int size, char *to)
{
    size_t bytes = (size_t)elements * types[dtype].size;
    if (n == 1) {
        memcpy(to, inputs[first], bytes);
        return;
    }
    int half = 1;
    while (2 * half < n)
        half *= 2;
    char *right = malloc(bytes);
    tree(dtype, op, first, half, false, size, to);
    tree(dtype, op, first + half, n - half, false, size, right);
    combine(dtype, op == DDL_AVERAGE && !root ? DDL_SUM : op, to, to, right, elements, size);
    free(right);
}

static void check(const char *what, const char *got, int64_t first, int64_t count, ddl_dtype dtype,
                  ddl_op op, int size)
{
    size_t element = types[dtype].size;
    const char *want = expected + (size_t)first * element;
    atomic_fetch_add_explicit(&compared, count, memory_order_relaxed);
    if (!memcmp(got, want, (size_t)count * element))
        return;
    for (int64_t i = 0; i < count; i++)
        CHECK(!memcmp(got + (size_t)i * element, want + (size_t)i * element, element),
              "%s of %s, op %d, %d ranks, elements %lld + %lld: element %lld differs", what,
              types[dtype].name, (int)op, size, (long long)first, (long long)count, (long long)i);
}

/* All-reduce a slice of the inputs: single, in place, in a group of small ones, or by a name. */
static void check_slice(ddl_comm *comm, ddl_dtype dtype, ddl_op op, int64_t first, int64_t count,
                        unsigned way, char *memory)
{
    size_t element = types[dtype].size;
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    const char *in = inputs[rank] + (size_t)first * element;
    ddl_options options = {.struct_size = sizeof options, .name = way == 2 ? "slice" : NULL};
    ddl_group *group;
    if (way == 1)
        memcpy(memory, in, (size_t)count * element);
    if (way != 3) {
        OK(ddl_allreduce(comm, way == 1 ? memory : in, memory, count, dtype, op, &options, NULL));
    } else {
        int64_t half = count / 2;
        OK(ddl_group_create(comm, &group));
        options.group = group;
        OK(ddl_allreduce(comm, in, memory, half, dtype, op, &options, NULL));
        OK(ddl_allreduce(comm, in + (size_t)half * element, memory + (size_t)half * element,
                         count - half, dtype, op, &options, NULL));
        OK(ddl_group_submit(group, NULL, NULL));
        ddl_group_destroy(group);
    }
    check(way == 1   ? "all-reduce in place"
          : way == 2 ? "named all-reduce"
          : way == 3 ? "group"
                     : "all-reduce",
          memory, first, count, dtype, op, size);
}

static void check_others(ddl_comm *comm, ddl_dtype dtype, ddl_op op, int64_t count, char *memory)
{
    size_t element = types[dtype].size;
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), root = (int)(count % size);
    OK(ddl_reduce(comm, inputs[rank], memory, count, dtype, op, root, NULL, NULL));
    if (rank == root)
        check("reduce", memory, 0, count, dtype, op, size);
    int64_t block = count / size, counts[RANKS], start = 0;
    OK(ddl_reduce_scatter(comm, inputs[rank], memory, block, dtype, op, NULL, NULL));
    check("reduce-scatter", memory, rank * block, block, dtype, op, size);
    memcpy(memory, inputs[rank], (size_t)(block * size) * element);
    OK(ddl_reduce_scatter(comm, NULL, memory, block, dtype, op, NULL, NULL));
    check("reduce-scatter in place", memory + (size_t)(rank * block) * element, rank * block, block,
          dtype, op, size);
    for (int r = 0; r < size; r++)
        counts[r] = r == 1 ? 0 : (r + 1) * (count / size / size);
    for (int r = 0; r < rank; r++)
        start += counts[r];
    OK(ddl_reduce_scatterv(comm, inputs[rank], memory, counts, dtype, op, NULL, NULL));
    check("reduce-scatter of uneven blocks", memory, start, counts[rank], dtype, op, size);
}

static void fill(ddl_dtype dtype, ddl_op op, int size)
{
    for (int r = 0; r < size; r++)
        fill_mixed(dtype, inputs[r], (size_t)elements);
    tree(dtype, op, 0, size, true, size, expected);
}

static void all_cases(ddl_comm *comm, void *unused)
{
    const int64_t lengths[] = {0, 1, 7, 300, 2500, 9000, elements};
    char *memory = malloc((size_t)elements * BYTES);
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    unsigned way = 0;
    CHECK(!comm->order == (size == 1), "the setting has no effect");
    if (rank % 2)
        ddl__fp_set(MODE_FLUSH_UP);
    for (int d = 0; d < TYPES; d++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
            if (types[dtypes[d]].kind == COMPLEX && ops[o] > DDL_AVERAGE)
                continue;
            pthread_barrier_wait(&turns);
            if (rank == 0)
                fill(dtypes[d], ops[o], size);
            pthread_barrier_wait(&turns);
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++, way++) {
                if (lengths[l] > elements || (lengths[l] == elements && o > 1))
                    continue; /* other ops have the same plans as sums */
                check_slice(comm, dtypes[d], ops[o], (elements - lengths[l]) / 3, lengths[l],
                            way % 4, memory);
                check_others(comm, dtypes[d], ops[o], lengths[l], memory);
            }
        }
    ddl__fp_set(DDL__FP_STANDARD);
    free(memory);
}

/* ------------------------------------------------------------------------ ordered sums of parts */

static const ddl_dtype ordered_dtypes[] = {DDL_I8,  DDL_U8,  DDL_I16, DDL_U16, DDL_I32,
                                           DDL_U32, DDL_I64, DDL_U64, DDL_F16, DDL_BF16,
                                           DDL_F32, DDL_F64, DDL_C64, DDL_C128};
enum { ORDERED_TYPES = sizeof ordered_dtypes / sizeof *ordered_dtypes };

static ddl_dtype part_dtype(ddl_dtype dtype)
{
    return dtype == DDL_F16 || dtype == DDL_BF16 ? DDL_F32 : dtype;
}

/* Compute the sums of all workers' operands, and the quotients of an average, rounded at the end.
 */
static void expect_workers(ddl_dtype dtype, ddl_op op, int workers)
{
    const ddl__kernels *kernels = ddl__kernels_best();
    ddl_dtype part = part_dtype(dtype);
    const void *sums = expected;
    tree(part, DDL_SUM, 0, workers, true, workers, expected);
    if (op == DDL_AVERAGE)
        kernels->reduce[part][op](expected, &sums, 1, (size_t)elements, workers);
    if (part != dtype) {
        char *wide = malloc((size_t)elements * sizeof(float));
        memcpy(wide, expected, (size_t)elements * sizeof(float));
        kernels->narrow[dtype](expected, (const float *)(void *)wide, (size_t)elements);
        free(wide);
    }
}

/* Check sums of `count` elements from `first` on: in one message, and as a reduce-scatter in equal
 * and in unequal blocks. */
static void check_parts(ddl_comm *comm, ddl_order *order, char *const *whole, int parts,
                        ddl_dtype dtype, ddl_op op, int64_t first, int64_t count, char *memory)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    size_t element = types[part_dtype(dtype)].size;
    const void *slices[WORKERS];
    int64_t block = count / size, counts[RANKS], start = first;
    for (int k = 0; k < parts; k++)
        slices[k] = whole[k] + (size_t)first * element;
    OK(ddl_allreduce_ordered(comm, order, slices, memory, count, dtype, op, NULL, NULL));
    check("ordered all-reduce", memory, first, count, dtype, op, size);
    OK(ddl_reduce_scatter_ordered(comm, order, slices, memory, block, dtype, op, NULL, NULL));
    check("ordered reduce-scatter", memory, first + rank * block, block, dtype, op, size);
    for (int r = 0; r < size; r++)
        counts[r] = r == 1 ? 0 : (r + 1) * (block / size);
    for (int r = 0; r < rank; r++)
        start += counts[r];
    OK(ddl_reduce_scatterv_ordered(comm, order, slices, memory, counts, dtype, op, NULL, NULL));
    check("ordered reduce-scatter of uneven blocks", memory, start, counts[rank], dtype, op, size);
}

/* Check the sums of one dtype in messages of all lengths. */
static void check_dtype(ddl_comm *comm, ddl_order *order, int workers, ddl_dtype dtype, ddl_op op,
                        char *memory)
{
    const int64_t lengths[] = {1, 300, 9000, elements};
    int firsts[WORKERS], sizes[WORKERS], parts;
    char *whole[WORKERS];
    OK(ddl_order_parts(order, ddl_comm_rank(comm), firsts, sizes, WORKERS, &parts));
    pthread_barrier_wait(&turns);
    if (ddl_comm_rank(comm) == 0)
        expect_workers(dtype, op, workers);
    for (int k = 0; k < parts; k++) {
        whole[k] = malloc((size_t)elements * types[part_dtype(dtype)].size);
        tree(part_dtype(dtype), DDL_SUM, firsts[k], sizes[k], false, workers, whole[k]);
    }
    pthread_barrier_wait(&turns);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        if (lengths[l] <= elements)
            check_parts(comm, order, whole, parts, dtype, op, (elements - lengths[l]) / 3,
                        lengths[l], memory);
    for (int k = 0; k < parts; k++)
        free(whole[k]);
}

typedef struct workers_case {
    int workers;
    ddl_dtype filled; /* the dtype of the numbers in `inputs` */
} workers_case;

/* Return the dtype of the numbers that a part consists of, DDL_F64 for the bits of integers. */
static ddl_dtype number_dtype(ddl_dtype dtype)
{
    return part_dtype(dtype) == DDL_F32 || dtype == DDL_C64 ? DDL_F32 : DDL_F64;
}

static void all_ordered_cases(ddl_comm *comm, void *argument)
{
    const workers_case *c = argument;
    int workers = c->workers, size = ddl_comm_size(comm), owners[WORKERS];
    char *memory = malloc((size_t)elements * BYTES);
    ddl_order *order;
    for (int r = 0; r < size; r++)
        for (int v = r * workers / size; v < (r + 1) * workers / size; v++)
            owners[v] = r;
    OK(ddl_order_create(owners, workers, size, &order));
    for (int d = 0; d < ORDERED_TYPES; d++)
        if (number_dtype(ordered_dtypes[d]) == c->filled)
            check_dtype(comm, order, workers, ordered_dtypes[d],
                        (d + size + workers / 8) % 2 ? DDL_SUM : DDL_AVERAGE, memory);
    ddl_order_destroy(order);
    free(memory);
}

static void run_workers(uint32_t links)
{
    for (ddl_dtype filled = DDL_F32; filled <= DDL_F64; filled++) {
        for (int v = 0; v < WORKERS; v++)
            fill_mixed(filled, inputs[v], (size_t)elements * 2);
        for (int workers = WORKERS / 2; workers <= WORKERS; workers *= 2)
            for (int size = 1; size <= (SANITIZED ? 4 : RANKS); size++) {
                workers_case c = {workers, filled};
                pthread_barrier_init(&turns, NULL, (unsigned)size);
                run_ranks(size, links, all_ordered_cases, &c);
                pthread_barrier_destroy(&turns);
            }
    }
}

/* ----------------------------------------------------------------------------------- settings */

/* With ranks:V, a rank passes parts. A reduction of one operand for each rank is refused if its
 * bits would depend on the number of ranks. */
static void check_workers(ddl_comm *comm, void *unused)
{
    float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
    int numbers[8] = {0}, sums[8];
    int size = ddl_comm_size(comm);
    bool is_few = size > 4;
    const char *words = is_few ? "as many workers as ranks" : "ddl_allreduce_ordered";
    if (size == 4) {
        OK(ddl_allreduce(comm, in, out, 8, DDL_F32, DDL_SUM, NULL, NULL));
        CHECK(out[7] == 32, "%g", (double)out[7]);
        return;
    }
    INVALID(ddl_allreduce(comm, in, out, 8, DDL_F32, DDL_SUM, NULL, NULL), words);
    INVALID(ddl_reduce(comm, in, out, 8, DDL_F32, DDL_AVERAGE, 0, NULL, NULL), words);
    INVALID(ddl_reduce_scatter(comm, in, out, 1, DDL_F64, DDL_PRODUCT, NULL, NULL),
            is_few ? words : "ddl_reduce_scatter_ordered");
    OK(ddl_allreduce(comm, in, out, 8, DDL_F32, DDL_MAX, NULL, NULL));
    OK(ddl_allreduce(comm, numbers, sums, 8, DDL_I32, DDL_SUM, NULL, NULL));
}

/* A child inherits the setting, or has its own. */
static void check_children(ddl_comm *comm, void *unused)
{
    ddl_comm *child;
    ddl_comm_config config = {.struct_size = sizeof config, .invariant = DDL_INVARIANT_NONE};
    OK(ddl_comm_duplicate(comm, NULL, &child));
    CHECK(child->order, "a child does not inherit the setting");
    ddl_comm_destroy(child);
    OK(ddl_comm_duplicate(comm, &config, &child));
    CHECK(!child->order, "a child ignores its own setting");
    ddl_comm_destroy(child);
    config.invariant = ddl_comm_rank(comm) ? 8 : DDL_INVARIANT_SIZE;
    ddl_status status = ddl_comm_duplicate(comm, &config, &child);
    CHECK(status == DDL_EINVAL && strstr(ddl_last_error(), "ranks:8") &&
              strstr(ddl_last_error(), "size"),
          "%d \"%s\"", status, ddl_last_error());
    config.invariant = -3;
    INVALID(ddl_comm_duplicate(comm, &config, &child), "invariant is -3");
}

static void check_settings(void)
{
    setenv("DDL_INVARIANT", "ranks:4", 1);
    for (int size = 2; size <= 5; size++)
        run_ranks(size, DDL_LINK_INPROC, check_workers, NULL);
    setenv("DDL_INVARIANT", "size", 1);
    run_ranks(2, DDL_LINK_INPROC, check_children, NULL);
}

int main(int argc, char **argv)
{
    uint32_t links = links_argument(argc, argv);
    if (argc > 2)
        elements = atoll(argv[2]);
    setenv("DDL_INVARIANT", "size", 1);
    expected = malloc((size_t)elements * BYTES);
    for (int v = 0; v < WORKERS; v++)
        inputs[v] = malloc((size_t)elements * BYTES);
    for (int size = 1; size <= (SANITIZED ? 4 : RANKS); size++) {
        pthread_barrier_init(&turns, NULL, (unsigned)size);
        run_ranks(size, links, all_cases, NULL);
        pthread_barrier_destroy(&turns);
    }
    run_workers(links);
    if (argc > 2)
        printf("%s: %lld results compared, no bit differs\n", argv[1], atomic_load(&compared));
    if (links == DDL_LINK_INPROC)
        check_settings();
    for (int v = 0; v < WORKERS; v++)
        free(inputs[v]);
    free(expected);
}
