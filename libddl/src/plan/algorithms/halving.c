/* SPDX-License-Identifier: Apache-2.0 */
/* Halving: the all-reduce over several levels with the fewest messages.
 *
 * The same as hierarchical.c, except that every level of wires is halved repeatedly: h hosts are
 * divided into two halves whose sizes differ by at most one, each half into two halves, and so on.
 *
 * Steps: 2 ceil(log2 h) over wires, 2 in memory. Messages: one from each rank in each step; a level
 * of hierarchical.c that joins c groups has 2 (c - 1). Bytes: as hierarchical.c. */
#include "plan/builder.h"

/* Return false with two hosts, where the plan is the same as hierarchical. */
static bool competes(const ddl__request *request)
{
    return request->topology->groups[DDL__HOSTS] > 2;
}

static bool follows(const ddl__request *request)
{
    return ddl__hierarchical_follows(request, true);
}

static void cost(ddl__cost *c)
{
    ddl__hierarchical_cost(c, true);
}

static int64_t build(ddl__builder *builder)
{
    return ddl__hierarchical_build(builder, true);
}

const ddl__algorithm_descriptor ddl__halving = {.name = "halving",
                                                .kinds = DDL__KIND(ALLREDUCE),
                                                .fits = ddl__request_has_levels,
                                                .follows = follows,
                                                .cost = cost,
                                                .build = build,
                                                .competes = competes};
