/* SPDX-License-Identifier: Apache-2.0 */
/* Chain: broadcast and reduce of long messages.
 *
 * The ranks are a chain that starts at the root of a broadcast and ends at the root of a reduce.
 * Each rank forwards the data that it receives; in a reduce it adds its own operand first. Segments
 * follow each other, so all links are busy at once.
 *
 * Steps: p - 1, and one for each further segment. Messages: each segment. Bytes: N on each link. */
#include "plan/builder.h"

/* Return false if hosts have several ranks: the algorithm "leaders" then does the same with fewer
 * links. */
static bool competes(const ddl__request *request)
{
    return !ddl__request_has_hosts(request);
}

static void cost(ddl__cost *c)
{
    ddl__cost_add_pipeline(c, c->request->size);
}

/* Add this rank's step of a reduce. The chain starts at the rank after the root. Only the root's
 * receive buffer is written. */
static void add_reducing_link(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    bool is_root = request->rank == request->root;
    ddl__ranks incoming_then_own = {.first = request->rank - 1, .n = 2},
               next = ddl__one_rank(request->rank + 1);
    ddl__step step = {.kind = DDL__REDUCE, .count = request->count};
    if (ddl__rank_at(request, -1) == request->root) {
        step.kind = DDL__PUBLISH;
        step.stable = 1;
        ddl__builder_add(builder, step, ddl__no_ranks(), next);
    } else {
        step.keep = step.finish = is_root;
        ddl__builder_add(builder, step, incoming_then_own, is_root ? ddl__no_ranks() : next);
    }
}

static void add_passing_link(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    bool is_last = ddl__rank_at(request, 1) == request->root;
    ddl__ranks next = is_last ? ddl__no_ranks() : ddl__one_rank(request->rank + 1);
    ddl__step step = {.kind = DDL__TAKE, .space = DDL__OUT, .stable = 1, .count = request->count};
    if (request->rank == request->root) {
        step.kind = DDL__PUBLISH;
        ddl__builder_add(builder, step, ddl__no_ranks(), next);
    } else {
        ddl__builder_add(builder, step, ddl__one_rank(request->rank - 1), next);
    }
}

static int64_t build(ddl__builder *builder)
{
    if (builder->request->kind == DDL__BROADCAST)
        add_passing_link(builder);
    else
        add_reducing_link(builder);
    return DDL__WAVES;
}

const ddl__algorithm_descriptor ddl__chain = {.name = "chain",
                                              .kinds = DDL__ROOTED_KINDS,
                                              .cost = cost,
                                              .build = build,
                                              .competes = competes,
                                              .has_short_segments = true};
