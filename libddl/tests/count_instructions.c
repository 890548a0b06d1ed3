/* SPDX-License-Identifier: Apache-2.0 */
/* count_instructions.c - the code paths whose instructions are counted (instructions.py), one after
 * the other. Each runs first without counting, so that plans are made and pages exist, then once
 * within `counted`, at whose end callgrind writes its counts.
 *
 * Two ranks in one process are driven by this thread alone: rank 1 submits first, so rank 0 finds
 * everything it needs and never waits. Prints the name of each path. */
#include "ranks.h"
#include "reduce/reduce.h"

enum { KERNEL_BYTES = 64 << 10, OPERANDS = 4 };

static ddl_comm *comms[2];
static pthread_barrier_t joined, finished;

/* callgrind finds this function by name. */
__attribute__((noinline)) void counted(void (*path)(const void *), const void *argument);
void counted(void (*path)(const void *), const void *argument)
{
    path(argument);
    /* prevents a tail call: leaving this function ends the count */
    __asm__ volatile("" ::: "memory");
}

/* ----------------------------------------------------------------------------------- kernels */

typedef struct kernel_case {
    const char *name;
    ddl_dtype dtype;
    ddl_op op;
    size_t operands;
    bool copied; /* the result is also copied to a second buffer in the same pass */
} kernel_case;

static const kernel_case kernel_cases[] = {
    {"f32 sum of 2", DDL_F32, DDL_SUM, 2, false},
    {"f32 sum of 2, copied", DDL_F32, DDL_SUM, 2, true},
    {"f32 sum of 4", DDL_F32, DDL_SUM, 4, false},
    {"f32 average of 2", DDL_F32, DDL_AVERAGE, 2, false},
    {"f32 max of 2", DDL_F32, DDL_MAX, 2, false},
    {"f64 sum of 2", DDL_F64, DDL_SUM, 2, false},
    {"f16 sum of 2", DDL_F16, DDL_SUM, 2, false},
    {"bf16 sum of 2", DDL_BF16, DDL_SUM, 2, false},
    {"f8_e4m3 sum of 2", DDL_F8_E4M3, DDL_SUM, 2, false},
    {"i8 sum of 2", DDL_I8, DDL_SUM, 2, false},
    {"i64 product of 2", DDL_I64, DDL_PRODUCT, 2, false},
};

static char operands[OPERANDS][KERNEL_BYTES], result[KERNEL_BYTES], copy[KERNEL_BYTES];

static void run_kernel(const void *argument)
{
    const kernel_case *c = argument;
    const void *const from[OPERANDS] = {operands[0], operands[1], operands[2], operands[3]};
    ddl__reduce(ddl__kernels_named("avx2"), c->dtype, c->op, result, c->copied ? copy : NULL, false,
                from, c->operands, KERNEL_BYTES / ddl_dtype_size(c->dtype), 2);
}

static void run_copy(const void *argument)
{
    ddl__kernels_named("avx2")->copy(result, operands[0], KERNEL_BYTES);
}

static void run_copy_nontemporal(const void *argument)
{
    ddl__kernels_named("avx2")->copy_nontemporal(result, operands[0], KERNEL_BYTES);
}

static void count_kernels(void)
{
    for (size_t i = 0; i < sizeof kernel_cases / sizeof *kernel_cases; i++) {
        run_kernel(&kernel_cases[i]);
        printf("kernel: %s, 64 KiB\n", kernel_cases[i].name);
        counted(run_kernel, &kernel_cases[i]);
    }
    run_copy(NULL);
    printf("kernel: copy, 64 KiB\n");
    counted(run_copy, NULL);
    run_copy_nontemporal(NULL);
    printf("kernel: copy past the caches, 64 KiB\n");
    counted(run_copy_nontemporal, NULL);
}

/* ------------------------------------------------------------------------------------- calls */

typedef enum call_way { BLOCKING, WAITED } call_way;

typedef struct call_case {
    const char *name;
    int64_t count; /* elements of f32 */
    call_way way;
} call_case;

static const call_case call_cases[] = {
    {"all-reduce, 8 B", 2, BLOCKING},
    {"all-reduce, 1 KiB", 256, BLOCKING},
    {"all-reduce, 1 KiB, submitted and waited for", 256, WAITED},
};

static float data[2][256];

/* Run rank 0's part; rank 1's part is already there. */
static void run_call(const void *argument)
{
    const call_case *c = argument;
    ddl_work *work;
    if (c->way == BLOCKING) {
        OK(ddl_allreduce(comms[0], NULL, data[0], c->count, DDL_F32, DDL_SUM, NULL, NULL));
        return;
    }
    OK(ddl_allreduce(comms[0], NULL, data[0], c->count, DDL_F32, DDL_SUM, NULL, &work));
    OK(ddl_work_wait(work, -1));
    ddl_work_destroy(work);
}

static void count_call(const call_case *c)
{
    for (int i = 0; i < 20; i++) {
        ddl_work *work;
        OK(ddl_allreduce(comms[1], NULL, data[1], c->count, DDL_F32, DDL_SUM, NULL, &work));
        if (i < 19)
            run_call(c);
        else
            counted(run_call, c);
        OK(ddl_work_wait(work, -1));
        ddl_work_destroy(work);
    }
}

/* Rank 0's thread counts, with both comms; rank 1's thread has only joined. */
static void be_rank(ddl_comm *comm, void *unused)
{
    comms[ddl_comm_rank(comm)] = comm;
    pthread_barrier_wait(&joined);
    if (ddl_comm_rank(comm) == 0)
        for (size_t i = 0; i < sizeof call_cases / sizeof *call_cases; i++) {
            printf("call: %s\n", call_cases[i].name);
            count_call(&call_cases[i]);
        }
    pthread_barrier_wait(&finished);
}

int main(void)
{
    if (!ddl__kernels_named("avx2")) {
        fprintf(stderr, "this CPU has no AVX2\n");
        return 77;
    }
    count_kernels();
    pthread_barrier_init(&joined, NULL, 2);
    pthread_barrier_init(&finished, NULL, 2);
    run_ranks(2, DDL_LINK_INPROC, be_rank, NULL);
}
