/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/request.h"

ddl__share ddl__block_to(const ddl__request *request, int i)
{
    bool one_each = request->kind == DDL__REDUCE_SCATTER || request->kind == DDL__ALLTOALL ||
                    (request->kind == DDL__SCATTER && request->rank == request->root);
    bool none = (request->kind == DDL__GATHER && i != request->root) ||
                (request->kind == DDL__SCATTER && request->rank != request->root);
    if (request->sent)
        return request->sent[i];
    return (ddl__share){one_each ? i * request->count : 0, none ? 0 : request->count};
}

ddl__share ddl__block_from(const ddl__request *request, int i)
{
    bool one_each = request->kind == DDL__ALLGATHER || request->kind == DDL__ALLTOALL ||
                    (request->kind == DDL__GATHER && request->rank == request->root);
    bool none = (request->kind == DDL__SCATTER && i != request->root) ||
                (request->kind == DDL__GATHER && request->rank != request->root);
    if (request->received)
        return request->received[i];
    return (ddl__share){one_each ? i * request->count : 0, none ? 0 : request->count};
}

int64_t ddl__request_elements(const ddl__request *request)
{
    if (!ddl__request_is(request, DDL__BLOCK_KINDS))
        return request->count;
    int64_t all = request->sent ? 0 : request->count * request->size;
    for (int i = 0; request->sent && i < request->size; i++)
        all += ddl__share_of(request, i).count;
    return all;
}

static int64_t part_start(int64_t count, int64_t line, int n, int i)
{
    int64_t lines = ddl__quotient(count, line);
    int64_t each = lines / n, longer = lines % n;
    int64_t before = i - (n - longer); /* number of longer parts before part i, or less than 0 */
    int64_t start = (i * each + (before > 0 ? before : 0)) * line;
    return start < count ? start : count;
}

ddl__share ddl__part_of(const ddl__request *request, ddl__share whole, int n, int i)
{
    int64_t line = DDL__LINE / (int64_t)request->element;
    int64_t start = part_start(whole.count, line, n, i);
    return (ddl__share){whole.start + start, part_start(whole.count, line, n, i + 1) - start};
}

ddl__share ddl__share_of(const ddl__request *request, int i)
{
    if (request->kind == DDL__REDUCE_SCATTER)
        return ddl__block_to(request, i);
    if (request->kind == DDL__ALLGATHER)
        return ddl__block_from(request, i);
    return ddl__part_of(request, (ddl__share){0, request->count}, request->size, i);
}
