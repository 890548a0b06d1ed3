/* SPDX-License-Identifier: Apache-2.0 */
/* Local: the operations of a comm of one rank. They copy the buffer, or reduce it if the reduction
 * changes even a single operand. */
#include "plan/builder.h"

static int64_t build(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    bool two_buffers = request->kind != DDL__BROADCAST && request->kind != DDL__BARRIER;
    ddl__share from = ddl__block_to(request, 0), to = ddl__block_from(request, 0);
    ddl__step copy = {.kind = DDL__COPY, .src = from.start, .dst = to.start, .count = from.count};
    ddl__step reduce = {.kind = DDL__REDUCE,
                        .keep = 1,
                        .finish = 1,
                        .src = from.start,
                        .dst = request->in_place ? from.start : to.start,
                        .count = from.count};
    if (request->normalizes)
        ddl__builder_add(builder, reduce, ddl__one_rank(0), ddl__no_ranks());
    else if (two_buffers && !request->in_place)
        ddl__builder_add(builder, copy, ddl__no_ranks(), ddl__no_ranks());
    return 1;
}

const ddl__algorithm_descriptor ddl__local = {.name = "local", .kinds = ~0u, .build = build};
