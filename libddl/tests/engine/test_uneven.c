/* SPDX-License-Identifier: Apache-2.0 */
/* The operations on blocks of unequal lengths, including empty ones: any counts, blocks at any
 * position with gaps that must not change, in place or not, blocking or not, on the link kind named
 * by the argument (inproc, shm, tcp, mixed). */
#include "ranks.h"

typedef struct job {
    uint64_t seed;
    int64_t scale; /* scale of the counts */
    ddl_dtype dtype;
    bool in_place, asynchronous, packed; /* packed: no displacements */
} job;

enum { GAP = 0x5a };

static uint64_t hash(uint64_t x)
{
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* Return the number of elements from a to b: 0 for a quarter of the pairs, much larger for some. */
static int64_t count_of(const job *j, int a, int b)
{
    uint64_t random = hash(j->seed * 4096 + (uint64_t)(a * 64 + b) + 1);
    int64_t limit = random % 16 == 1 ? 20 * j->scale : 2 * j->scale;
    return random % 4 ? (int64_t)(random / 16 % (uint64_t)(limit + 1)) : 0;
}

/* Write element i of those from a to b. */
static void put(unsigned char *at, const job *j, int a, int b, int64_t n)
{
    size_t element = ddl_dtype_size(j->dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t value = hash(j->seed + (uint64_t)(a * 64 + b)) + (uint64_t)i * 0x9e3779b97f4a7c15u;
        memcpy(at + (size_t)i * element, &value, element);
    }
}

/* The blocks of one buffer, with room for them and a gap at the end. */
typedef struct blocks {
    int64_t counts[RANKS_MAX], displs[RANKS_MAX], all;
    const int64_t *given; /* displacements, or NULL */
    unsigned char *at;
} blocks;

static void lay_out(blocks *b, const job *j, int size, uint64_t seed)
{
    int first = j->packed ? 0 : (int)(hash(seed) % (uint64_t)size);
    b->all = 0;
    for (int i = 0; i < size; i++) {
        int r = (first + i) % size;
        b->displs[r] = b->all + (j->packed ? 0 : (int64_t)(hash(seed + 1 + (uint64_t)r) % 3));
        b->all = b->displs[r] + b->counts[r];
    }
    b->given = j->packed ? NULL : b->displs;
}

static size_t bytes_of(const blocks *b, const job *j)
{
    return (size_t)b->all * ddl_dtype_size(j->dtype) + 64;
}

static void allocate(blocks *b, const job *j)
{
    b->at = malloc(bytes_of(b, j));
    CHECK(b->at, "no memory");
    memset(b->at, GAP, bytes_of(b, j));
}

static unsigned char *block(const blocks *b, const job *j, int r)
{
    return b->at + (size_t)b->displs[r] * ddl_dtype_size(j->dtype);
}

static void done(ddl_status status, ddl_work **at)
{
    ddl_work *work = *at;
    *at = NULL;
    OK(status);
    if (work) {
        OK(ddl_work_wait(work, -1));
        ddl_work_destroy(work);
    }
}

static void expect(const blocks *got, const blocks *want, const job *j, const char *what, int rank)
{
    CHECK(memcmp(got->at, want->at, bytes_of(want, j)) == 0,
          "%s: rank %d, seed %llu, scale %lld, dtype %d%s%s", what, rank,
          (unsigned long long)j->seed, (long long)j->scale, j->dtype,
          j->in_place ? ", in place" : "", j->packed ? ", packed" : "");
}

/* Overwrite numbers that must not be read after the submission. */
static void spoil(int64_t *numbers)
{
    memset(numbers, 0xff, RANKS_MAX * sizeof *numbers);
}

static void alltoallv(ddl_comm *comm, const job *j)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    ddl_work *work = NULL, **w = j->asynchronous ? &work : NULL;
    blocks send = {.all = 0}, recv = {.all = 0}, want, kept;
    for (int r = 0; r < size; r++) {
        bool turn = j->in_place && rank > r; /* each receives as much as it sends */
        send.counts[r] = turn ? count_of(j, r, rank) : count_of(j, rank, r);
        recv.counts[r] = j->in_place ? send.counts[r] : count_of(j, r, rank);
    }
    lay_out(&send, j, size, j->seed + (uint64_t)rank);
    lay_out(&recv, j, size, j->in_place ? j->seed + (uint64_t)rank : 2 * j->seed + 1);
    want = recv;
    kept = send;
    allocate(&send, j);
    allocate(&recv, j);
    allocate(&want, j);
    allocate(&kept, j);
    for (int r = 0; r < size; r++) {
        put(block(j->in_place ? &recv : &send, j, r), j, rank, r, send.counts[r]);
        put(block(&want, j, r), j, r, rank, recv.counts[r]);
    }
    memcpy(kept.at, send.at, bytes_of(&send, j));
    blocks given = send, taken = recv;
    given.given = send.given ? given.displs : NULL;
    taken.given = recv.given ? taken.displs : NULL;
    ddl_status status = ddl_alltoallv(comm, j->in_place ? NULL : send.at, given.counts, given.given,
                                      recv.at, taken.counts, taken.given, j->dtype, NULL, w);
    spoil(given.counts), spoil(given.displs), spoil(taken.counts), spoil(taken.displs);
    done(status, &work);
    expect(&recv, &want, j, "all-to-all-v", rank);
    expect(&send, &kept, j, "all-to-all-v's send", rank);
    free(send.at);
    free(recv.at);
    free(want.at);
    free(kept.at);
}

static void gatherv(ddl_comm *comm, const job *j, int root)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    ddl_work *work = NULL, **w = j->asynchronous ? &work : NULL;
    bool is_root = rank == root, in_place = j->in_place && is_root;
    blocks own = {.counts = {count_of(j, rank, root)}}, recv = {.all = 0}, want;
    own.all = own.counts[0];
    for (int r = 0; r < size; r++)
        recv.counts[r] = count_of(j, r, root);
    lay_out(&recv, j, size, j->seed);
    want = recv;
    allocate(&own, j);
    allocate(&recv, j);
    allocate(&want, j);
    unsigned char *given = in_place ? block(&recv, j, rank) : own.at;
    put(given, j, rank, root, own.all);
    if (in_place && !j->asynchronous)
        given = recv.at;
    for (int r = 0; is_root && r < size; r++)
        put(block(&want, j, r), j, r, root, want.counts[r]);
    done(ddl_gatherv(comm, given, own.all, is_root ? recv.at : NULL, is_root ? recv.counts : NULL,
                     is_root ? recv.given : NULL, j->dtype, root, NULL, w),
         &work);
    expect(&recv, &want, j, "gather-v", rank);
    free(own.at);
    free(recv.at);
    free(want.at);
}

static void scatterv(ddl_comm *comm, const job *j, int root)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    ddl_work *work = NULL, **w = j->asynchronous ? &work : NULL;
    bool is_root = rank == root, in_place = j->in_place && is_root;
    blocks own = {.counts = {count_of(j, root, rank)}}, send = {.all = 0}, want, kept;
    own.all = own.counts[0];
    for (int r = 0; r < size; r++)
        send.counts[r] = count_of(j, root, r);
    lay_out(&send, j, size, j->seed);
    want = own;
    kept = send;
    allocate(&own, j);
    allocate(&send, j);
    allocate(&want, j);
    allocate(&kept, j);
    for (int r = 0; r < size; r++) {
        put(block(&send, j, r), j, root, r, send.counts[r]);
        put(block(&kept, j, r), j, root, r, send.counts[r]);
    }
    if (!in_place)
        put(want.at, j, root, rank, own.all);
    done(ddl_scatterv(comm, is_root ? send.at : NULL, is_root ? send.counts : NULL,
                      is_root ? send.given : NULL,
                      !in_place         ? own.at
                      : j->asynchronous ? block(&send, j, rank)
                                        : NULL,
                      own.all, j->dtype, root, NULL, w),
         &work);
    expect(&own, &want, j, "scatter-v", rank);
    expect(&send, &kept, j, "scatter-v's send", rank);
    free(own.at);
    free(send.at);
    free(want.at);
    free(kept.at);
}

static void allgatherv(ddl_comm *comm, const job *j)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    ddl_work *work = NULL, **w = j->asynchronous ? &work : NULL;
    blocks own = {.counts = {count_of(j, rank, 0)}}, recv = {.all = 0}, want;
    own.all = own.counts[0];
    for (int r = 0; r < size; r++)
        recv.counts[r] = count_of(j, r, 0);
    lay_out(&recv, j, size, j->seed + (uint64_t)rank); /* at other offsets on each rank */
    want = recv;
    allocate(&own, j);
    allocate(&recv, j);
    allocate(&want, j);
    unsigned char *given = j->in_place ? block(&recv, j, rank) : own.at;
    put(given, j, rank, 0, own.all);
    if (j->in_place && !j->asynchronous)
        given = NULL;
    for (int r = 0; r < size; r++)
        put(block(&want, j, r), j, r, 0, want.counts[r]);
    done(ddl_allgatherv(comm, given, recv.at, recv.counts, recv.given, j->dtype, NULL, w), &work);
    expect(&recv, &want, j, "all-gather-v", rank);
    free(own.at);
    free(recv.at);
    free(want.at);
}

/* Add integers, which wrap. */
static void add(unsigned char *sum, const unsigned char *other, const job *j, int64_t n)
{
    size_t element = ddl_dtype_size(j->dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t a = 0, b = 0;
        memcpy(&a, sum + (size_t)i * element, element);
        memcpy(&b, other + (size_t)i * element, element);
        a += b;
        memcpy(sum + (size_t)i * element, &a, element);
    }
}

static void reduce_scatterv(ddl_comm *comm, const job *j)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    ddl_work *work = NULL, **w = j->asynchronous ? &work : NULL;
    job packed = *j;
    packed.packed = true;
    blocks send = {.all = 0}, other, want, recv;
    for (int r = 0; r < size; r++)
        send.counts[r] = count_of(j, 0, r);
    lay_out(&send, &packed, size, 0);
    other = want = recv = send;
    if (!j->in_place)
        want.all = recv.all = send.counts[rank];
    allocate(&send, j);
    allocate(&other, j);
    allocate(&want, j);
    allocate(&recv, j);
    for (int r = 0; r < size; r++)
        put(block(&send, j, r), j, rank, r, send.counts[r]);
    memcpy(other.at, send.at, bytes_of(&send, j));
    if (j->in_place) {
        memcpy(want.at, send.at, bytes_of(&send, j));
        memcpy(recv.at, send.at, bytes_of(&send, j));
    }
    unsigned char *sum = j->in_place ? block(&want, j, rank) : want.at;
    unsigned char *terms = malloc((size_t)send.counts[rank] * 8 + 8);
    CHECK(terms, "no memory");
    for (int r = 0; r < size; r++) {
        put(r ? terms : sum, j, r, rank, send.counts[rank]);
        if (r)
            add(sum, terms, j, send.counts[rank]);
    }
    bool names_own_block = j->in_place && j->asynchronous;
    done(ddl_reduce_scatterv(comm,
                             names_own_block ? recv.at
                             : j->in_place   ? NULL
                                             : send.at,
                             names_own_block ? block(&recv, j, rank) : recv.at, send.counts,
                             j->dtype, DDL_SUM, NULL, w),
         &work);
    expect(&recv, &want, j, "reduce-scatter-v", rank);
    expect(&send, &other, j, "reduce-scatter-v's send", rank);
    free(send.at);
    free(other.at);
    free(want.at);
    free(recv.at);
    free(terms);
}

static void all_operations(ddl_comm *comm, void *argument)
{
    static const ddl_dtype dtypes[] = {DDL_U8, DDL_I32, DDL_I64};
    const int64_t *scales = argument;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        job j = {.seed = seed,
                 .scale = scales[seed % 3],
                 .dtype = dtypes[seed / 3 % 3],
                 .in_place = seed & 1,
                 .asynchronous = seed & 2,
                 .packed = seed % 5 == 0};
        alltoallv(comm, &j);
        allgatherv(comm, &j);
        reduce_scatterv(comm, &j);
        int root = (int)(seed % (uint64_t)ddl_comm_size(comm));
        gatherv(comm, &j, root);
        scatterv(comm, &j, root);
        if (seed % 4 == 0)
            OK(ddl_barrier(comm, NULL, NULL));
    }
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 2, 3, 4, 7};
    static int64_t few[] = {1, 20, 700},
                   many[] = {1000, SANITIZED ? 8000 : 30000, SANITIZED ? 20000 : 200000};
    uint32_t links = links_argument(argc, argv);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_ranks(sizes[i], links, all_operations, few);
        run_ranks_with(sizes[i], (ddl_comm_config){.links = links, .segment_bytes = 128},
                       all_operations, few);
        if (sizes[i] < 5)
            run_ranks(sizes[i], links, all_operations, many);
        printf("%d ranks right\n", sizes[i]);
    }
    if (links == LINKS_MIXED)
        run_ranks(3, LINKS_REVERSED, all_operations, few);
}
