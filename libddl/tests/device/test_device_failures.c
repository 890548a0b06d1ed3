/* SPDX-License-Identifier: Apache-2.0 */
/* Failures while operations on buffers of a GPU are pending, on the stand-in for libcuda.so.1: the
 * members get an error, and the caller's streams continue. Ranks are processes. */
#include "device_buffers.h"
#include "entries.h"
#include "processes.h"
#include "survivors.h"

enum { SIZE = 3, VICTIM = 1, WORDS = 3 << 20, CALLS = 12 };

static const ddl_options on_device = {.struct_size = sizeof on_device, .memory = DDL_MEMORY_CUDA};
static const ddl_comm_config config = {.struct_size = sizeof config, .timeout_ms = 20000};

static void await_stream(CUstream stream, const char *what)
{
    double end = seconds() + 30;
    CUresult result;
    while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY && seconds() < end)
        usleep(1000);
    CHECK(result == CUDA_SUCCESS, "%s: the stream gives %d", what, (int)result);
}

/* Check that the next comm works, with the same buffer. */
static void go_on(ddl_comm *comm, uint32_t *buffer, CUstream stream)
{
    ddl_comm *next = survivors_shrink(comm, &config);
    uint32_t host = 0;
    ddl_options options = on_device;
    options.stream = stream;
    CHECK(next, "in the minority");
    ddl_comm_destroy(comm);
    CU(cuMemsetD32Async(device_address(buffer), 7, WORDS, stream));
    OK(ddl_allreduce(next, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, NULL));
    device_read(&host, buffer + WORDS - 1, sizeof host);
    CHECK(host == 7 * (SIZE - 1), "%u", host);
    ddl_comm_destroy(next);
}

/* A rank is killed while operations are pending. */
static void death(ddl_comm *comm)
{
    device_start_of(comm);
    CUstream stream = device_stream();
    uint32_t *buffer = device_alloc(sizeof *buffer * WORDS);
    ddl_options options = on_device;
    options.stream = stream;
    OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, NULL));
    ddl_work *works[CALLS];
    int n = 0;
    double start = seconds();
    if (ddl_comm_rank(comm) == VICTIM) {
        OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, &works[0]));
        await_ready(SIZE - 1);
        usleep((unsigned)getpid() * 7919 % 20000);
        raise(SIGKILL);
    }
    become_ready();
    while (n < CALLS && ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options,
                                      &works[n]) == DDL_OK)
        n++;
    ddl_status last = DDL_OK;
    for (int i = 0; i < n; i++) {
        last = ddl_work_wait(works[i], 20000);
        CHECK(last == DDL_OK || last == DDL_EPEER, "%d %s", last, ddl_last_error());
        ddl_work_destroy(works[i]);
    }
    CHECK(n < CALLS || last == DDL_EPEER, "the last one: %d", last);
    CHECK(seconds() - start < 30, "told after %.1f s", seconds() - start);
    await_stream(stream, "after the death");
    go_on(comm, buffer, stream);
}

/* Check that calls on the dead comm only return the error, however many there are. The first call
 * may start threads. */
static void call_in_vain(ddl_comm *comm, uint32_t *buffer)
{
    int threads = 0;
    for (int i = 0; i < 100; i++) {
        ddl_status status =
            ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &on_device, NULL);
        CHECK(status == DDL_EPEER || status == DDL_EEXPIRED, "%d %s", status, ddl_last_error());
        int now = count_entries("/proc/self/task");
        threads = i ? threads : now;
        CHECK(now <= threads, "%d threads, not %d", now, threads);
    }
    ddl_comm_destroy(comm);
}

/* A rank dies before the ranks have found out whether they can use NCCL. */
static void early_death(ddl_comm *comm)
{
    device_start_of(comm);
    uint32_t *buffer = device_alloc(sizeof *buffer * WORDS);
    if (ddl_comm_rank(comm) == VICTIM)
        raise(SIGKILL);
    call_in_vain(comm, buffer);
}

/* A stream does not reach the operation in time: the comm ends, and when the stream does reach the
 * operation, it continues. */
static void limit(ddl_comm *comm)
{
    device_start_of(comm);
    CUstream stream = device_stream();
    uint32_t *buffer = device_alloc(sizeof *buffer * WORDS);
    atomic_uint *word;
    CUdeviceptr device_word;
    CU(cuMemHostAlloc((void **)&word, sizeof *word, CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostGetDevicePointer_v2(&device_word, word, 0));
    atomic_store(word, 0);
    ddl_options options = on_device;
    options.stream = stream;
    options.timeout_ms = 300;
    bool late = ddl_comm_rank(comm) == VICTIM;
    if (late)
        CU(cuStreamWaitValue32_v2(stream, device_word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    ddl_status status = ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, NULL);
    CHECK(status == DDL_EEXPIRED, "%d %s", status, ddl_last_error());
    CHECK(strstr(ddl_last_error(), "ran past its limit of 300 ms"), "%s", ddl_last_error());
    atomic_store(word, 1);
    await_stream(stream, "after the limit");
    ddl_comm_destroy(comm);
}

/* The comm is destroyed while its operations are pending. */
static void destroyed(ddl_comm *comm)
{
    device_start_of(comm);
    CUstream stream = device_stream();
    uint32_t *buffer = device_alloc(sizeof *buffer * WORDS);
    ddl_options options = on_device;
    ddl_work *works[CALLS];
    options.stream = stream;
    int n = 0;
    while (n < CALLS && ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options,
                                      &works[n]) == DDL_OK)
        n++;
    ddl_comm_destroy(comm);
    for (int i = 0; i < n; i++) {
        ddl_status status = ddl_work_test(works[i]);
        CHECK(status == DDL_OK || status == DDL_EABORTED || status == DDL_EPEER, "%d %s", status,
              ddl_last_error());
        ddl_work_destroy(works[i]);
    }
    await_stream(stream, "after the comm");
}

/* Each of the driver's functions fails once, in one of its first calls, on one rank. `failing`
 * names it. */
static int victim;
static char failing[64];
static atomic_int *n_failed; /* number of times that it ended the rank's operations */
static atomic_int *n_met; /* number of times that the call failed without the rank being killed */

static void driver_error(ddl_comm *comm)
{
    bool fails = ddl_comm_rank(comm) == victim;
    if (fails)
        setenv("DDL_STANDIN_FAIL", failing, 1);
    CUdevice device;
    CUcontext context;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context)) {
        atomic_fetch_add(n_failed, 1);
        raise(SIGKILL); /* the test itself fails as if the rank had died */
    }
    CUstream stream;
    CUdeviceptr memory;
    if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ||
        cuMemAlloc_v2(&memory, sizeof(uint32_t) * WORDS) ||
        cuMemsetD32Async(memory, 1, WORDS, stream)) {
        atomic_fetch_add(n_failed, 1);
        raise(SIGKILL);
    }
    ddl_options options = on_device;
    options.stream = stream;
    ddl_status status = DDL_OK;
    char text[600] = "";
    uint32_t expected = 1;
    for (int i = 0; i < CALLS / 4 && status == DDL_OK; i++) {
        status = ddl_allreduce(comm, NULL, (void *)(uintptr_t)memory, WORDS, DDL_U32, DDL_SUM,
                               &options, NULL);
        snprintf(text, sizeof text, "%s", ddl_last_error());
        uint32_t last = 0;
        CHECK(status != DDL_OK ||
                  (cuMemcpyDtoH_v2(&last, memory + 4 * (WORDS - 1), 4) == CUDA_SUCCESS &&
                   last == (expected *= SIZE)),
              "complete, and the end of the buffer has %u, not %u", last, expected);
    }
    atomic_fetch_add(n_failed, fails && status != DDL_OK);
    if (fails && device_failures())
        atomic_store(n_met, (int)device_failures()());
    if (fails && status != DDL_OK)
        CHECK(strstr(text, "CUDA_ERROR_OUT_OF_MEMORY") ||
                  strstr(text, "not in the memory of a GPU"),
              "%d %s", status, text);
    if (fails && (status == DDL_ESYSTEM || status == DDL_EUNSUPPORTED || status == DDL_EINVAL))
        ddl_comm_abort(comm, text); /* the call was rejected, and the others wait for it */
    if (!fails)
        CHECK(status == DDL_OK || status == DDL_EPEER || status == DDL_EABORTED, "%d %s", status,
              text);
    if (status == DDL_EABORTED)
        CHECK(strstr(text, "CUDA_ERROR") || strstr(text, "a GPU"), "%s", text);
    ddl_comm_destroy(comm);
    cuStreamSynchronize(stream);
}

static bool has_met; /* whether the call failed in the last try */

/* Let one of the driver's functions fail in its nth call. Return how often that ended the rank's
 * operations. */
static int try_driver_error(const char *function, int nth)
{
    int status[PROCESSES_MAX];
    n_failed = map_shared(2 * sizeof *n_failed);
    n_met = n_failed + 1;
    snprintf(failing, sizeof failing, "%s:%d", function, nth);
    run_processes(
        &(process_test){failing, driver_error, .links = nth % 2 ? DDL_LINK_SHM : DDL_LINK_TCP},
        SIZE, status);
    for (int rank = 0; rank < SIZE; rank++)
        CHECK(status[rank] == 0 || (rank == victim && WIFSIGNALED(status[rank])),
              "%s: rank %d ended with %x", failing, rank, (unsigned)status[rank]);
    int ended = atomic_load(n_failed);
    has_met = atomic_load(n_met) > 0;
    munmap(n_failed, 2 * sizeof *n_failed);
    return ended;
}

/* Under sanitizers only some of the functions fail, the fewest under ThreadSanitizer: the rest is
 * as in a death. */
#ifdef __SANITIZE_THREAD__
enum { STRIDE = 7 };
#else
enum { STRIDE = SANITIZED ? 2 : 1 };
#endif

/* Later calls may not happen, and no stream is queried if all is done within 0.1 s. */
static void try_driver_errors(void)
{
    static const char *const functions[] = {"cuDevicePrimaryCtxRetain",
                                            "cuCtxPushCurrent",
                                            "cuPointerGetAttribute",
                                            "cuMemHostAlloc",
                                            "cuMemHostRegister",
                                            "cuMemHostGetDevicePointer",
                                            "cuMemcpyDtoHAsync",
                                            "cuMemcpyHtoDAsync",
                                            "cuStreamCreate",
                                            "cuStreamIsCapturing",
                                            "cuStreamWaitEvent",
                                            "cuStreamWaitValue32",
                                            "cuLaunchHostFunc",
                                            "cuEventCreate",
                                            "cuEventRecord",
                                            "cuStreamQuery"};
    setenv("DDL_GPU_DIRECT_BYTES", "0", 1);
    victim = VICTIM;
    for (unsigned f = 0; f < sizeof functions / sizeof *functions; f += STRIDE)
        for (int nth = 1; nth < 8; nth += (SANITIZED ? 3 : 1) + f % 3)
            CHECK(try_driver_error(functions[f], nth) || nth > 1 ||
                      !strcmp(functions[f], "cuStreamQuery"),
                  "%s did not fail anything", failing);
}

/* A failure before the ranks have agreed to use NCCL makes them use host memory. */
static void try_identity_error(void)
{
    setenv("DDL_GPU_DIRECT_BYTES", "1", 1);
    victim = VICTIM;
    int ended = try_driver_error("cuDeviceGetUuid", 1);
    CHECK(has_met && !ended, "met %d, has ended %d comms", has_met, ended);
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {{"death", death, 1 << VICTIM},
                                         {"early_death", early_death, 1 << VICTIM},
                                         {"limit", limit, 0},
                                         {"destroyed", destroyed, 0}};
    for (int finds_way = 0; finds_way < 2; finds_way++) {
        setenv("DDL_GPU_DIRECT_BYTES", finds_way ? "1" : "0", 1);
        run_process_tests(tests, sizeof tests / sizeof *tests, SIZE, argc, argv);
    }
    if (argc > 3 && !strcmp(argv[1], "driver"))
        try_driver_error(argv[2], atoi(argv[3]));
    else if (argc < 2 || !strcmp(argv[1], "driver"))
        try_driver_errors();
    if (argc < 2 || !strcmp(argv[1], "identity"))
        try_identity_error();
}
