/* SPDX-License-Identifier: Apache-2.0 */
/* The exported collective operations on blocks of unequal lengths. */
#include <stdlib.h>

#include "api/api_operations.h"
#include "api/check_object.h"
#include "base/digest.h"
#include "base/dtype.h"

/* The blocks of one buffer, as passed by the caller. */
typedef struct list {
    const char *counts_name, *displs_name;
    const int64_t *counts, *displs; /* by rank */
} list;

/* ---------------------------------------------------------------------------- reading the lists */

/* Read rank r's block. `end` is the end of the previous block; `limit` is the maximum number of
 * elements in a buffer. */
static ddl_status read_block(const list *from, int r, int size, int64_t end, int64_t limit,
                             ddl__share *block)
{
    int64_t count = from->counts[r];
    int64_t start = !from->displs ? end : count ? from->displs[r] : 0;
    if (count < 0)
        return ddl__fail(DDL_EINVAL, "%s[%d] is %lld; must be at least 0", from->counts_name, r,
                         (long long)count);
    if (count > DDL__COUNT_MAX || count > limit / size)
        return ddl__fail(DDL_EINVAL, "%s[%d] is %lld, which is too large for %d ranks",
                         from->counts_name, r, (long long)count, size);
    if (start < 0)
        return ddl__fail(DDL_EINVAL, "%s[%d] is %lld; must be at least 0", from->displs_name, r,
                         (long long)start);
    if (start > limit - count)
        return ddl__fail(DDL_EINVAL, "%s[%d] is %lld, which is too large", from->displs_name, r,
                         (long long)start);
    *block = (ddl__share){start, count};
    return DDL_OK;
}

static ddl_status read_blocks(const list *from, int size, ddl_dtype dtype, ddl__share *blocks)
{
    size_t element = ddl__dtype_size(dtype); /* 0 is rejected later */
    int64_t end = 0, limit = DDL__BYTES_MAX / (int64_t)(element ? element : 1);
    if (!from->counts)
        return ddl__fail(DDL_EINVAL, "%s is NULL", from->counts_name);
    for (int r = 0; r < size; r++) {
        ddl_status status = read_block(from, r, size, end, limit, &blocks[r]);
        if (status != DDL_OK)
            return status;
        end = blocks[r].start + blocks[r].count;
    }
    return DDL_OK;
}

typedef struct ranked {
    ddl__share block;
    int rank;
} ranked;

static int by_start(const void *a, const void *b)
{
    int64_t first = ((const ranked *)a)->block.start, second = ((const ranked *)b)->block.start;
    return (first > second) - (first < second);
}

/* Check that the blocks of a buffer that is written do not overlap. */
static ddl_status check_disjoint(const list *from, int size, const ddl__share *blocks)
{
    bool in_order = true;
    int64_t end = 0;
    for (int r = 0; r < size; r++) {
        in_order = in_order && (blocks[r].count == 0 || blocks[r].start >= end);
        end = blocks[r].count ? blocks[r].start + blocks[r].count : end;
    }
    if (in_order)
        return DDL_OK;

    int n = 0;
    ranked *sorted = malloc((size_t)size * sizeof *sorted);
    ddl_status status =
        sorted ? DDL_OK : ddl__fail(DDL_ENOMEM, "out of memory for %d blocks", size);
    for (int r = 0; sorted && r < size; r++)
        if (blocks[r].count)
            sorted[n++] = (ranked){blocks[r], r};
    if (sorted)
        qsort(sorted, (size_t)n, sizeof *sorted, by_start);
    for (int i = 1; i < n && status == DDL_OK; i++) {
        const ranked *a = &sorted[i - 1], *b = &sorted[i];
        if (b->block.start < a->block.start + a->block.count)
            status =
                ddl__fail(DDL_EINVAL,
                          "%s and %s give overlapping blocks of recv: %lld elements at %lld for "
                          "rank %d, and %lld at %lld for rank %d",
                          from->counts_name, from->displs_name, (long long)a->block.count,
                          (long long)a->block.start, a->rank, (long long)b->block.count,
                          (long long)b->block.start, b->rank);
    }
    free(sorted);
    return status;
}

/* ------------------------------------------------------------------------------------ the calls */

/* Allocate empty blocks for a call: first the blocks of the send buffer, then the blocks of the
 * recv buffer. */
static ddl_status allocate_blocks(ddl_comm *comm, ddl__share **blocks)
{
    ddl_status status = ddl__check_comm(comm);
    if (status != DDL_OK)
        return status;
    *blocks = calloc(2 * (size_t)comm->size, sizeof **blocks);
    return *blocks ? DDL_OK : ddl__fail(DDL_ENOMEM, "out of memory for %d blocks", 2 * comm->size);
}

/* Submit the call, unless an earlier check has failed. */
static ddl_status submit(ddl_status status, ddl_comm *comm, ddl__call call, ddl__buffers buffers,
                         const ddl_options *options, ddl_work **work)
{
    if (status == DDL_OK)
        return ddl__submit(comm, &call, &buffers, options, work);
    free(call.blocks);
    return status;
}

uint16_t ddl__digest_of_counts(const int64_t *counts, int size, uint16_t seed)
{
    ddl__digest digest = {{seed, 0}};
    ddl__digest_add(&digest, counts, (size_t)size * sizeof *counts);
    return (uint16_t)digest.words[0];
}

ddl_status ddl__read_scatter_blocks(ddl_comm *comm, const int64_t *counts, ddl_dtype dtype,
                                    ddl__share **blocks)
{
    list sent = {"counts", NULL, counts, NULL};
    ddl_status status = allocate_blocks(comm, blocks);
    if (status == DDL_OK)
        status = read_blocks(&sent, comm->size, dtype, *blocks);
    if (status == DDL_OK) { /* an in-place result is written into the send buffer */
        (*blocks)[comm->size + comm->rank].count = counts[comm->rank];
        return DDL_OK;
    }
    free(*blocks);
    *blocks = NULL;
    return status;
}

ddl_status ddl_reduce_scatterv(ddl_comm *comm, const void *send, void *recv, const int64_t *counts,
                               ddl_dtype dtype, ddl_op op, const ddl_options *options,
                               ddl_work **work)
{
    ddl__call call = {.kind = DDL__REDUCE_SCATTER, .dtype = dtype, .op = op};
    ddl_status status = ddl__read_scatter_blocks(comm, counts, dtype, &call.blocks);
    if (status == DDL_OK)
        call.counts_digest = ddl__digest_of_counts(counts, comm->size, 0);
    return submit(status, comm, call, (ddl__buffers){.send = send, .recv = recv}, options, work);
}

ddl_status ddl_allgatherv(ddl_comm *comm, const void *send, void *recv, const int64_t *counts,
                          const int64_t *displs, ddl_dtype dtype, const ddl_options *options,
                          ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLGATHER, .dtype = dtype};
    list received = {"counts", "displs", counts, displs};
    ddl_status status = allocate_blocks(comm, &call.blocks);
    if (status == DDL_OK)
        status = read_blocks(&received, comm->size, dtype, call.blocks + comm->size);
    if (status == DDL_OK)
        status = check_disjoint(&received, comm->size, call.blocks + comm->size);
    if (status == DDL_OK) {
        for (int r = 0; r < comm->size; r++)
            call.blocks[r].count = counts[comm->rank];
        call.counts_digest = ddl__digest_of_counts(counts, comm->size, 0);
    }
    return submit(status, comm, call, (ddl__buffers){.send = send, .recv = recv}, options, work);
}

/* Read the root's list of a gather or a scatter. The root's own entry must be `count`. */
static ddl_status read_root(const ddl_comm *comm, const list *from, int64_t count, ddl_dtype dtype,
                            ddl__share *blocks)
{
    ddl_status status = read_blocks(from, comm->size, dtype, blocks);
    if (status == DDL_OK && from->counts[comm->rank] != count)
        return ddl__fail(DDL_EINVAL,
                         "count is %lld, but counts[%d] of the root is %lld; must be equal",
                         (long long)count, comm->rank, (long long)from->counts[comm->rank]);
    return status;
}

/* Set the single block that this rank sends to the root or receives from it. */
static ddl_status set_root_block(const ddl_comm *comm, int64_t count, int root, ddl__share *blocks)
{
    if (root < 0 || root >= comm->size)
        return ddl__fail(DDL_EINVAL, "root is %d; must be from 0 to %d", root, comm->size - 1);
    if (count < 0 || count > DDL__COUNT_MAX)
        return ddl__fail(DDL_EINVAL, "count is %lld%s", (long long)count,
                         count < 0 ? "; must be at least 0" : ", which is too large");
    blocks[root].count = count;
    return DDL_OK;
}

ddl_status ddl_gatherv(ddl_comm *comm, const void *send, int64_t count, void *recv,
                       const int64_t *counts, const int64_t *displs, ddl_dtype dtype, int root,
                       const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__GATHER, .dtype = dtype, .root = root};
    ddl__buffers buffers = {.send = send};
    list received = {"counts", "displs", counts, displs};
    ddl_status status = allocate_blocks(comm, &call.blocks);
    if (status == DDL_OK)
        status = set_root_block(comm, count, root, call.blocks);
    if (status == DDL_OK && comm->rank == root) {
        buffers.recv = recv;
        status = read_root(comm, &received, count, dtype, call.blocks + comm->size);
        if (status == DDL_OK)
            status = check_disjoint(&received, comm->size, call.blocks + comm->size);
    }
    return submit(status, comm, call, buffers, options, work);
}

ddl_status ddl_scatterv(ddl_comm *comm, const void *send, const int64_t *counts,
                        const int64_t *displs, void *recv, int64_t count, ddl_dtype dtype, int root,
                        const ddl_options *options, ddl_work **work)
{
    ddl__call call = {.kind = DDL__SCATTER, .dtype = dtype, .root = root};
    ddl__buffers buffers = {.recv = recv};
    list sent = {"counts", "displs", counts, displs};
    ddl_status status = allocate_blocks(comm, &call.blocks);
    if (status == DDL_OK)
        status = set_root_block(comm, count, root, call.blocks + comm->size);
    if (status == DDL_OK && comm->rank == root) {
        ddl__scatter_from(&buffers, send);
        status = read_root(comm, &sent, count, dtype, call.blocks);
    }
    return submit(status, comm, call, buffers, options, work);
}

/* Check the blocks of an in-place call: each received block must have the position and length of
 * the sent block. If a rank sends nothing, `send` is ignored and the call is not in place. */
static ddl_status check_in_place(const ddl__share *sent, const ddl__share *received, int size)
{
    int64_t given = 0;
    for (int r = 0; r < size; r++)
        given |= sent[r].count;
    for (int r = 0; r < size && given; r++)
        if (sent[r].count != received[r].count ||
            (sent[r].count && sent[r].start != received[r].start))
            return ddl__fail(DDL_EINVAL,
                             "in place, but this rank sends rank %d %lld elements at %lld and "
                             "receives %lld at %lld "
                             "from it; must be equal",
                             r, (long long)sent[r].count, (long long)sent[r].start,
                             (long long)received[r].count, (long long)received[r].start);
    return DDL_OK;
}

ddl_status ddl_alltoallv(ddl_comm *comm, const void *send, const int64_t *send_counts,
                         const int64_t *send_displs, void *recv, const int64_t *recv_counts,
                         const int64_t *recv_displs, ddl_dtype dtype, const ddl_options *options,
                         ddl_work **work)
{
    ddl__call call = {.kind = DDL__ALLTOALL, .dtype = dtype};
    list sent = {"send_counts", "send_displs", send_counts, send_displs};
    list received = {"recv_counts", "recv_displs", recv_counts, recv_displs};
    ddl_status status = allocate_blocks(comm, &call.blocks);
    ddl__share *from = call.blocks, *to = status == DDL_OK ? call.blocks + comm->size : NULL;
    if (status == DDL_OK)
        status = read_blocks(&sent, comm->size, dtype, from);
    if (status == DDL_OK)
        status = read_blocks(&received, comm->size, dtype, to);
    if (status == DDL_OK)
        status = check_disjoint(&received, comm->size, to);
    if (status == DDL_OK && from[comm->rank].count != to[comm->rank].count)
        status = ddl__fail(DDL_EINVAL,
                           "send_counts[%d] is %lld, but recv_counts[%d] is %lld; must be equal",
                           comm->rank, (long long)from[comm->rank].count, comm->rank,
                           (long long)to[comm->rank].count);
    if (status == DDL_OK && recv && (!send || send == recv))
        status = check_in_place(from, to, comm->size);
    return submit(status, comm, call, (ddl__buffers){.send = send, .recv = recv}, options, work);
}
