/* SPDX-License-Identifier: Apache-2.0 */
/* Leaders: broadcast and reduce of long messages over hosts of several ranks.
 *
 * Each host has a leader: the root on its own host, the first rank on the others. The leaders are a
 * chain that starts at the root of a broadcast and ends at the root of a reduce. The other ranks of
 * a host read from their leader in shared memory. A reduce goes the other way: a leader adds the
 * sum that it receives over the chain and the operands of its host, in rank order.
 *
 * Steps: h - 1 over wires and 1 in memory, and one more for each further segment. Messages: one for
 * each segment on each wire. Bytes: N on each wire, however the ranks are numbered. */
#include <stdlib.h>

#include "plan/builder.h"
#include "plan/host_groups.h"

static void cost(ddl__cost *c)
{
    ddl__cost_add_pipeline(c, c->h);
    ddl__cost_add_leaders(c, 1);
}

/* A position in the chain. */
typedef struct chain_link {
    uint32_t leader;        /* leader of its host */
    uint32_t before, after; /* neighbours in the chain; `before` is towards the root */
    bool is_first, is_last; /* is_first: on the root's host */
    /* the rank `after`, if there is one, then the other ranks of the host; in a reduce, also this
     * rank */
    uint32_t *peers, n;
} chain_link;

static void find_link(const ddl__request *request, const ddl__host_groups *groups, chain_link *l)
{
    int hosts = groups->hosts, own = groups->self, root = request->root;
    int after = (own + 1) % hosts, before = (own + hosts - 1) % hosts;
    l->leader = ddl__host_leader(groups, request, own, root);
    l->before = ddl__host_leader(groups, request, before, root);
    l->after = ddl__host_leader(groups, request, after, root);
    l->is_first = own == ddl__host_of(request, root);
    l->is_last = after == ddl__host_of(request, root);
    if (!l->is_last)
        l->peers[l->n++] = l->after;
    for (uint32_t i = 0; i < ddl__host_size(groups, own); i++) {
        uint32_t rank = ddl__host_ranks(groups, own)[i];
        if (rank != l->leader || request->kind != DDL__BROADCAST)
            l->peers[l->n++] = rank;
    }
}

static void add_step(ddl__builder *builder, const chain_link *l)
{
    const ddl__request *request = builder->request;
    bool leads = (uint32_t)request->rank == l->leader, reduces = leads && l->n > 1;
    ddl__ranks before = l->is_first ? ddl__no_ranks() : ddl__one_rank(l->before);
    ddl__ranks peers = leads ? ddl__listed_ranks(l->peers, l->n) : ddl__no_ranks();
    ddl__ranks next = leads ? before : ddl__one_rank(l->leader); /* towards the root */
    ddl__step step = {.kind = DDL__PUBLISH, .stable = 1, .count = request->count};
    if (request->kind == DDL__BROADCAST) {
        step.kind = leads && l->is_first ? DDL__PUBLISH : DDL__TAKE;
        step.space = DDL__OUT;
        ddl__builder_add(builder, step, next, peers);
        return;
    }
    if (reduces) {
        step.kind = DDL__REDUCE;
        step.keep = step.finish = l->is_first;
        step.stable = 0; /* only the root has a buffer in which to keep the sum */
    }
    ddl__builder_add(builder, step, reduces ? peers : ddl__no_ranks(), next);
}

static int64_t build(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    ddl__host_groups groups;
    chain_link l = {.peers = calloc((size_t)request->size + 1, sizeof *l.peers)};
    if (ddl__host_groups_create(&groups, request) && l.peers) {
        find_link(request, &groups, &l);
        add_step(builder, &l);
    } else {
        builder->failed = true;
    }
    ddl__host_groups_destroy(&groups);
    free(l.peers);
    return DDL__WAVES;
}

const ddl__algorithm_descriptor ddl__leaders = {.name = "leaders",
                                                .kinds = DDL__ROOTED_KINDS,
                                                .fits = ddl__request_has_hosts,
                                                .cost = cost,
                                                .build = build,
                                                .has_short_segments = true};
