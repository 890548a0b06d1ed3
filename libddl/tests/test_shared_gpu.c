/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of ranks that share a GPU, or whose GPUs access each other, from buffer to buffer, on
 * the stand-ins for libcuda.so.1 and libnvrtc.so.12: all reductions have the bits of those on host
 * memory; and where it is not possible, or the ranks disagree. test_device has the other
 * operations. Ranks are processes. */
#include <pthread.h>

#include "base/dtype.h"
#include "device_buffers.h"
#include "processes.h"

enum { SIZE = 3, COUNT = 4099, ROOM = COUNT * 16 + 64 };

static const ddl_options on_device = {.struct_size = sizeof on_device, .memory = DDL_MEMORY_CUDA};

/* Whether reductions went from buffer to buffer. With several GPUs, one kernel is that of the try.
 */
static void check_path(ddl_comm *comm, bool shared)
{
    unsigned long long (*launches)(void) = device_launches();
    if (launches && ddl_comm_rank(comm) == 0)
        CHECK(shared == (launches() > (device_gpus > 1)), "%llu kernels were launched", launches());
}

/* Finite numbers of all kinds: of floats, those whose magnitude is below 2. */
static void fill(unsigned char *buffer, size_t bytes, ddl_dtype dtype, int rank)
{
    static const unsigned char last[] = {
        [DDL_F16] = 1,     [DDL_BF16] = 1,    [DDL_F32] = 3, [DDL_F64] = 7,
        [DDL_F8_E4M3] = 0, [DDL_F8_E5M2] = 0, [DDL_C64] = 3, [DDL_C128] = 7};
    uint64_t random = (uint64_t)rank + 1;
    ddl__class class = ddl__dtype_class(dtype);
    for (size_t i = 0; i < bytes; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        buffer[i] = (unsigned char)(random >> 56);
        if ((class == DDL__FLOAT || class == DDL__COMPLEX) && i % (last[dtype] + 1u) == last[dtype])
            buffer[i] &= 0xbf; /* the highest bit of the exponent */
        if (class == DDL__TRUTH || dtype == DDL_U64)
            buffer[i] &= (unsigned char)(random >> 40);
    }
}

/* On the host and on the device, `shift` elements into the buffers. */
static void compare(ddl_comm *comm, ddl_dtype dtype, ddl_op op, int64_t count, int shift,
                    double factor)
{
    static unsigned char send[ROOM], recv[ROOM], seen[ROOM];
    static unsigned char *device_send, *device_recv;
    size_t element = ddl_dtype_size(dtype), bytes = (size_t)count * element;
    int rank = ddl_comm_rank(comm);
    ddl_options host = {.struct_size = sizeof host}, device = on_device;
    host.prescale = device.prescale = factor * (rank + 1);
    host.postscale = device.postscale = rank == 1 ? 0 : factor / 3;
    if (!device_send) {
        device_send = device_alloc(ROOM);
        device_recv = device_alloc(ROOM);
    }
    fill(send, bytes, dtype, rank);
    CU(cuMemcpyHtoD_v2(device_address(device_send) + (size_t)shift * element, send, bytes));
    OK(ddl_allreduce(comm, send, recv, count, dtype, op, &host, NULL));
    OK(ddl_allreduce(comm, device_send + (size_t)shift * element,
                     device_recv + (size_t)(2 * shift) * element, count, dtype, op, &device, NULL));
    device_read(seen, device_recv + (size_t)(2 * shift) * element, bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK(seen[i] == recv[i], "%s of %s, shift %d, factor %g: byte %zu is %02x, not %02x",
              ddl__op_name(op), ddl__dtype_name(dtype), shift, factor, i, seen[i], recv[i]);
}

static int sample = SANITIZED ? 12 : 4; /* test_shared_gpu reductions 1: all pairs */

/* Pairs of dtype and op; aligned to packs and not; scaled. */
static int reductions(ddl_comm *comm)
{
    device_start();
    int n = 0;
    for (unsigned dtype = DDL_BOOL; dtype <= DDL_C128; dtype++)
        for (unsigned op = DDL_SUM; op <= DDL_LOGICAL_OR; op++) {
            ddl__class class = ddl__dtype_class(dtype);
            bool is_float = class == DDL__FLOAT || class == DDL__COMPLEX;
            if (!ddl__reduces(dtype, op) || n++ % sample)
                continue;
            compare(comm, dtype, op, COUNT, 0, 0);
            compare(comm, dtype, op, COUNT, 1, 0);
            compare(comm, dtype, op, 1, 0, 0);
            if (is_float && (op == DDL_SUM || op == DDL_AVERAGE))
                compare(comm, dtype, op, COUNT, 0, 0.7);
        }
    check_path(comm, true);
    ddl_comm_destroy(comm);
    return 0;
}

static void check_last(const uint32_t *buffer, int64_t words, uint32_t expected, const char *what)
{
    uint32_t last;
    device_read(&last, buffer + words - 1, sizeof last);
    CHECK(last == expected, "%s: %u, not %u", what, last, expected);
}

/* A sum and a broadcast. */
static void check_buffer(ddl_comm *comm, uint32_t *buffer, int64_t words, const char *what)
{
    unsigned rank = (unsigned)ddl_comm_rank(comm);
    CU(cuMemsetD32Async(device_address(buffer), rank + 1, (size_t)words, NULL));
    OK(ddl_allreduce(comm, NULL, buffer, words, DDL_U32, DDL_SUM, &on_device, NULL));
    check_last(buffer, words, SIZE * (SIZE + 1) / 2, what);
    CU(cuMemsetD32Async(device_address(buffer), rank + 10, (size_t)words, NULL));
    OK(ddl_broadcast(comm, buffer, words, DDL_U32, 1, &on_device, NULL));
    check_last(buffer, words, 11, what);
}

static void check_sum(ddl_comm *comm, int64_t words, const char *what)
{
    uint32_t *buffer = device_alloc(4 * (size_t)words);
    check_buffer(comm, buffer, words, what);
    device_free(buffer);
}

/* More than a chunk, and more scratch memory than there is. */
static int chunks(ddl_comm *comm)
{
    enum { WORDS = SANITIZED ? 5 << 20 : 33 << 20 };
    device_start();
    check_sum(comm, WORDS, "an allocation");
    device_buffers_are = NOT_TO_BE_SHARED;
    check_sum(comm, WORDS, "no IPC");
    check_path(comm, true);
    ddl_comm_destroy(comm);
    return 0;
}

/* Buffers that are allocated for each operation are opened a few times, then copied. */
static int allocations(ddl_comm *comm)
{
    device_start();
    for (int i = 0; i < 70; i++) /* more than the leader opens; they are kept */
        check_buffer(comm, device_alloc(4096), 1024, "many allocations");
    ddl_comm *next;
    OK(ddl_comm_duplicate(comm, NULL, &next));
    for (int i = 0; i < 20; i++)
        check_sum(next, 10000 + i, "a new allocation");
    ddl_comm_destroy(next);
    ddl_comm_destroy(comm);
    return 0;
}

/* Memory is freed, for which the driver waits for all streams, while the operation waits for ranks
 * whose buffers the leader has not opened yet. */
static int freed(ddl_comm *comm)
{
    device_start();
    check_sum(comm, 1000, "before");
    void *other = device_alloc(1000);
    uint32_t *buffer = device_alloc(4000);
    ddl_options options = on_device;
    options.stream = device_stream();
    ddl_work *work;
    if (ddl_comm_rank(comm))
        usleep(300000);
    CU(cuMemsetD32Async(device_address(buffer), 1, 1000, options.stream));
    OK(ddl_allreduce(comm, NULL, buffer, 1000, DDL_U32, DDL_SUM, &options, &work));
    device_free(other);
    OK(ddl_work_wait(work, 20000));
    ddl_work_destroy(work);
    check_last(buffer, 1000, SIZE, "freed");
    ddl_comm_destroy(comm);
    return 0;
}

/* Two devices have some of the ranks each. */
static int two_gpus(ddl_comm *comm, const char *peers, bool shared)
{
    setenv("DDL_STANDIN_DEVICES", "2", 1);
    setenv("DDL_STANDIN_PEERS", peers, 1);
    device_gpus = 2;
    device_start_of(comm);
    if (device_count() < 2)
        return 0;
    check_sum(comm, 100000, "two GPUs");
    check_path(comm, shared);
    ddl_comm_destroy(comm);
    return 0;
}

static int peers(ddl_comm *comm)
{
    return two_gpus(comm, "", true);
}

/* They cannot access each other's memory: the buffers pass through host memory. */
static int no_peers(ddl_comm *comm)
{
    return two_gpus(comm, "none", false);
}

/* The driver lets them, but what they write does not arrive. */
static int broken_peers(ddl_comm *comm)
{
    return two_gpus(comm, "broken", false);
}

/* Without a compiler, and with one that fails: all ranks use host memory. */
static int with_compiler(ddl_comm *comm, const char *kind)
{
    if (!device_launches()) /* that of the real driver cannot be changed */
        return 0;
    setenv("DDL_STANDIN_NVRTC", kind, 1);
    device_start();
    check_sum(comm, 100000, kind);
    check_path(comm, false);
    ddl_comm_destroy(comm);
    return 0;
}

static int no_compiler(ddl_comm *comm)
{
    return with_compiler(comm, "none");
}

static int broken_compiler(ddl_comm *comm)
{
    return with_compiler(comm, "broken");
}

/* A further comm of the endpoint needs no compiler. */
static int compiled_before(ddl_comm *comm)
{
    ddl_comm *next;
    device_start();
    check_sum(comm, 1000, "compiled");
    OK(ddl_comm_duplicate(comm, NULL, &next));
    ddl_comm_destroy(comm);
    unsigned long long before = device_launches() ? device_launches()() : 0;
    setenv("DDL_STANDIN_NVRTC", "broken", 1);
    check_sum(next, 1000, "compiled before");
    if (device_launches() && ddl_comm_rank(next) == 0)
        CHECK(device_launches()() > before, "the next comm did not use the kernels");
    ddl_comm_destroy(next);
    return 0;
}

/* What rank 1 calls differs from what the others call: all are told both. */
static void differ(ddl_comm *comm, int64_t count, ddl_op op, const char *words)
{
    bool odd = ddl_comm_rank(comm) == 1;
    float *buffer = device_alloc(1 << 20);
    ddl_status status = ddl_allreduce(comm, NULL, buffer, odd ? count : 1000, DDL_F32,
                                      odd ? op : DDL_SUM, &on_device, NULL);
    CHECK(status == DDL_EMISMATCH && strstr(ddl_last_error(), "all-reduce(f32, 1000, sum)") &&
              strstr(ddl_last_error(), words),
          "%d %s", status, ddl_last_error());
    ddl_comm_destroy(comm);
}

static int other_count(ddl_comm *comm)
{
    device_start();
    differ(comm, 1001, DDL_SUM, "rank 1 on");
    return 0;
}

static int other_op(ddl_comm *comm)
{
    device_start();
    differ(comm, 1000, DDL_MAX, "all-reduce(f32, 1000, max)");
    return 0;
}

/* ---------------------------------------------------------------------------- ranks as threads */

enum { THREADS = 2, PROCESSES = 2, WORDS = 10000 };

typedef struct thread_rank {
    const char *url;
    int rank, gpu;
    bool shared;
} thread_rank;

static void *run_thread_rank(void *argument)
{
    const thread_rank *own = argument;
    ddl_comm_config config = {.struct_size = sizeof config, .links = DDL_LINK_SHM};
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    OK(ddl_endpoint_create(NULL, &endpoint));
    OK(ddl_rendezvous(endpoint, own->url, own->rank, PROCESSES * THREADS, &config, &comm));
    device_start_on(own->gpu);
    uint32_t *buffer = device_alloc(4 * WORDS);
    ddl_options options = on_device;
    options.stream = device_stream(); /* each rank needs one of its own */
    CU(cuMemsetD32Async(device_address(buffer), (unsigned)own->rank, WORDS, options.stream));
    OK(ddl_allreduce(comm, NULL, buffer, WORDS, DDL_U32, DDL_SUM, &options, NULL));
    check_last(buffer, WORDS, 0 + 1 + 2 + 3, "ranks as threads");
    check_path(comm, own->shared);
    OK(ddl_barrier(comm, NULL, NULL));
    ddl_comm_destroy(comm);
    ddl_endpoint_destroy(endpoint);
    return NULL;
}

static void run_thread_ranks(const char *url, int process, const int *gpus, bool shared)
{
    pthread_t threads[THREADS];
    thread_rank ranks[THREADS];
    for (int t = 0; t < THREADS; t++) {
        int rank = process * THREADS + t;
        ranks[t] = (thread_rank){url, rank, gpus[rank], shared};
        CHECK(!pthread_create(&threads[t], NULL, run_thread_rank, &ranks[t]), "no thread");
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
}

/* Of two processes. */
static void ranks_as_threads(const int *gpus, bool shared)
{
    char url[64];
    int status;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    setenv("DDL_STANDIN_DEVICES", "2", 1);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    pid_t other = child ? fork() : 0;
    CHECK(other >= 0, "fork");
    if (!child || !other) {
        run_thread_ranks(url, child ? 1 : 0, gpus, shared);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && !status, "ended with %x", (unsigned)status);
    CHECK(waitpid(other, &status, 0) == other && !status, "ended with %x", (unsigned)status);
    unsetenv("DDL_STANDIN_DEVICES");
}

/* Threads of a process share a GPU; or they have different ones, and use host memory. They order
 * their accesses by words in memory that each has mapped itself, which ThreadSanitizer does not
 * see: it would report races that are none. */
static void threads(void)
{
#ifdef __SANITIZE_THREAD__
    return;
#endif
    static const int of_processes[] = {0, 0, 1, 1}, of_threads[] = {0, 1, 0, 1};
    ranks_as_threads(of_processes, true);
    ranks_as_threads(of_threads, false);
    printf("threads\n");
}

int main(int argc, char **argv)
{
    static const process_test tests[] = {{"reductions", reductions, 0, false},
                                         {"chunks", chunks, 0, false},
                                         {"allocations", allocations, 0, false},
                                         {"freed", freed, 0, false},
                                         {"peers", peers, 0, false},
                                         {"no_peers", no_peers, 0, false},
                                         {"broken_peers", broken_peers, 0, false},
                                         {"no_compiler", no_compiler, 0, false},
                                         {"broken_compiler", broken_compiler, 0, false},
                                         {"compiled_before", compiled_before, 0, false},
                                         {"other_count", other_count, 0, false},
                                         {"other_op", other_op, 0, false}};
    setenv("DDL_GPU_DIRECT_BYTES", "1", 1);
    if (argc > 2)
        sample = atoi(argv[2]);
    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc < 2 || !strcmp(argv[1], tests[i].name))
            run_process_test(&tests[i], SIZE, DDL_LINK_SHM);
    if (argc < 2 || !strcmp(argv[1], "threads"))
        threads();
    return 0;
}
