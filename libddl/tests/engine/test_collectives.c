/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation x dtype x op x ranks x counts x in place or not x blocking or not, on the link
 * kind named by the argument (inproc, shm, tcp, mixed, hosts, interleaved), with values small
 * enough that every dtype is exact. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

static const ddl_dtype dtypes[] = {DDL_BOOL, DDL_I8,      DDL_U8,      DDL_I16, DDL_U16,  DDL_I32,
                                   DDL_U32,  DDL_I64,     DDL_U64,     DDL_F16, DDL_BF16, DDL_F32,
                                   DDL_F64,  DDL_F8_E4M3, DDL_F8_E5M2, DDL_C64, DDL_C128};
static const ddl_op ops[] = {DDL_SUM,         DDL_AVERAGE,   DDL_MIN,    DDL_MAX,
                             DDL_PRODUCT,     DDL_BIT_AND,   DDL_BIT_OR, DDL_BIT_XOR,
                             DDL_LOGICAL_AND, DDL_LOGICAL_OR};
/* One dtype of each size and way of reducing, for runs in which all would take too long. */
static const ddl_dtype some_dtypes[] = {DDL_U8, DDL_BF16, DDL_F32, DDL_F64, DDL_C128, DDL_F8_E4M3};
enum { SOME_DTYPES = sizeof some_dtypes / sizeof *some_dtypes };
enum { DTYPES = sizeof dtypes / sizeof *dtypes, OPS = sizeof ops / sizeof *ops };

/* Elements have three classes, and rank r's element is 1 to 3, by its class. Bools have fewer
 * values, and fp8 has fewer because 8 is its greatest sum with exact parts. */
static int class_of(int64_t i)
{
    return (int)((i * 7 + i / 64) % 3);
}

enum { CLASSES_PERIOD = 3 * 64 };

static int value(int r, int class, ddl_dtype dtype)
{
    int v = (class + r * 5) % 3;
    if (dtype == DDL_BOOL)
        return v != 0;
    return 1 + (dtype == DDL_F8_E4M3 || dtype == DDL_F8_E5M2 ? r == class : v);
}

static uint16_t half_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f == 0)
        return 0;
    int e = (int)(u >> 23 & 255) - 127 + 15;
    uint32_t m = (u & 0x7fffff) >> 13, rest = u & 0x1fff;
    uint32_t h = (u >> 16 & 0x8000) | (uint32_t)e << 10 | m;
    return (uint16_t)(h + (rest > 0x1000 || (rest == 0x1000 && (h & 1))));
}

static uint16_t bf16_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Convert to small floats of few digits, rounded to nearest even as from f32. */
static uint8_t f8_bits(float f, int fraction, int bias)
{
    uint32_t u, drop = (uint32_t)(23 - fraction);
    memcpy(&u, &f, 4);
    if (f == 0)
        return 0;
    u -= (uint32_t)(127 - bias) << 23;
    return (uint8_t)((u + (1u << (drop - 1)) - 1 + (u >> drop & 1)) >> drop);
}

static void store(void *at, ddl_dtype dtype, int64_t i, double v)
{
    switch (dtype) {
    case DDL_BOOL: ((uint8_t *)at)[i] = v != 0; break;
    case DDL_I8:
    case DDL_U8: ((uint8_t *)at)[i] = (uint8_t)(int64_t)v; break;
    case DDL_I16:
    case DDL_U16: ((uint16_t *)at)[i] = (uint16_t)(int64_t)v; break;
    case DDL_I32:
    case DDL_U32: ((uint32_t *)at)[i] = (uint32_t)(int64_t)v; break;
    case DDL_I64:
    case DDL_U64: ((int64_t *)at)[i] = (int64_t)v; break;
    case DDL_F16: ((uint16_t *)at)[i] = half_bits((float)v); break;
    case DDL_BF16: ((uint16_t *)at)[i] = bf16_bits((float)v); break;
    case DDL_F32: ((float *)at)[i] = (float)v; break;
    case DDL_F64: ((double *)at)[i] = v; break;
    case DDL_F8_E4M3: ((uint8_t *)at)[i] = f8_bits((float)v, 3, 7); break;
    case DDL_F8_E5M2: ((uint8_t *)at)[i] = f8_bits((float)v, 2, 15); break;
    case DDL_C64: /* the imaginary part is twice the real one */
        ((float *)at)[2 * i] = (float)v;
        ((float *)at)[2 * i + 1] = (float)(2 * v);
        break;
    case DDL_C128:
        ((double *)at)[2 * i] = v;
        ((double *)at)[2 * i + 1] = 2 * v;
        break;
    }
}

static bool defined(ddl_dtype dtype, ddl_op op)
{
    return dtype == DDL_BOOL                       ? op != DDL_AVERAGE
           : dtype == DDL_C64 || dtype == DDL_C128 ? op <= DDL_AVERAGE
           : dtype >= DDL_F16                      ? op <= DDL_PRODUCT
                                                   : true;
}

/* Return the reduction of all ranks' elements of a class, wrapped as i8 and u8 wrap. */
static double reduced(int size, int class, ddl_dtype dtype, ddl_op op)
{
    int64_t sum = 0, product = 1, low = 9, high = 0, all = ~0, any = 0, odd = 0;
    for (int r = 0; r < size; r++) {
        int v = value(r, class, dtype);
        sum += v;
        product *= v;
        low = v < low ? v : low;
        high = v > high ? v : high;
        all &= v;
        any |= v;
        odd ^= v;
    }
    switch (op) {
    case DDL_SUM: return (double)sum;
    case DDL_MIN: return (double)low;
    case DDL_MAX: return (double)high;
    case DDL_PRODUCT:
        return dtype == DDL_I8   ? (int8_t)product
               : dtype == DDL_U8 ? (uint8_t)product
                                 : (double)product;
    case DDL_BIT_AND: return (double)all;
    case DDL_BIT_OR: return (double)any;
    case DDL_BIT_XOR: return (double)odd;
    case DDL_LOGICAL_AND: return product != 0;
    case DDL_LOGICAL_OR: return sum != 0;
    case DDL_AVERAGE: break;
    }
    if (dtype < DDL_F16)
        return (double)(sum / size);
    return dtype == DDL_F64 || dtype == DDL_C128 ? (double)sum / size
                                                 : (double)((float)sum / (float)size);
}

typedef struct job {
    int64_t count;
    ddl_dtype dtype;
    ddl_op op;
    int variant; /* bit 0: in place, bit 1: asynchronous; both: one buffer is the other's block */
} job;

static unsigned char *buffer(int64_t n, ddl_dtype dtype)
{
    unsigned char *at = malloc((size_t)n * ddl_dtype_size(dtype) + 64);
    CHECK(at, "no memory");
    return at + 1; /* deliberately unaligned */
}

static void done(ddl_status status, ddl_work **at)
{
    ddl_work *work = *at; /* read after the call that is the other argument */
    *at = NULL;
    OK(status);
    if (!work)
        return;
    OK(ddl_work_wait(work, -1));
    OK(ddl_work_wait(work, -1)); /* waiting again gives the same result */
    ddl_work_destroy(work);
}

static void expect(const void *got, const void *want, int64_t n, const job *j, const char *what,
                   int rank)
{
    size_t element = ddl_dtype_size(j->dtype);
    if (!memcmp(got, want, (size_t)n * element))
        return;
    for (size_t i = 0; i < (size_t)n * element; i++)
        CHECK(((const unsigned char *)got)[i] == ((const unsigned char *)want)[i],
              "%s: rank %d, dtype %d, op %d, count %lld, variant %d, element %zu", what, rank,
              j->dtype, j->op, (long long)j->count, j->variant, i / element);
}

/* Fill in elements first, first + 1, ... of rank `rank`, or if it is -1, of the reduction over
 * `size` ranks. */
static void fill_from(unsigned char *at, const job *j, int rank, int size, int64_t first, int64_t n)
{
    _Alignas(16) unsigned char classes[3][16];
    size_t element = ddl_dtype_size(j->dtype);
    for (int c = 0; c < 3; c++)
        store(classes[c], j->dtype, 0,
              rank < 0 ? reduced(size, c, j->dtype, j->op) : value(rank, c, j->dtype));
    int64_t known = n < CLASSES_PERIOD ? n : CLASSES_PERIOD;
    for (int64_t i = 0; i < known; i++)
        memcpy(at + (size_t)i * element, classes[class_of(first + i)], element);
    for (int64_t more; known < n; known += more) { /* whole periods except the last */
        more = n - known < known ? n - known : known;
        memcpy(at + (size_t)known * element, at, (size_t)more * element);
    }
}

static void fill(unsigned char *at, const job *j, int rank, int64_t first, int64_t n)
{
    fill_from(at, j, rank, 0, first, n);
}

static void fill_reduced(unsigned char *at, const job *j, int size, int64_t first, int64_t n)
{
    fill_from(at, j, -1, size, first, n);
}

static void reductions(ddl_comm *comm, const job *j)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t n = j->count, all = n * size;
    size_t element = ddl_dtype_size(j->dtype), block = (size_t)n * element;
    bool in_place = j->variant & 1;
    ddl_work *work = NULL, **w = j->variant & 2 ? &work : NULL;
    unsigned char *send = buffer(all, j->dtype), *recv = buffer(all, j->dtype);
    unsigned char *want = buffer(all, j->dtype), *kept = buffer(all, j->dtype);

    fill(send, j, rank, 0, n);
    memcpy(kept, send, block);
    memcpy(recv, send, in_place ? block : 0);
    fill_reduced(want, j, size, 0, n);
    done(ddl_allreduce(comm, in_place ? NULL : send, recv, n, j->dtype, j->op, NULL, w), &work);
    expect(recv, want, n, j, "all-reduce", rank);
    expect(send, kept, n, j, "all-reduce's send", rank);

    fill(send, j, rank, 0, all);
    memcpy(kept, send, block * (size_t)size);
    memcpy(recv, send, in_place ? block * (size_t)size : 0);
    fill_reduced(want, j, size, n * rank, n);
    unsigned char *own = in_place ? recv + block * (size_t)rank : recv;
    done(ddl_reduce_scatter(comm, in_place ? recv : send, j->variant == 3 ? own : recv, n, j->dtype,
                            j->op, NULL, w),
         &work);
    expect(own, want, n, j, "reduce-scatter", rank);
    if (in_place) {
        memcpy(own, send + block * (size_t)rank, block);
        expect(recv, send, all, j, "reduce-scatter's other blocks", rank);
    } else {
        expect(send, kept, all, j, "reduce-scatter's send", rank);
    }
    free(send - 1);
    free(recv - 1);
    free(want - 1);
    free(kept - 1);
}

/* Reduce to each root in turn; the other ranks' recv buffers must not change. */
static void reductions_to_root(ddl_comm *comm, const job *j)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t n = j->count;
    size_t block = (size_t)n * ddl_dtype_size(j->dtype);
    bool in_place = j->variant & 1;
    ddl_work *work = NULL, **w = j->variant & 2 ? &work : NULL;
    unsigned char *send = buffer(n, j->dtype), *recv = buffer(n, j->dtype);
    unsigned char *want = buffer(n, j->dtype), *kept = buffer(n, j->dtype);
    fill(kept, j, rank, 0, n);

    for (int root = 0; root < size; root++) {
        bool is_root = rank == root, without = !in_place && !is_root && root % 2;
        memcpy(send, kept, block);
        memset(recv, 0x5a, block);
        if (in_place)
            memcpy(recv, send, block);
        memcpy(want, recv, block);
        if (is_root)
            fill_reduced(want, j, size, 0, n);
        done(ddl_reduce(comm, in_place ? NULL : send, without ? NULL : recv, n, j->dtype, j->op,
                        root, NULL, w),
             &work);
        expect(recv, want, n, j, "reduce", rank);
        expect(send, kept, n, j, "reduce's send", rank);
    }
    free(send - 1);
    free(recv - 1);
    free(want - 1);
    free(kept - 1);
}

/* Fill in the elements that rank a sends to rank b: a's elements, starting at b. */
static void fill_pair(unsigned char *at, const job *j, int a, int b)
{
    fill(at, j, a, b, j->count);
}

static void gathers(ddl_comm *comm, const job *j, int root, unsigned char *send,
                    unsigned char *recv, unsigned char *want)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t n = j->count;
    size_t block = (size_t)n * ddl_dtype_size(j->dtype);
    bool is_root = rank == root, in_place = is_root && j->variant & 1;
    ddl_work *work = NULL, **w = j->variant & 2 ? &work : NULL;

    memset(recv, 0x5a, block * (size_t)size);
    memcpy(want, recv, block * (size_t)size);
    for (int r = 0; is_root && r < size; r++)
        fill_pair(want + (size_t)r * block, j, r, root);
    fill_pair(in_place ? recv + (size_t)rank * block : send, j, rank, root);
    const unsigned char *given = !in_place         ? send
                                 : j->variant == 3 ? recv + (size_t)rank * block
                                 : root % 2        ? recv
                                                   : NULL;
    done(ddl_gather(comm, given, is_root || root % 2 ? recv : NULL, n, j->dtype, root, NULL, w),
         &work);
    expect(recv, want, n * size, j, "gather", rank);
}

static void scatters(ddl_comm *comm, const job *j, int root, unsigned char *send,
                     unsigned char *recv, unsigned char *want)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t n = j->count;
    size_t block = (size_t)n * ddl_dtype_size(j->dtype);
    bool is_root = rank == root, in_place = is_root && j->variant & 1;
    ddl_work *work = NULL, **w = j->variant & 2 ? &work : NULL;

    for (int r = 0; r < size; r++)
        fill_pair(send + (size_t)r * block, j, root, r);
    memset(recv, 0x5a, block * (size_t)size);
    memcpy(want, recv, block * (size_t)size);
    if (!in_place)
        fill_pair(want, j, root, rank);
    done(ddl_scatter(comm, is_root || root % 2 ? send : NULL,
                     !in_place         ? recv
                     : j->variant == 3 ? send + (size_t)rank * block
                     : root % 2        ? send
                                       : NULL,
                     n, j->dtype, root, NULL, w),
         &work);
    expect(recv, want, n * size, j, "scatter", rank);
    for (int r = 0; r < size; r++)
        fill_pair(want + (size_t)r * block, j, root, r);
    expect(send, want, n * size, j, "scatter's send", rank);
}

static void exchanges(ddl_comm *comm, const job *j)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t n = j->count;
    size_t block = (size_t)n * ddl_dtype_size(j->dtype);
    bool in_place = j->variant & 1;
    ddl_work *work = NULL, **w = j->variant & 2 ? &work : NULL;
    unsigned char *send = buffer(n * size, j->dtype), *recv = buffer(n * size, j->dtype);
    unsigned char *want = buffer(n * size, j->dtype);

    for (int root = 0; root < size; root++) {
        gathers(comm, j, root, send, recv, want);
        scatters(comm, j, root, send, recv, want);
    }
    memset(recv, 0x5a, block * (size_t)size);
    for (int r = 0; r < size; r++) {
        fill_pair((in_place ? recv : send) + (size_t)r * block, j, rank, r);
        fill_pair(want + (size_t)r * block, j, r, rank);
    }
    done(ddl_alltoall(comm, in_place ? NULL : send, recv, n, j->dtype, NULL, w), &work);
    expect(recv, want, n * size, j, "all-to-all", rank);
    for (int r = 0; r < size; r++)
        fill_pair(want + (size_t)r * block, j, rank, r);
    if (!in_place)
        expect(send, want, n * size, j, "all-to-all's send", rank);
    free(send - 1);
    free(recv - 1);
    free(want - 1);
}

static void movements(ddl_comm *comm, const job *j)
{
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm);
    int64_t n = j->count;
    size_t block = (size_t)n * ddl_dtype_size(j->dtype);
    bool in_place = j->variant & 1;
    ddl_work *work = NULL, **w = j->variant & 2 ? &work : NULL;
    unsigned char *send = buffer(n, j->dtype), *recv = buffer(n * size, j->dtype);
    unsigned char *want = buffer(n * size, j->dtype);

    for (int r = 0; r < size; r++)
        fill(want + (size_t)r * block, j, r, 0, n);
    memset(recv, 0, block * (size_t)size);
    unsigned char *own = in_place ? recv + (size_t)rank * block : send;
    fill(own, j, rank, 0, n);
    done(ddl_allgather(comm, j->variant == 1 ? recv : own, recv, n, j->dtype, NULL, w), &work);
    expect(recv, want, n * size, j, "all-gather", rank);

    for (int root = 0; root < size; root++) {
        fill(recv, j, rank, root, n);
        fill(want, j, root, root, n);
        done(ddl_broadcast(comm, recv, n, j->dtype, root, NULL, w), &work);
        expect(recv, want, n, j, "broadcast", rank);
    }
    done(ddl_barrier(comm, NULL, w), &work);
    free(send - 1);
    free(recv - 1);
    free(want - 1);
}

typedef struct sweep {
    const int64_t *counts;
    int n_counts;
    bool has_hosts; /* hosts of several ranks */
    bool all;       /* each op and dtype in each variant */
} sweep;

/* Over hosts some ranks have forwarded other ranks' data, which takes memory that the comm
 * keeps. */
static void check_scratch(ddl_comm *comm, bool has_hosts)
{
    enum { ROOM = 1 << 16 };
    char *text = malloc(ROOM);
    size_t length;
    int64_t bytes = 0, all;
    CHECK(text && ddl_comm_report(comm, text, ROOM, &length) == DDL_OK, "%s", ddl_last_error());
    const char *at = strstr(text, "\"scratch_bytes\": ");
    CHECK(at && sscanf(at, "\"scratch_bytes\": %" SCNd64, &bytes) == 1, "%s", text);
    CHECK(ddl_allreduce(comm, &bytes, &all, 1, DDL_I64, DDL_SUM, NULL, NULL) == DDL_OK, "%s",
          ddl_last_error());
    CHECK(!has_hosts || all > 0, "%" PRId64 " bytes", all);
    free(text);
}

static void matrix(ddl_comm *comm, void *argument)
{
    const sweep *s = argument;
    for (int c = 0; c < s->n_counts; c++) {
        for (int d = 0; d < (s->all ? DTYPES : SOME_DTYPES); d++)
            for (int variant = 0; variant < 4; variant++) {
                job j = {.count = s->counts[c], .variant = variant};
                j.dtype = s->all ? dtypes[d] : some_dtypes[d];
                for (int o = 0; o < OPS; o++) {
                    j.op = ops[o];
                    if (defined(j.dtype, j.op) && (s->all || (o + d) % 4 == variant))
                        reductions(comm, &j);
                    if (defined(j.dtype, j.op) && (s->all ? d % OPS == o : (o + d) % 16 == variant))
                        reductions_to_root(comm, &j);
                }
                if (s->all || d % 4 == variant)
                    movements(comm, &j);
                if (s->all || d == variant)
                    exchanges(comm, &j);
            }
    }
    check_scratch(comm, s->has_hosts && ddl_comm_size(comm) >= 4);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 2, 3, 4, 7};
    static const int64_t few[] = {0, 1, 7, 1000}, many[] = {1024 * 1024 + 3};
    const char *kind = argc > 1 ? argv[1] : "inproc";
    bool large = argc > 2 && !strcmp(argv[2], "large");
    uint32_t links = !strcmp(kind, "inproc")        ? DDL_LINK_INPROC
                     : !strcmp(kind, "shm")         ? DDL_LINK_SHM
                     : !strcmp(kind, "mixed")       ? LINKS_MIXED
                     : !strcmp(kind, "hosts")       ? LINKS_HOSTS
                     : !strcmp(kind, "interleaved") ? LINKS_INTERLEAVED
                                                    : DDL_LINK_TCP;
    bool has_hosts = links == LINKS_HOSTS || links == LINKS_INTERLEAVED;
    /* Over shared memory everything runs quickly. Otherwise, and under a sanitizer, each op takes
     * one variant, rotating: the exchange between ranks does not depend on the op. `make
     * test-matrix` runs the rest. A large count is for 2 to 4 ranks. */
    bool all = !SANITIZED && (links == DDL_LINK_INPROC || links == DDL_LINK_SHM);
    sweep s = {few, 4, has_hosts, all}, l = {many, 1, false, false};
    for (unsigned i = large; i < sizeof sizes / sizeof *sizes - large; i++) {
        run_ranks(sizes[i], links, matrix, large ? &l : &s);
        /* Small segments: many waves with little data. */
        if (!large)
            run_ranks_with(sizes[i], (ddl_comm_config){.links = links, .segment_bytes = 128},
                           matrix, &s);
        printf("%s: %d ranks right\n", kind, sizes[i]);
    }
    return 0;
}
