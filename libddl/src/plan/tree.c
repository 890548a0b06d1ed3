/* All-reduce, reduce and broadcast for small messages over wires: the hosts' leaders make up a
 * binomial tree, and the other ranks of a host read from theirs or add to it in shared memory. The
 * fewest messages that there can be, each with all of the data: one up from each host and one down.
 *
 * The root's host is at position 0, the others follow round. Position i has the children i + 1, i +
 * 2, i + 4, ..., as far as i is a multiple of twice that; so child i + d stands for the positions
 * from i + d up to i + 2 d. A leader adds its own host's ranks, in order, then its children, in
 * order.
 */
#include <stdlib.h>

#include "plan/builder.h"

enum {
    LAG = 3, /* waves between sending up and taking what comes down */
    CHILDREN_MAX = 31
};

typedef struct node {
    uint32_t *up, *down; /* whose parts a leader adds; to whom it passes the result on */
    uint32_t n_up, n_down;
    uint32_t leader, parent;
    bool is_root;
} node;

static int hosts_of(const ddl__request *request)
{
    return request->topology ? request->topology->groups[DDL__HOSTS] : request->size;
}

static int host_of(const ddl__request *request, int rank)
{
    return request->topology ? ddl__topology_group(request->topology, DDL__HOSTS, rank) : rank;
}

static int root_of(const ddl__request *request)
{
    return request->kind == DDL__ALLREDUCE ? 0 : request->root;
}

/* Who leads the host at a position of the tree. */
static uint32_t leader_at(const ddl__request *request, int position)
{
    int root = root_of(request), rank = 0;
    int host = (host_of(request, root) + position) % hosts_of(request);
    if (position == 0)
        return (uint32_t)root;
    while (host_of(request, rank) != host)
        rank++;
    return (uint32_t)rank;
}

static bool find_node(const ddl__request *request, node *n)
{
    int hosts = hosts_of(request), host = host_of(request, request->rank);
    int position = (host - host_of(request, root_of(request)) + hosts) % hosts;
    size_t room = (size_t)request->size + CHILDREN_MAX;
    *n = (node){.up = calloc(2 * room, sizeof *n->up),
                .leader = leader_at(request, position),
                .parent = leader_at(request, position & (position - 1)),
                .is_root = request->rank == root_of(request)};
    if (!n->up)
        return false;
    n->down = n->up + room;
    int distance = 1;
    for (int r = 0; r < request->size; r++)
        if (host_of(request, r) == host)
            n->up[n->n_up++] = (uint32_t)r;
    for (; !(position & distance) && position + distance < hosts; distance *= 2)
        n->up[n->n_up++] = leader_at(request, position + distance);
    /* The longest ways first, then the host. */
    for (uint32_t i = n->n_up; i-- > 0;)
        if (n->up[i] != (uint32_t)request->rank)
            n->down[n->n_down++] = n->up[i];
    return true;
}

static ddl__rank_list some(const uint32_t *ranks, uint32_t n)
{
    return (ddl__rank_list){.ranks = ranks, .of = n, .n = n};
}

/* The root sends what it has made, if that is wanted, in the same step. */
static void send_up(ddl__builder *builder, const node *n, bool comes_down)
{
    const ddl__request *request = builder->request;
    ddl__step step = {.kind = DDL__PUBLISH, .stable = 1, .count = request->count};
    if ((uint32_t)request->rank != n->leader) {
        ddl__builder_add_listed(builder, step, some(NULL, 0), some(&n->leader, 1));
    } else if (n->is_root) {
        step.kind = DDL__REDUCE;
        step.keep = step.finish = 1;
        ddl__builder_add_listed(builder, step, some(n->up, n->n_up),
                                comes_down ? some(n->down, n->n_down) : some(NULL, 0));
    } else {
        bool alone = n->n_up == 1;
        step.kind = alone ? DDL__PUBLISH : DDL__REDUCE;
        step.stable = alone; /* there may be nowhere to keep it */
        ddl__builder_add_listed(builder, step, alone ? some(NULL, 0) : some(n->up, n->n_up),
                                some(&n->parent, 1));
    }
}

/* In place it overwrites what was sent up: made from it, so received. */
static void come_down(ddl__builder *builder, const node *n, uint32_t skew)
{
    const ddl__request *request = builder->request;
    bool leads = (uint32_t)request->rank == n->leader;
    ddl__step step = {.kind = DDL__TAKE, .stable = 1, .skew = skew, .count = request->count};
    ddl__builder_add_listed(builder, step, some(leads ? &n->parent : &n->leader, 1),
                            leads ? some(n->down, n->n_down) : some(NULL, 0));
}

int64_t ddl__build_tree(ddl__builder *builder)
{
    const ddl__request *request = builder->request;
    bool reduces = request->kind != DDL__BROADCAST;
    bool comes_down = request->kind != DDL__REDUCE_TO_ROOT;
    ddl__step publish = {
        .kind = DDL__PUBLISH, .space = DDL__OUT, .stable = 1, .count = request->count};
    node n;
    if (request->kind == DDL__GATHER || request->kind == DDL__SCATTER)
        return ddl__build_tree_blocks(builder);
    if (!find_node(request, &n)) {
        builder->failed = true;
        return 1;
    }
    if (reduces)
        send_up(builder, &n, comes_down);
    else if (n.is_root)
        ddl__builder_add_listed(builder, publish, some(NULL, 0), some(n.down, n.n_down));
    if (comes_down && !n.is_root)
        come_down(builder, &n, reduces ? LAG : 0);
    free(n.up);
    return reduces && comes_down ? 2 * (LAG + 1) : DDL__WAVES;
}
