/* SPDX-License-Identifier: Apache-2.0 */
/* test_invariant.c - DDL_INVARIANT=size on the links named by the argument: an all-reduce, a reduce
 * and a reduce-scatter of floats have the bits of the tree over the ranks, whatever the size, the
 * slicing, the group, the name and the algorithm. The reference adds two operands at a time.
 *
 * A second argument is the number of elements of the longest message. */
#include "comm/comm.h"
#include "fp_modes.h"
#include "ranks.h"
#include "reduce/reduce.h"

enum { RANKS = 8, ELEMENTS = SANITIZED ? 6000 : 70000, BYTES = 16 };

static const ddl_dtype dtypes[] = {DDL_F32, DDL_F16,     DDL_BF16,    DDL_F64,
                                   DDL_C64, DDL_F8_E4M3, DDL_F8_E5M2, DDL_C128};
enum { TYPES = sizeof dtypes / sizeof *dtypes };
static const ddl_op ops[] = {DDL_SUM, DDL_AVERAGE, DDL_MIN, DDL_MAX, DDL_PRODUCT};

static int64_t elements = ELEMENTS;
static char *inputs[RANKS]; /* of one dtype at a time */
static char *expected;
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
    for (int r = 0; r < RANKS; r++)
        inputs[r] = malloc((size_t)elements * BYTES);
    for (int size = 1; size <= (SANITIZED ? 4 : RANKS); size++) {
        pthread_barrier_init(&turns, NULL, (unsigned)size);
        run_ranks(size, links, all_cases, NULL);
        pthread_barrier_destroy(&turns);
    }
    if (links == DDL_LINK_INPROC)
        check_settings();
    for (int r = 0; r < RANKS; r++)
        free(inputs[r]);
    free(expected);
}
