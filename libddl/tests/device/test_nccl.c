/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of ranks with one GPU each, on the stand-ins for libcuda.so.1 and libnccl.so.2: they
 * have the right results, between the caller's previous and later work in the stream; also if NCCL
 * cannot be used, or hangs. Ranks are processes. A mode string declares the hosts. */
#include "device_calls.h"

enum { WORDS = 100000, LIMIT = 20, SAMPLE = SANITIZED ? 7 : 1 };

static unsigned long long (*nccl_operations)(void);
static CUstream mine; /* this rank's stream, in which operations with `options` run */
static ddl_options options;
static uint32_t *buffer; /* of WORDS */

/* Use GPU number `rank`. */
static void start(const ddl_comm *comm)
{
    void *library = dlopen(NCCL_STANDIN, RTLD_NOW);
    CHECK(library, "%s", dlerror());
    *(void **)&nccl_operations = dlsym(library, "standin_nccl_operations");
    device_start_on(ddl_comm_rank(comm));
    mine = device_stream();
    options = on_device;
    options.stream = mine;
    buffer = device_alloc(4 * WORDS);
}

static void check_path(const char *what, bool by_nccl)
{
    CHECK(by_nccl == (nccl_operations() > 0), "%s: NCCL had %llu operations", what,
          nccl_operations());
}

static void await_stream(CUstream stream, const char *when)
{
    double end = seconds() + LIMIT;
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
        CHECK(seconds() < end, "the stream is stuck %s", when);
        usleep(1000);
    }
    CU(cuStreamQuery(stream));
}

/* --------------------------------------------------------------------------------- the results */

/* On one host, each operation has the result of the same operation on host memory. */
static void operations(ddl_comm *comm)
{
    static const ddl_dtype dtypes[] = {DDL_F32, DDL_BF16, DDL_I64, DDL_U8, DDL_F64};
    static const int64_t counts[] = {1, 1000, SANITIZED ? 7001 : 70001};
    start(comm);
    unsigned combination = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (unsigned d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (unsigned n = 0; n < sizeof counts / sizeof *counts; n++)
                for (int in_place = 0; in_place < 2; in_place++)
                    if (combination++ % SAMPLE == 0)
                        compare(comm, kind, dtypes[d], counts[n], in_place);
    check_path("all operations", true);
    ddl_comm_destroy(comm);
}

typedef struct reduction {
    ddl_dtype dtype;
    ddl_op op;
    bool on_one_host, by_nccl; /* by_nccl: NCCL supports it; between hosts libddl divides */
} reduction;

static void load(void *to, int64_t count, ddl_dtype dtype, int rank)
{
    for (int64_t i = 0; i < count; i++) {
        int value = (int)(i * 5 + rank * 3) % 7 + 1;
        if (dtype == DDL_F32)
            ((float *)to)[i] = (float)value;
        else if (dtype == DDL_F64)
            ((double *)to)[i] = value;
        else if (dtype == DDL_I32)
            ((int32_t *)to)[i] = value - 4;
        else if (dtype == DDL_I16)
            ((int16_t *)to)[i] = (int16_t)(value - 4);
        else
            ((uint8_t *)to)[i] = (uint8_t)value;
    }
}

/* Compare a reduction of values whose sums are exact in any order. */
static void compare_reduction(ddl_comm *comm, reduction r, int64_t count, bool in_place)
{
    size_t bytes = (size_t)count * ddl_dtype_size(r.dtype);
    void *send = malloc(bytes), *recv = malloc(bytes), *seen = malloc(bytes);
    load(send, count, r.dtype, ddl_comm_rank(comm));
    void *device_send = device_copy(send, bytes), *device_recv = device_alloc(bytes);
    OK(ddl_allreduce(comm, send, recv, count, r.dtype, r.op, NULL, NULL));
    OK(ddl_allreduce(comm, in_place ? NULL : device_send, in_place ? device_send : device_recv,
                     count, r.dtype, r.op, &on_device, NULL));
    device_read(seen, in_place ? device_send : device_recv, bytes);
    CHECK(!memcmp(seen, recv, bytes), "dtype %d, op %d, %lld elements, in place %d", r.dtype, r.op,
          (long long)count, in_place);
    device_free(device_send);
    device_free(device_recv);
    free(send);
    free(recv);
    free(seen);
}

/* Compare reductions that NCCL supports, and others, which use host memory. */
static void compare_reductions(ddl_comm *comm, int64_t count)
{
    static const reduction all[] = {
        {DDL_F32, DDL_SUM, true, true},      {DDL_F32, DDL_AVERAGE, true, true},
        {DDL_F64, DDL_PRODUCT, true, true},  {DDL_I32, DDL_MIN, true, true},
        {DDL_I32, DDL_MAX, true, true},      {DDL_U8, DDL_SUM, true, true},
        {DDL_I32, DDL_AVERAGE, false, true}, {DDL_F32, DDL_MAX, false, false},
        {DDL_I16, DDL_SUM, false, false},    {DDL_U8, DDL_BIT_XOR, false, false}};
    bool several = getenv("DDL_OPTIONS");
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        unsigned long long before = nccl_operations();
        compare_reduction(comm, all[i], count, i % 2);
        bool expected = several ? all[i].by_nccl : all[i].on_one_host;
        CHECK(expected == (nccl_operations() > before), "dtype %d, op %d: NCCL had %llu more",
              all[i].dtype, all[i].op, nccl_operations() - before);
    }
}

static void reductions(ddl_comm *comm)
{
    start(comm);
    compare_reductions(comm, 1000);
    ddl_comm_destroy(comm);
}

/* On several hosts: all-reduces of one chunk, of one chunk and a remainder, and of more chunks than
 * slots. Other operations use host memory. */
static void hosts(ddl_comm *comm)
{
    enum { SLOT = 2 << 20, SEVERAL = 2 * (SANITIZED ? 2 : 9) * SLOT / 4 + 3 };
    start(comm);
    int64_t counts[] = {2, 3, 4, 7, 1000, 65537, SEVERAL};
    for (unsigned n = 0; n < sizeof counts / sizeof *counts; n++) {
        compare_reduction(comm, (reduction){DDL_F32, DDL_SUM, true, true}, counts[n], n % 2);
        compare_reduction(comm, (reduction){DDL_F32, DDL_AVERAGE, true, true}, counts[n], !(n % 2));
    }
    check_path("hosts", true);
    compare_reductions(comm, 1001);
    for (int kind = 1; kind < KINDS; kind++)
        compare(comm, kind, DDL_I64, 1000, kind % 2);
    ddl_comm_destroy(comm);
}

/* ----------------------------------------------------------------------------------- the stream */

/* Many operations without a wait of the host. An operation's operand is what the stream has written
 * before it, not what it writes afterwards. */
static void stream(ddl_comm *comm)
{
    enum { STEPS = 12 };
    start(comm);
    unsigned rank = (unsigned)ddl_comm_rank(comm), size = (unsigned)ddl_comm_size(comm);
    uint32_t *send = device_alloc(4 * WORDS), *recv = device_alloc(4 * WORDS);
    uint32_t *kept = device_alloc(4 * STEPS), seen[STEPS];
    ddl_work *works[STEPS];
    for (unsigned step = 0; step < STEPS; step++) {
        CU(cuMemsetD32Async(device_address(send), rank + step, WORDS, mine));
        OK(ddl_allreduce(comm, send, recv, WORDS, DDL_U32, DDL_SUM, &options, &works[step]));
        CU(cuMemsetD32Async(device_address(send), 12345, WORDS, mine));
        CU(cuMemcpyDtoDAsync_v2(device_address(kept + step), device_address(recv + WORDS - 1), 4,
                                mine));
        CU(cuMemsetD32Async(device_address(recv), 54321, WORDS, mine));
    }
    for (int step = 0; step < STEPS; step++) {
        OK(ddl_work_wait(works[step], 30000));
        ddl_work_destroy(works[step]);
    }
    await_stream(mine, "after the operations");
    device_read(seen, kept, sizeof seen);
    for (unsigned step = 0; step < STEPS; step++)
        CHECK(seen[step] == size * (size - 1) / 2 + size * step, "step %u: %u", step, seen[step]);
    check_path("a stream", true);
    ddl_comm_destroy(comm);
}

/* Long and short operations in one group, three times. */
static void groups(ddl_comm *comm)
{
    enum { SHORT = 10 };
    start(comm);
    unsigned size = (unsigned)ddl_comm_size(comm);
    uint32_t *buffers[3];
    int64_t words[3] = {WORDS, SHORT, WORDS + 1};
    ddl_group *group;
    OK(ddl_group_create(comm, &group));
    options.group = group; /* ddl_group_submit gets the stream */
    options.stream = NULL;
    for (int i = 0; i < 3; i++) {
        buffers[i] = device_alloc(4 * (size_t)words[i]);
        OK(ddl_allreduce(comm, NULL, buffers[i], words[i], DDL_U32, DDL_SUM, &options, NULL));
    }
    for (unsigned step = 1; step <= 3; step++) {
        uint32_t last;
        for (int i = 0; i < 3; i++)
            CU(cuMemsetD32Async(device_address(buffers[i]), step, (size_t)words[i], NULL));
        OK(ddl_group_submit(group, &on_device, NULL));
        for (int i = 0; i < 3; i++) {
            device_read(&last, buffers[i] + words[i] - 1, sizeof last);
            CHECK(last == size * step, "step %u, buffer %d: %u", step, i, last);
        }
    }
    check_path("a group", true);
    ddl_group_destroy(group);
    ddl_comm_destroy(comm);
}

/* ----------------------------------------------------------------------- where NCCL is not used */

static void check_without(ddl_comm *comm, const char *what)
{
    compare_reduction(comm, (reduction){DDL_F32, DDL_SUM, false, false}, WORDS, false);
    check_path(what, false);
    ddl_comm_destroy(comm);
}

static void turned_off(ddl_comm *comm)
{
    setenv("DDL_GPU_NCCL", "0", 1);
    start(comm);
    check_without(comm, "turned off");
}

static void too_old(ddl_comm *comm)
{
    if (ddl_comm_rank(comm) == 1)
        setenv("DDL_STANDIN_NCCL", "old", 1);
    start(comm);
    check_without(comm, "an old version on one rank");
}

static void broken(ddl_comm *comm)
{
    setenv("DDL_STANDIN_NCCL", "broken", 1);
    start(comm);
    check_without(comm, "one rank that cannot begin");
}

/* Two of the ranks share a GPU. */
static void shared_gpu(ddl_comm *comm)
{
    start(comm);
    CUcontext context;
    CU(cuDevicePrimaryCtxRetain(&context, ddl_comm_rank(comm) / 2));
    CU(cuCtxSetCurrent(context));
    check_without(comm, "two ranks on one GPU");
}

static void of_one_rank(ddl_comm *comm)
{
    start(comm);
    check_without(comm, "hosts of one rank");
}

/* ------------------------------------------------------------------------------------- failures */

/* Check one all-reduce by NCCL. */
static void check_sum(ddl_comm *comm)
{
    uint32_t last;
    CU(cuMemsetD32Async(device_address(buffer), 3, WORDS, mine));
    OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, NULL));
    device_read(&last, buffer + WORDS - 1, sizeof last);
    CHECK(last == 3 * (unsigned)ddl_comm_size(comm), "%u", last);
}

/* Rank 1 makes a different call. All ranks get an error with both calls, and NCCL, which hangs
 * because of it, is aborted. */
static void difference(ddl_comm *comm)
{
    start(comm);
    check_sum(comm);
    bool odd = ddl_comm_rank(comm) == 1;
    ddl_status status =
        ddl_allreduce(comm, NULL, buffer, odd ? 999 : 1000, DDL_F32, DDL_SUM, &options, NULL);
    CHECK(status == DDL_EMISMATCH && strstr(ddl_last_error(), "all-reduce(f32, 1000, sum)") &&
              strstr(ddl_last_error(), "all-reduce(f32, 999, sum)"),
          "%d %s", status, ddl_last_error());
    await_stream(mine, "after the difference");
    check_path("a difference", true);
    ddl_comm_destroy(comm);
}

/* Rank 1 dies during an operation of NCCL. The other ranks get an error, their streams continue,
 * and so do they, without rank 1. */
static void death(ddl_comm *comm)
{
    enum { CALLS = 64 };
    start(comm);
    ddl_work *works[CALLS];
    check_sum(comm);
    if (ddl_comm_rank(comm) == 1) {
        OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, &works[0]));
        await_ready(ddl_comm_size(comm) - 1);
        raise(SIGKILL);
    }
    become_ready();
    int n = 0;
    while (n < CALLS && ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options,
                                      &works[n]) == DDL_OK)
        n++;
    ddl_status last = DDL_EPEER;
    for (int i = 0; i < n; i++) {
        last = ddl_work_wait(works[i], 20000);
        CHECK(last == DDL_OK || last == DDL_EPEER, "%d %s", last, ddl_last_error());
        ddl_work_destroy(works[i]);
    }
    CHECK(last == DDL_EPEER, "the last one: %d", last);
    await_stream(mine, "after the death");
    ddl_comm *next;
    OK(ddl_comm_shrink(comm, NULL, &next));
    ddl_comm_destroy(comm);
    unsigned long long before = nccl_operations();
    check_sum(next);
    CHECK((ddl_comm_size(next) > 2 && getenv("DDL_OPTIONS")) || nccl_operations() > before,
          "the survivors do not use NCCL");
    ddl_comm_destroy(next);
}

/* Rank 1 dies while no operation is pending. */
static void idle_death(ddl_comm *comm)
{
    start(comm);
    check_sum(comm);
    if (ddl_comm_rank(comm) == 1) {
        await_ready(ddl_comm_size(comm) - 1);
        raise(SIGKILL);
    }
    become_ready();
    ddl_comm *next;
    while (ddl_comm_status(comm) == DDL_OK)
        usleep(1000);
    OK(ddl_comm_shrink(comm, NULL, &next));
    double begin = seconds();
    ddl_comm_destroy(comm);
    CHECK(seconds() - begin < 5, "destroyed after %.1f s", seconds() - begin);
    check_sum(next);
    ddl_comm_destroy(next);
}

/* Rank 1 is stopped, and expelled. NCCL waits for it as long as it lives; the other ranks do
 * not. */
static void stopped(ddl_comm *comm)
{
    start(comm);
    int32_t pids[PROCESSES_MAX], own = (int32_t)getpid();
    OK(ddl_allgather(comm, &own, pids, 1, DDL_I32, NULL, NULL));
    check_sum(comm);
    if (ddl_comm_rank(comm) == 1) {
        raise(SIGSTOP);
        pause();
    }
    ddl_work *work;
    OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, &work));
    become_ready();
    if (ddl_comm_rank(comm) == 0) {
        await_ready(2);
        OK(ddl_comm_expel(comm, 1, "it is stopped"));
    }
    ddl_status status = ddl_work_wait(work, 20000);
    CHECK(status == DDL_EPEER, "%d %s", status, ddl_last_error());
    ddl_work_destroy(work);
    await_stream(mine, "after the expulsion");
    double begin = seconds();
    ddl_comm_destroy(comm);
    CHECK(seconds() - begin < 8, "destroyed after %.1f s", seconds() - begin);
    kill(pids[1], SIGKILL);
}

/* One rank destroys a comm before it uses another one, the other ranks do it in the opposite
 * order. */
static void orders(ddl_comm *comm)
{
    start(comm);
    ddl_comm *other;
    OK(ddl_comm_duplicate(comm, NULL, &other));
    check_sum(comm);
    check_sum(other);
    if (ddl_comm_rank(comm))
        check_sum(other);
    ddl_comm_destroy(comm);
    if (!ddl_comm_rank(other))
        check_sum(other);
    ddl_comm_destroy(other);
}

/* The root's part of broadcasts ends before the other ranks have called them. */
static void early_roots(ddl_comm *comm)
{
    enum { CALLS = 20, SHORT = 100 };
    start(comm);
    uint32_t seen[SHORT];
    ddl_work *work;
    for (int i = 0; i < CALLS; i++) {
        unsigned root = (unsigned)(i % ddl_comm_size(comm));
        unsigned value = ddl_comm_rank(comm) == (int)root ? 100 + (unsigned)i : 0;
        if (ddl_comm_rank(comm) != (int)root)
            usleep(3000);
        CU(cuMemsetD32Async(device_address(buffer), value, SHORT, NULL));
        OK(ddl_broadcast(comm, buffer, SHORT, DDL_U32, (int)root, &on_device, &work));
        device_read(seen, buffer, sizeof seen); /* behind it in the stream */
        CHECK(seen[SHORT - 1] == 100 + (unsigned)i, "%u, not %d", seen[SHORT - 1], 100 + i);
        if (i == CALLS - 1) /* nothing may be pending when the comm is destroyed */
            OK(ddl_work_wait(work, -1));
        ddl_work_destroy(work);
    }
    check_path("broadcasts", true);
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
}

/* Rank 1's stream does not reach the operation in time. */
static void late(ddl_comm *comm)
{
    start(comm);
    atomic_uint *word;
    CUdeviceptr device_word;
    check_sum(comm);
    CU(cuMemHostAlloc((void **)&word, sizeof *word, CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostGetDevicePointer_v2(&device_word, word, 0));
    atomic_store(word, 0);
    options.timeout_ms = 300;
    if (ddl_comm_rank(comm) == 1)
        CU(cuStreamWaitValue32_v2(mine, device_word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    ddl_status status = ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, NULL);
    REFUSED(status, DDL_EEXPIRED, "ran past its limit of 300 ms");
    atomic_store(word, 1);
    await_stream(mine, "after the limit");
    ddl_comm_destroy(comm);
}

/* The comm is destroyed during an operation of NCCL. */
static void destroyed(ddl_comm *comm)
{
    enum { CALLS = 8 };
    start(comm);
    ddl_work *works[CALLS];
    int n = 0;
    while (n < CALLS && ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options,
                                      &works[n]) == DDL_OK)
        n++;
    ddl_comm_destroy(comm);
    for (int i = 0; i < n; i++)
        ddl_work_destroy(works[i]);
    await_stream(mine, "after the comm");
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {
        {"operations", operations, 0, DDL_LINK_SHM},
        {"reductions", reductions, 0, DDL_LINK_SHM, 4},
        {"hosts", hosts, 0, DDL_LINK_SHM, 4, .settings = {"DDL_OPTIONS=-mode d:2x2"}},
        {"stream", stream, 0, DDL_LINK_SHM},
        {"stream_hosts", stream, 0, DDL_LINK_SHM, 4, .settings = {"DDL_OPTIONS=-mode d:2x2"}},
        {"groups", groups, 0, DDL_LINK_SHM, 2},
        {"groups_hosts", groups, 0, DDL_LINK_SHM, 4, .settings = {"DDL_OPTIONS=-mode d:2x2"}},
        {"turned_off", turned_off, 0, DDL_LINK_SHM},
        {"too_old", too_old, 0, DDL_LINK_SHM},
        {"broken", broken, 0, DDL_LINK_SHM},
        {"shared_gpu", shared_gpu, 0, DDL_LINK_SHM},
        {"of_one_rank", of_one_rank, 0, DDL_LINK_SHM, 2, .settings = {"DDL_OPTIONS=-mode d:1x2"}},
        {"difference", difference, 0, DDL_LINK_SHM},
        {"difference_hosts", difference, 0, DDL_LINK_SHM, 4,
         .settings = {"DDL_OPTIONS=-mode d:2x2"}},
        {"death", death, 2, DDL_LINK_SHM},
        {"death_hosts", death, 2, DDL_LINK_SHM, 4, .settings = {"DDL_OPTIONS=-mode d:2x2"}},
        {"idle_death", idle_death, 2, DDL_LINK_SHM},
        {"stopped", stopped, 2, DDL_LINK_SHM},
        {"orders", orders, 0, DDL_LINK_SHM, 2},
        {"early_roots", early_roots, 0, DDL_LINK_SHM},
        {"late", late, 0, DDL_LINK_SHM},
        {"destroyed", destroyed, 0, DDL_LINK_SHM}};
    setenv("DDL_GPU_DIRECT_BYTES", "1", 1);
    setenv("DDL_STANDIN_DEVICES", "4", 1);
    run_process_tests(tests, sizeof tests / sizeof *tests, 3, argc, argv);
}
