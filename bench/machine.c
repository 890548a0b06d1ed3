/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - the machine's current state: the distance between two cores, and how fast ranks
 * reduce or copy memory that they share, with no library in between. A shared library for
 * machine.py.
 *
 * Ranks are threads here, each pinned to a core, which makes no difference to memory. Every
 * measurement starts and joins its own threads.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { RANKS_MAX = 64, LINE = 64 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_briefly(void)
{
#ifdef __x86_64__
    _mm_pause();
#endif
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

/* ------------------------------------------------------------------------------------- state */

typedef struct pair {
    _Alignas(LINE) atomic_int turn;
    _Alignas(LINE) char *slots;
    size_t bytes;
    int cores[2], rounds;
} pair;

static void await_turn(pair *p, int turn)
{
    while (atomic_load_explicit(&p->turn, memory_order_acquire) != turn)
        pause_briefly();
}

static void *return_turns(void *argument)
{
    pair *p = argument;
    long sum = 0;
    pin(p->cores[1]);
    for (int i = 0; i < p->rounds; i++) {
        await_turn(p, 2 * i + 1);
        for (size_t at = 0; at < p->bytes; at += LINE) /* take the lines that were written */
            sum += p->slots[at];
        atomic_store_explicit(&p->turn, 2 * i + 2, memory_order_release);
    }
    return (void *)sum; /* keeps the compiler from dropping the loop */
}

/* Seconds of a round: write the slots, let the other core read them. Without slots this is the
 * round trip of the cache line `turn`; with slots only the writing is timed. */
static double run_pair(int a, int b, size_t bytes, int rounds)
{
    pair *p = aligned_alloc(LINE, sizeof *p);
    *p = (pair){.bytes = bytes, .cores = {a, b}, .rounds = rounds};
    p->slots = bytes ? aligned_alloc(4096, bytes) : NULL;
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    pin(a);
    pthread_t other;
    pthread_create(&other, NULL, return_turns, p);
    double start = 0, writing = 0;
    for (int i = 0; i < rounds; i++) {
        if (i == rounds / 4) /* by now the other thread runs */
            start = now(), writing = 0;
        double t = bytes ? now() : 0;
        if (bytes) {
            memset(p->slots, i, bytes);
            writing += now() - t;
        }
        atomic_store_explicit(&p->turn, 2 * i + 1, memory_order_release);
        await_turn(p, 2 * i + 2);
    }
    double taken = (bytes ? writing : now() - start) / (rounds - rounds / 4);
    pthread_join(other, NULL);
    sched_setaffinity(0, sizeof before, &before);
    free(p->slots);
    free(p);
    return taken;
}

/* Seconds of a cache line's way from core a to core b and back: the best of five attempts, since
 * whatever else runs can only add to it. */
double machine_round_trip(int a, int b)
{
    double best = 1;
    for (int attempt = 0; attempt < 5; attempt++) {
        double t = run_pair(a, b, 0, 800);
        best = t < best ? t : best;
    }
    return best;
}

/* Bytes per second of core a's plain stores into lines that core b has just read. */
double machine_dirty_slots(int a, int b)
{
    enum { SLOTS = 256 << 10 };
    double best = 1;
    for (int attempt = 0; attempt < 3; attempt++) {
        double t = run_pair(a, b, SLOTS, 12);
        best = t < best ? t : best;
    }
    return SLOTS / best;
}

/* Seconds of half a millisecond's work that keeps all adders of a core busy. It takes longer while
 * the host lends the core's other thread to another guest. */
double machine_pace(int core)
{
    enum { STEPS = 250000 };
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    pin(core);
    long a = 0, b = 0, c = 0, d = 0, e = 0, f = 0;
    double start = now();
    for (int i = 0; i < STEPS; i++) {
        a++, b++, c++, d++, e++, f++;
        /* makes every iteration count */
        __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
    }
    double taken = now() - start;
    sched_setaffinity(0, sizeof before, &before);
    return taken;
}

/* ------------------------------------------------------------------------------------ direct */

typedef enum operation { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, ALLTOALL } operation;
typedef enum element { F32, F64, BITS8, BITS16, BITS32, BITS64 } element;

typedef struct job {
    operation operation;
    element element;
    bool stream; /* store past the caches */
    int ranks, iterations;
    size_t bytes;                            /* of a rank's longer buffer */
    char *send[RANKS_MAX], *recv[RANKS_MAX]; /* equal for all-reduce and broadcast */
    double *seconds;                         /* iterations x ranks */
    int cores;
    _Alignas(LINE) atomic_int arrived;
    _Alignas(LINE) atomic_int generation;
} job;

typedef struct rank_thread {
    job *job;
    int rank;
    pthread_t thread;
} rank_thread;

static void barrier(job *j)
{
    int generation = atomic_load(&j->generation);
    if (atomic_fetch_add(&j->arrived, 1) + 1 == j->ranks) {
        atomic_store(&j->arrived, 0);
        atomic_store(&j->generation, generation + 1);
        return;
    }
    while (atomic_load(&j->generation) == generation)
        if (j->ranks > j->cores)
            sched_yield();
        else
            pause_briefly();
}

/* Vectors as wide as the processor's registers; compilers translate wider ones badly. */
#ifdef __AVX512F__
enum { WIDTH = 64 };
#elif defined __AVX__
enum { WIDTH = 32 };
#else
enum { WIDTH = 16 };
#endif
typedef uint8_t bits8 __attribute__((vector_size(WIDTH), may_alias));
typedef uint16_t bits16 __attribute__((vector_size(WIDTH), may_alias));
typedef uint32_t bits32 __attribute__((vector_size(WIDTH), may_alias));
typedef uint64_t bits64 __attribute__((vector_size(WIDTH), may_alias));
typedef float f32 __attribute__((vector_size(WIDTH), may_alias));
typedef double f64 __attribute__((vector_size(WIDTH), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE void store(char *to, bits64 v, bool stream)
{
    if (!stream)
        *(bits64 *)to = v;
    else
#ifdef __AVX512F__
        _mm512_stream_si512((void *)to, (__m512i)v);
#elif defined __AVX__
        _mm256_stream_si256((void *)to, (__m256i)v);
#elif defined __x86_64__
        _mm_stream_si128((void *)to, (__m128i)v);
#else
        *(bits64 *)to = v;
#endif
}

/* to[...] = the sum of from[...], for `bytes` from `at` on. */
#define SUM(type)                                                                                  \
    INLINE void sum_##type(char *const *to, int n_to, char *const *from, int n, size_t at,         \
                           size_t bytes, bool stream)                                              \
    {                                                                                              \
        for (size_t end = at + bytes; at < end; at += WIDTH) {                                     \
            type v = *(const type *)(from[0] + at);                                                \
            for (int k = 1; k < n; k++)                                                            \
                v += *(const type *)(from[k] + at);                                                \
            for (int k = 0; k < n_to; k++)                                                         \
                store(to[k] + at, (bits64)v, stream);                                              \
        }                                                                                          \
    }                                                                                              \
    /* Common numbers of ranks as constants, so that the loops are unrolled. */                    \
    INLINE void sums_##type(char *const *to, int n_to, char *const *from, int n, size_t at,        \
                            size_t bytes, bool stream)                                             \
    {                                                                                              \
        if (n == 2 && n_to == 2)                                                                   \
            sum_##type(to, 2, from, 2, at, bytes, stream);                                         \
        else if (n == 2)                                                                           \
            sum_##type(to, 1, from, 2, at, bytes, stream);                                         \
        else                                                                                       \
            sum_##type(to, n_to, from, n, at, bytes, stream);                                      \
    }
SUM(bits8)
SUM(bits16)
SUM(bits32)
SUM(bits64)
SUM(f32)
SUM(f64)

INLINE void sums(const job *j, char *const *to, int n_to, size_t at, size_t bytes, bool stream)
{
    switch (j->element) {
    case F32: sums_f32(to, n_to, j->send, j->ranks, at, bytes, stream); break;
    case F64: sums_f64(to, n_to, j->send, j->ranks, at, bytes, stream); break;
    case BITS8: sums_bits8(to, n_to, j->send, j->ranks, at, bytes, stream); break;
    case BITS16: sums_bits16(to, n_to, j->send, j->ranks, at, bytes, stream); break;
    case BITS32: sums_bits32(to, n_to, j->send, j->ranks, at, bytes, stream); break;
    case BITS64: sums_bits64(to, n_to, j->send, j->ranks, at, bytes, stream); break;
    }
}

static void reduce(const job *j, char *const *to, int n_to, size_t at, size_t bytes)
{
    if (j->stream)
        sums(j, to, n_to, at, bytes, true);
    else
        sums(j, to, n_to, at, bytes, false);
}

static void copy(const job *j, char *to, const char *from, size_t bytes)
{
    if (!j->stream) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t at = 0; at < bytes; at += WIDTH)
        store(to + at, *(const bits64 *)(from + at), true);
}

/* Runs one rank's part. Blocks are whole cache lines. */
static void run(const job *j, int rank)
{
    size_t block = j->bytes / (size_t)j->ranks, own = block * (size_t)rank;
    char *shifted; /* puts the block at the start of recv */
    switch (j->operation) {
    case ALLREDUCE: reduce(j, j->recv, j->ranks, own, block); break;
    case REDUCE_SCATTER:
        shifted = (char *)((uintptr_t)j->recv[rank] - own);
        reduce(j, &shifted, 1, own, block);
        break;
    case ALLGATHER:
        for (int r = 0; r < j->ranks; r++)
            copy(j, j->recv[rank] + block * (size_t)r, j->send[r], block);
        break;
    case BROADCAST:
        if (rank)
            copy(j, j->recv[rank], j->send[0], j->bytes);
        break;
    case ALLTOALL:
        for (int r = 0; r < j->ranks; r++)
            copy(j, j->recv[rank] + block * (size_t)r, j->send[r] + own, block);
        break;
    }
#ifdef __x86_64__
    _mm_sfence();
#endif
}

static char *pages(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void *be_rank(void *argument)
{
    rank_thread *self = argument;
    job *j = self->job;
    pin(self->rank % j->cores);
    for (int i = 0; i < j->iterations; i++) {
        memset(j->send[self->rank], i, j->bytes);
        if (j->recv[self->rank] != j->send[self->rank])
            memset(j->recv[self->rank], 0, j->bytes);
        barrier(j);
        double start = now();
        run(j, self->rank);
        if (j->operation == ALLREDUCE) /* the other ranks write to this buffer */
            barrier(j);
        j->seconds[i * j->ranks + self->rank] = now() - start;
        barrier(j);
    }
    return NULL;
}

/* Runs the operation directly on memory that all ranks share. seconds[i] is the time of iteration i
 * on the slowest rank. `bytes`, the size of a rank's longer buffer, is rounded up to whole cache
 * lines for each rank. Returns 0, or -1 for too many ranks. */
int machine_direct(int operation_, int element_, int ranks, size_t bytes, int stream,
                   int iterations, double *seconds)
{
    if (ranks > RANKS_MAX)
        return -1;
    size_t whole = (size_t)ranks * LINE;
    job *j = aligned_alloc(LINE, sizeof *j);
    rank_thread threads[RANKS_MAX];
    *j = (job){.operation = (operation)operation_,
               .element = (element)element_,
               .stream = stream,
               .ranks = ranks,
               .iterations = iterations,
               .bytes = (bytes + whole - 1) / whole * whole,
               .seconds = malloc((size_t)iterations * (size_t)ranks * sizeof(double)),
               .cores = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    bool in_place = j->operation == ALLREDUCE || j->operation == BROADCAST;
    for (int r = 0; r < ranks; r++) {
        j->send[r] = pages(j->bytes);
        j->recv[r] = in_place ? j->send[r] : pages(j->bytes);
    }
    for (int r = 0; r < ranks; r++) {
        threads[r] = (rank_thread){.job = j, .rank = r};
        pthread_create(&threads[r].thread, NULL, be_rank, &threads[r]);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r].thread, NULL);
    for (int i = 0; i < iterations; i++) {
        seconds[i] = 0;
        for (int r = 0; r < ranks; r++)
            if (j->seconds[i * ranks + r] > seconds[i])
                seconds[i] = j->seconds[i * ranks + r];
    }
    for (int r = 0; r < ranks; r++) {
        munmap(j->send[r], j->bytes);
        if (!in_place)
            munmap(j->recv[r], j->bytes);
    }
    free(j->seconds);
    free(j);
    return 0;
}
