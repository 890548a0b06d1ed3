/* Which algorithm carries out a request: those that can do it, and the one that is chosen.
 *
 * All depends only on what every member of a comm knows equally, and on nothing measured: the order
 * of additions must be the same everywhere and from run to run. Over wires the costs decide
 * (costs.c). In shared memory fixed sizes do, since a core's caches are no matter of latency and
 * bandwidth; they are measured (docs/performance.md) on few ranks, and costs bound them for many.
 */
#include <string.h>

#include "plan/builder.h"

int64_t ddl__build_local(ddl__builder *builder)
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

static const struct {
    const char *name;
    int64_t (*build)(ddl__builder *builder);
} algorithms[DDL__ALGORITHMS] = {
    [DDL__ALGORITHM_LOCAL] = {"local", ddl__build_local},
    [DDL__ALGORITHM_DISSEMINATION] = {"dissemination", ddl__build_dissemination},
    [DDL__ALGORITHM_PAIRWISE] = {"pairwise", ddl__build_pairwise},
    [DDL__ALGORITHM_ONE_SHOT] = {"one-shot", ddl__build_one_shot},
    [DDL__ALGORITHM_DIRECT] = {"direct", ddl__build_direct},
    [DDL__ALGORITHM_HIERARCHICAL] = {"hierarchical", ddl__build_hierarchical},
    [DDL__ALGORITHM_HALVING] = {"halving", ddl__build_halving},
    [DDL__ALGORITHM_TREE] = {"tree", ddl__build_tree},
    [DDL__ALGORITHM_RING] = {"ring", ddl__build_ring},
    [DDL__ALGORITHM_HOSTS] = {"hosts", ddl__build_hosts},
    [DDL__ALGORITHM_LEADERS] = {"leaders", ddl__build_leaders},
    [DDL__ALGORITHM_CHAIN] = {"chain", ddl__build_chain},
};

const char *ddl__algorithm_name(ddl__algorithm by)
{
    return by > DDL__ALGORITHM_NONE && by < DDL__ALGORITHMS ? algorithms[by].name : "";
}

ddl__algorithm ddl__algorithm_named(const char *name)
{
    for (int by = 1; by < DDL__ALGORITHMS; by++)
        if (strcmp(algorithms[by].name, name) == 0)
            return (ddl__algorithm)by;
    return strcmp(name, "nested") == 0 ? DDL__ALGORITHM_HIERARCHICAL
                                       : DDL__ALGORITHM_NONE; /* its old name */
}

int64_t ddl__algorithm_build(ddl__algorithm by, ddl__builder *builder)
{
    return algorithms[by].build(builder);
}

/* ------------------------------------------------------------------------------- what fits what */

static bool is_pairwise(const ddl__request *request)
{
    return request->kind == DDL__GATHER || request->kind == DDL__SCATTER ||
           request->kind == DDL__ALLTOALL;
}

static bool is_rooted(const ddl__request *request)
{
    return request->kind == DDL__BROADCAST || request->kind == DDL__REDUCE_TO_ROOT;
}

static bool has_blocks(const ddl__request *request)
{
    return request->kind == DDL__ALLGATHER || request->kind == DDL__REDUCE_SCATTER;
}

/* Several groups that do not just share memory. */
static bool has_levels(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return t &&
           (t->declared || t->node || ddl__topology_is_hierarchical(t) || !request->all_shared);
}

/* Data of a declared topology's hosts would be passed on in vain where all share memory. */
static bool has_hosts(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return t && !request->all_shared && t->groups[DDL__HOSTS] > 1 &&
           t->groups[DDL__HOSTS] < t->size;
}

static bool has_wires(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return !request->all_shared || (t && t->groups[DDL__HOSTS] > 1);
}

/* Blocks that go from rank to rank can be passed on by others if these know how long they are. */
static bool passes_blocks_on(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    return !request->sent && !request->all_shared && (!t || t->groups[DDL__HOSTS] > 1);
}

bool ddl__algorithm_fits(ddl__algorithm by, const ddl__request *request)
{
    bool all = request->kind == DDL__ALLREDUCE, to_root = request->kind == DDL__REDUCE_TO_ROOT;
    if (request->size == 1 || by == DDL__ALGORITHM_LOCAL)
        return request->size == 1 && by == DDL__ALGORITHM_LOCAL;
    switch (by) {
    case DDL__ALGORITHM_DISSEMINATION: return request->kind == DDL__BARRIER;
    case DDL__ALGORITHM_PAIRWISE: return is_pairwise(request);
    case DDL__ALGORITHM_ONE_SHOT: return all || to_root;
    case DDL__ALGORITHM_DIRECT:
        if (request->all_shared)
            return all || is_rooted(request) || has_blocks(request);
        return has_blocks(request) || request->kind == DDL__BROADCAST;
    case DDL__ALGORITHM_HIERARCHICAL:
    case DDL__ALGORITHM_HALVING: return all && has_levels(request);
    case DDL__ALGORITHM_TREE:
        if (request->kind == DDL__GATHER || request->kind == DDL__SCATTER)
            return passes_blocks_on(request) && ddl__fits_tree_blocks(request);
        return (all || is_rooted(request)) && has_wires(request);
    case DDL__ALGORITHM_RING: return all || has_blocks(request);
    case DDL__ALGORITHM_HOSTS:
        if (request->kind == DDL__ALLTOALL)
            return passes_blocks_on(request) && has_hosts(request) && ddl__fits_exchange(request);
        return has_blocks(request) && has_hosts(request) && ddl__fits_hosts(request);
    case DDL__ALGORITHM_LEADERS: return is_rooted(request) && has_hosts(request);
    case DDL__ALGORITHM_CHAIN: return is_rooted(request);
    case DDL__ALGORITHM_NONE:
    case DDL__ALGORITHM_LOCAL:
    case DDL__ALGORITHMS: break;
    }
    return false;
}

/* ----------------------------------------------------------------------------------- the choice */

/* Shared memory, and what a mode string declares. DDL__ALGORITHM_NONE: the costs decide. */
static ddl__algorithm choose_by_rule(const ddl__request *request)
{
    int64_t bytes = request->count * (int64_t)request->element;
    bool one_hop = bytes <= DDL__ONE_SHOT_SHARED && ddl__one_shot_beats_direct(request);
    bool reduces = request->kind == DDL__ALLREDUCE || request->kind == DDL__REDUCE_TO_ROOT;
    bool declared = request->topology && request->topology->declared;
    if (request->size == 1)
        return DDL__ALGORITHM_LOCAL;
    if (request->kind == DDL__BARRIER)
        return DDL__ALGORITHM_DISSEMINATION;
    if (is_pairwise(request))
        return request->all_shared || request->sent ? DDL__ALGORITHM_PAIRWISE : DDL__ALGORITHM_NONE;
    if (reduces && request->all_shared && one_hop)
        return DDL__ALGORITHM_ONE_SHOT;
    if (request->kind == DDL__ALLREDUCE && declared)
        return !request->all_shared && bytes <= DDL__ONE_SHOT_DECLARED
                   ? DDL__ALGORITHM_ONE_SHOT
                   : DDL__ALGORITHM_HIERARCHICAL;
    if (request->kind == DDL__ALLREDUCE && request->all_shared && has_levels(request))
        return DDL__ALGORITHM_HIERARCHICAL;
    return request->all_shared ? DDL__ALGORITHM_DIRECT : DDL__ALGORITHM_NONE;
}

/* Whether it is worth a comparison: others do the same, only better. */
static bool competes(ddl__algorithm by, const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    if (!ddl__algorithm_fits(by, request))
        return false;
    if (by == DDL__ALGORITHM_HALVING) /* with two hosts it is the same plan as hierarchical */
        return t->groups[DDL__HOSTS] > 2;
    if (by == DDL__ALGORITHM_CHAIN)
        return !has_hosts(request);
    return true;
}

int ddl__plan_candidates(const ddl__request *request, ddl__candidate found[DDL__ALGORITHMS])
{
    int n = 0, best = 0;
    ddl__algorithm rule = choose_by_rule(request);
    for (int by = 1; by < DDL__ALGORITHMS; by++) {
        if (!competes((ddl__algorithm)by, request))
            continue;
        found[n] =
            (ddl__candidate){(ddl__algorithm)by, ddl__algorithm_cost((ddl__algorithm)by, request)};
        if (rule ? by == (int)rule : found[n].seconds < found[best].seconds)
            best = n;
        n++;
    }
    for (ddl__candidate chosen = found[best]; best >= 0; best--)
        found[best] = best ? found[best - 1] : chosen;
    return n;
}

ddl__algorithm ddl__algorithm_choose(const ddl__request *request)
{
    ddl__candidate found[DDL__ALGORITHMS];
    if (request->by && ddl__algorithm_fits(request->by, request))
        return request->by;
    ddl__algorithm rule = choose_by_rule(request);
    if (rule)
        return rule;
    return ddl__plan_candidates(request, found) ? found[0].by : DDL__ALGORITHM_RING;
}
