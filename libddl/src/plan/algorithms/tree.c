/* SPDX-License-Identifier: Apache-2.0 */
/* Tree: all-reduce, reduce and broadcast of small messages over wires.
 *
 * Each host has a leader: the root on its own host, the first rank on the others. The leaders form
 * a binomial tree, and the other ranks of a host read from their leader or send to it in shared
 * memory. Each message contains the whole buffer. In a reduction every leader adds its host's ranks
 * in order, then its children in order, and sends the sum to its parent. A result returns the same
 * way.
 *
 * The root's host has position 0, and the hosts after it the next positions, modulo h. Position i
 * has the children i + 1, i + 2, i + 4, ..., as long as i is a multiple of twice the distance. So
 * the subtree of child i + d has the positions i + d to i + 2 d - 1.
 *
 * Steps: ceil(log2 h) over wires and 1 in memory; twice that for all-reduce. Messages: h - 1 over
 * wires each way, the fewest possible. Bytes: N log2 h on the root's wire each way. */
#include <stdlib.h>

#include "plan/builder.h"
#include "plan/host_groups.h"

enum {
    LAG = 3, /* waves between sending to the parent and receiving the result */
    CHILDREN_MAX = 31
};

/* Return the position of a rank's host. */
static int position_of(const ddl__request *request, int hosts, int root, int rank)
{
    return (ddl__host_of(request, rank) - ddl__host_of(request, root) + hosts) % hosts;
}

static void cost(ddl__cost *c)
{
    double ways = c->request->kind == DDL__ALLREDUCE ? 2 : 1, levels = ddl__cost_log2(c->h);
    double segments = ddl__cost_segments(c, c->n), part = ways * (c->h - 1) / c->p;
    ddl__cost_add_chain(c, ways * levels, ways * levels * segments, ways * levels * c->n,
                        ways * levels * c->n);
    ddl__cost_add_work(c, part * segments, part * c->n);
    ddl__cost_add_leaders(c, ways);
}

/* Return true if each partial sum of this tree is the sum of a subtree of the order's workers. A
 * partial sum is over hosts whose positions differ only in their last bits. */
static bool follows(const ddl__request *request)
{
    int root = request->kind == DDL__ALLREDUCE ? 0 : request->root;
    int hosts = request->topology ? request->topology->groups[DDL__HOSTS] : request->size;
    int *group = malloc((size_t)request->size * sizeof *group);
    bool follows = group && ddl__ranks_are_in_order(request);
    for (int shift = 0; follows && (hosts - 1) >> shift; shift++) {
        for (int r = 0; r < request->size; r++)
            group[r] = position_of(request, hosts, root, r) >> shift;
        follows = ddl__groups_are_subtrees(request, group, ((hosts - 1) >> shift) + 1);
    }
    free(group);
    return follows;
}

/* The role of a rank in the tree. */
typedef struct node {
    uint32_t leader, parent; /* leader of its host; parent of that leader */
    bool is_root;
    /* the ranks whose operands this leader reduces, and the ranks to which it sends the result */
    uint32_t *sources, *targets;
    uint32_t n_sources, n_targets;
    int *number; /* by rank: the source whose operand contains the rank's operand; -1: none */
} node;

/* Number the sources: the ranks of the host, then the children. Child j has the positions from this
 * position + 2^j on. */
static void number_sources(const ddl__request *request, const ddl__host_groups *groups, int root,
                           int position, int *number)
{
    int hosts = groups->hosts, own = (int)ddl__host_size(groups, groups->self);
    for (int r = 0; r < request->size; r++) {
        int behind = position_of(request, hosts, root, r) - position, child = 0;
        bool below = behind >= 0 && (!position || behind < (position & -position));
        while (below && behind >> (child + 1))
            child++;
        number[r] = !below ? -1 : behind ? own + child : (int)groups->local[r];
    }
}

static bool find_node(const ddl__request *request, node *n)
{
    int root = request->kind == DDL__ALLREDUCE ? 0 : request->root;
    size_t room = (size_t)request->size + CHILDREN_MAX;
    ddl__host_groups groups;
    *n = (node){.sources = calloc(2 * room, sizeof *n->sources),
                .is_root = request->rank == root,
                .number = calloc((size_t)request->size, sizeof *n->number)};
    if (ddl__host_groups_create(&groups, request) && n->sources && n->number) {
        int hosts = groups.hosts, own = groups.self, root_host = ddl__host_of(request, root);
        int position = (own - root_host + hosts) % hosts;
        int parent = (root_host + (position & (position - 1))) % hosts;
        n->leader = ddl__host_leader(&groups, request, own, root);
        n->parent = ddl__host_leader(&groups, request, parent, root);
        for (uint32_t i = 0; i < ddl__host_size(&groups, own); i++)
            n->sources[n->n_sources++] = ddl__host_ranks(&groups, own)[i];
        for (int d = 1; !(position & d) && position + d < hosts; d *= 2)
            n->sources[n->n_sources++] =
                ddl__host_leader(&groups, request, (own + d) % hosts, root);
        if (request->order)
            number_sources(request, &groups, root, position, n->number);
        /* The child with the deepest subtree comes first, the ranks of the host come last. */
        n->targets = n->sources + room;
        for (uint32_t i = n->n_sources; i-- > 0;)
            if (n->sources[i] != (uint32_t)request->rank)
                n->targets[n->n_targets++] = n->sources[i];
    }
    ddl__host_groups_destroy(&groups);
    return n->n_sources;
}

/* Send this rank's operand, or the sum of a leader, to the parent. The root keeps the sum, and with
 * `returns` sends it in the same step. */
static void add_reduction(ddl__builder *builder, const node *n, bool returns)
{
    const ddl__request *request = builder->request;
    ddl__ranks sources = ddl__listed_ranks(n->sources, n->n_sources);
    ddl__step step = {.kind = DDL__PUBLISH, .stable = 1, .count = request->count};
    if ((uint32_t)request->rank != n->leader) {
        ddl__builder_add_peer(builder, step, n->leader);
        return;
    }
    ddl__ranks results = returns ? ddl__listed_ranks(n->targets, n->n_targets) : ddl__no_ranks();
    bool is_leaf = n->n_sources == 1 && !n->is_root;
    ddl__ranks targets = n->is_root ? results : ddl__one_rank(n->parent);
    step.keep = step.finish = n->is_root;
    step.stable = is_leaf || n->is_root; /* inner ranks may have no buffer in which to keep a sum */
    if (is_leaf)
        ddl__builder_add(builder, step, ddl__no_ranks(), targets);
    else
        ddl__builder_add_sum(builder, step, 0, n->number, sources, targets);
}

/* Receive the result and forward it. In place, it overwrites the operand that was sent, which it
 * already includes. */
static void add_result(ddl__builder *builder, const node *n, uint32_t skew)
{
    const ddl__request *request = builder->request;
    bool leads = (uint32_t)request->rank == n->leader;
    ddl__step step = {.kind = DDL__TAKE, .stable = 1, .skew = skew, .count = request->count};
    ddl__builder_add(builder, step, ddl__one_rank(leads ? n->parent : n->leader),
                     leads ? ddl__listed_ranks(n->targets, n->n_targets) : ddl__no_ranks());
}

static int64_t build(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    bool reduces = request->kind != DDL__BROADCAST, returns = request->kind != DDL__REDUCE_TO_ROOT;
    ddl__step publish = {
        .kind = DDL__PUBLISH, .space = DDL__OUT, .stable = 1, .count = request->count};
    node n;
    builder->failed = !find_node(request, &n);
    if (reduces)
        add_reduction(builder, &n, returns);
    else if (n.is_root)
        ddl__builder_add(builder, publish, ddl__no_ranks(),
                         ddl__listed_ranks(n.targets, n.n_targets));
    if (returns && !n.is_root)
        add_result(builder, &n, reduces ? LAG : 0);
    free(n.sources);
    free(n.number);
    return reduces && returns ? 2 * (LAG + 1) : DDL__WAVES;
}

const ddl__algorithm_descriptor ddl__tree = {.name = "tree",
                                             .kinds = DDL__KIND(ALLREDUCE) | DDL__ROOTED_KINDS,
                                             .fits = ddl__request_has_wires,
                                             .follows = follows,
                                             .cost = cost,
                                             .build = build};
