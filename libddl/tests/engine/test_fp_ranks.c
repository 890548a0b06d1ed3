/* SPDX-License-Identifier: Apache-2.0 */
/* test_fp_ranks.c - ranks whose threads have different floating-point modes get the same bits as in
 * the standard mode: every float dtype and op, all instruction sets, steps alone and interleaved,
 * scaled, and driven by the endpoint's thread. Each call restores its thread's mode. */
#include "comm/comm.h"
#include "engine/state.h"
#include "fp_modes.h"
#include "net/shm/stores.h"
#include "ranks.h"

enum {
    SIZE = 2,
    MOST = SANITIZED ? 1000 : 40000, /* elements */
    LONG_BYTES = 2 << 20             /* interleaved, if cores are far apart */
};

/* The modes of both ranks. */
static const ddl__fp_mode cases[][SIZE] = {
    {MODE_FLUSH, DDL__FP_STANDARD}, {DDL__FP_STANDARD, MODE_UP}, {MODE_FLUSH_UP, MODE_FLUSH}};
enum { CASES = sizeof cases / sizeof *cases };

typedef struct call {
    ddl_dtype dtype;
    ddl_op op;
    int64_t count;
    bool scaled, left_alone;
} call;

static void use(ddl_comm *comm, const ddl__kernels *kernels)
{
    pthread_mutex_lock(&comm->engine->lock);
    comm->engine->ordered.runner.kernels = kernels;
    pthread_mutex_unlock(&comm->engine->lock);
}

/* Let only the endpoint's thread drive. */
static void leave_alone(ddl_work *work)
{
    while (ddl_work_test(work) == DDL_INPROGRESS)
        usleep(100);
    OK(ddl_work_wait(work, -1));
    ddl_work_destroy(work);
}

static void all_reduce(ddl_comm *comm, call c, ddl__fp_mode mode, const char *operand, char *result)
{
    ddl_options scales = {.struct_size = sizeof scales, .prescale = 1 / 3.0, .postscale = 0.7};
    ddl_work *work = NULL;
    ddl__fp_set(mode);
    ddl__fp_mode before = ddl__fp_read();
    ddl_status status = ddl_allreduce(comm, operand, result, c.count, c.dtype, c.op,
                                      c.scaled ? &scales : NULL, c.left_alone ? &work : NULL);
    ddl__fp_mode after = ddl__fp_read();
    ddl__fp_set(DDL__FP_STANDARD);
    OK(status);
    CHECK(((before ^ after) & (ddl__fp_mode)DDL__FP_CONTROL) == 0, "mode %llx became %llx",
          (unsigned long long)before, (unsigned long long)after);
    if (c.left_alone)
        leave_alone(work);
}

/* Run a call in the standard mode on both ranks, then in other modes. */
static void check(ddl_comm *comm, call c)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; /* random_bits has only one state */
    size_t bytes = (size_t)c.count * types[c.dtype].size;
    char *operand = malloc(bytes), *expected = malloc(bytes), *got = malloc(bytes);
    CHECK(operand && expected && got, "no memory");
    pthread_mutex_lock(&one);
    fill_mixed(c.dtype, operand, (size_t)c.count);
    pthread_mutex_unlock(&one);
    all_reduce(comm, c, DDL__FP_STANDARD, operand, expected);
    for (int i = 0; i < CASES; i++) {
        all_reduce(comm, c, cases[i][ddl_comm_rank(comm)], operand, got);
        size_t at = difference(c.dtype, got, expected, (size_t)c.count);
        CHECK(at == (size_t)c.count, "rank %d, case %d: %s op %d, element %zu of %lld%s%s",
              ddl_comm_rank(comm), i, types[c.dtype].name, (int)c.op, at, (long long)c.count,
              c.scaled ? ", scaled" : "", c.left_alone ? ", by the endpoint's thread" : "");
    }
    free(operand);
    free(expected);
    free(got);
}

static void every_kernel(ddl_comm *comm, void *unused)
{
    static const int64_t counts[] = {1, 100, MOST};
    const ddl__kernels *sets[4];
    const size_t n_sets = instruction_sets(sets);
    for (size_t i = SANITIZED ? n_sets - 1 : 0; i < n_sets; i++)
        for (ddl_dtype dtype = DDL_BOOL; dtype <= DDL_C128; dtype++)
            for (ddl_op op = DDL_SUM; is_float(dtype) && op <= DDL_PRODUCT; op++)
                for (size_t n = 0; supported(dtype, op) && n < sizeof counts / sizeof *counts;
                     n++) {
                    use(comm, sets[i]);
                    check(comm, (call){dtype, op, counts[n], op == DDL_AVERAGE, false});
                }
}

/* Make spans of all lengths non-temporal, as to a far core: then steps are interleaved. */
static void in_turn(ddl_comm *comm, void *unused)
{
    for (ddl_dtype dtype = SANITIZED ? DDL_F32 : DDL_BOOL;
         dtype <= (SANITIZED ? DDL_F64 : DDL_C128); dtype++)
        for (ddl_op op = DDL_SUM; is_float(dtype) && op <= DDL_AVERAGE; op++) {
            ddl__engine *engine = comm->engine;
            pthread_mutex_lock(&engine->lock);
            for (int i = 0; i < DDL__STORES; i++)
                engine->config.links[1 - ddl_comm_rank(comm)]->stores[i] =
                    (ddl__stores){.rate = {1e-6f, 1}, .nontemporal = true};
            pthread_mutex_unlock(&engine->lock);
            int64_t count = LONG_BYTES / (int64_t)types[dtype].size;
            check(comm, (call){dtype, op, count, false, false});
        }
}

static void by_endpoint(ddl_comm *comm, void *unused)
{
    for (int scaled = 0; scaled < 2; scaled++)
        for (int64_t count = 10; count <= MOST; count *= 10)
            check(comm, (call){DDL_F32, DDL_SUM, count, scaled, true});
}

int main(void)
{
    if (!HAS_MODES)
        return 77;
    run_ranks(SIZE, DDL_LINK_SHM, every_kernel, NULL);
    if (!SANITIZED) /* the driver is the same */
        run_ranks(SIZE, DDL_LINK_TCP, every_kernel, NULL);
    run_ranks(SIZE, DDL_LINK_SHM, in_turn, NULL);
    /* Threads inherit the mode of their creator. */
    ddl__fp_set(MODE_FLUSH_UP);
    run_ranks(SIZE, DDL_LINK_SHM, by_endpoint, NULL);
}
