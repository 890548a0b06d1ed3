/* Everybody sends everything to everybody, or to the root, and everybody there reduces all of it.
 * More bytes than needed, but one hop. */
#include "plan/builder.h"

int64_t ddl__build_one_shot(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    /* In place the result overwrites what was sent, and nothing tells that the last peer has it. */
    ddl__step publish = {
        .kind = DDL__PUBLISH, .stable = !request->in_place, .count = request->count};
    ddl__step reduce = {.kind = DDL__REDUCE, .keep = 1, .finish = 1, .count = request->count};
    bool rooted = request->kind == DDL__REDUCE_TO_ROOT, is_root = request->rank == request->root;
    if (!rooted || !is_root)
        ddl__builder_add(builder, publish, ddl__no_ranks(),
                         rooted ? ddl__one_rank(request->root) : ddl__other_ranks(request));
    if (!rooted || is_root)
        ddl__builder_add(builder, reduce, ddl__all_ranks(request), ddl__no_ranks());
    return DDL__WAVES;
}
