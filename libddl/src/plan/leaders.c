/* Broadcast and reduce over hosts of several ranks: leaders, one of each host, make up a chain, and
 * the other ranks of a host read from theirs or add to it in shared memory. So every wire carries
 * the data once, however ranks are numbered, and the chain is as long as there are hosts.
 *
 * The root leads its host and the chain. A reduction goes the other way, from the last host to the
 * root; each leader adds its host's ranks in order. */
#include <stdlib.h>

#include "plan/builder.h"

typedef struct team {
    uint32_t *all, *others; /* ranks of this rank's host; without itself */
    uint32_t n;             /* in all */
    uint32_t leader, before,
        after; /* the leaders of this host and of its neighbours in the chain */
    bool is_first, is_last;
} team;

static int host_of(const ddl__request *request, int rank)
{
    return ddl__topology_group(request->topology, DDL__HOSTS, rank);
}

static uint32_t leader_of(const ddl__request *request, int host)
{
    int rank = 0;
    if (host_of(request, request->root) == host)
        return (uint32_t)request->root;
    while (host_of(request, rank) != host)
        rank++;
    return (uint32_t)rank;
}

static bool find_team(const ddl__request *request, team *t)
{
    int hosts = request->topology->groups[DDL__HOSTS], own = host_of(request, request->rank);
    int root = host_of(request, request->root);
    *t = (team){.all = calloc(2 * (size_t)request->size, sizeof *t->all),
                .leader = leader_of(request, own),
                .before = leader_of(request, (own + hosts - 1) % hosts),
                .after = leader_of(request, (own + 1) % hosts),
                .is_first = own == root,
                .is_last = (own + 1) % hosts == root};
    if (!t->all)
        return false;
    t->others = t->all + request->size;
    uint32_t n_others = 0;
    for (int r = 0; r < request->size; r++) {
        if (host_of(request, r) != own)
            continue;
        t->all[t->n++] = (uint32_t)r;
        if (r != request->rank)
            t->others[n_others++] = (uint32_t)r;
    }
    return true;
}

static ddl__rank_list some(const uint32_t *ranks, uint32_t n)
{
    return (ddl__rank_list){.ranks = ranks, .of = n, .n = n};
}

static void build_broadcast(ddl__builder *builder, const team *t)
{
    const ddl__request *request = builder->request;
    ddl__step step = {.kind = DDL__TAKE, .space = DDL__OUT, .stable = 1, .count = request->count};
    if ((uint32_t)request->rank != t->leader) {
        ddl__builder_add_listed(builder, step, some(&t->leader, 1), some(NULL, 0));
        return;
    }
    uint32_t *targets = t->others; /* before the others of the host: its way is the longest */
    uint32_t n = t->n - 1;
    if (!t->is_last) {
        for (uint32_t i = n++; i > 0; i--)
            targets[i] = targets[i - 1];
        targets[0] = t->after;
    }
    if (t->is_first)
        step.kind = DDL__PUBLISH;
    ddl__builder_add_listed(builder, step, t->is_first ? some(NULL, 0) : some(&t->before, 1),
                            some(targets, n));
}

static void build_reduce(ddl__builder *builder, const team *t)
{
    const ddl__request *request = builder->request;
    ddl__step step = {.kind = DDL__PUBLISH, .stable = 1, .count = request->count};
    if ((uint32_t)request->rank != t->leader) {
        ddl__builder_add_listed(builder, step, some(NULL, 0), some(&t->leader, 1));
        return;
    }
    uint32_t *operands = t->all, n = t->n; /* what comes in, then the host's */
    if (!t->is_last) {
        for (uint32_t i = n++; i > 0; i--)
            operands[i] = operands[i - 1];
        operands[0] = t->after;
    }
    if (n > 1) {
        step.kind = DDL__REDUCE;
        step.keep = step.finish = t->is_first;
        step.stable = 0; /* others have nowhere to keep it */
    }
    ddl__builder_add_listed(builder, step, n > 1 ? some(operands, n) : some(NULL, 0),
                            t->is_first ? some(NULL, 0) : some(&t->before, 1));
}

int64_t ddl__build_leaders(ddl__builder *builder)
{
    team t;
    if (!find_team(builder->request, &t)) {
        builder->failed = true;
        return 1;
    }
    if (builder->request->kind == DDL__BROADCAST)
        build_broadcast(builder, &t);
    else
        build_reduce(builder, &t);
    free(t.all);
    return DDL__WAVES;
}
