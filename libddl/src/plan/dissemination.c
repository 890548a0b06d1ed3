/* A barrier: in round k every rank tells the one 2^k further round that it has heard of 2^k ranks,
 * itself among them. After log2(size) rounds everybody has heard of everybody. */
#include "plan/builder.h"

int64_t ddl__build_dissemination(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    uint32_t round = 0;
    for (int64_t distance = 1; distance < request->size; distance *= 2, round++) {
        /* Each round lies in a wave of its own, hence after the one before has been taken. */
        ddl__step publish = {.kind = DDL__PUBLISH, .skew = round, .count = 1};
        ddl__step take = {.kind = DDL__TAKE, .skew = round, .count = 1};
        ddl__builder_add(builder, publish, ddl__no_ranks(),
                         ddl__one_rank(ddl__rank_at(request, distance)));
        ddl__builder_add(builder, take, ddl__one_rank(ddl__rank_at(request, -distance)),
                         ddl__no_ranks());
    }
    return DDL__WAVES;
}
