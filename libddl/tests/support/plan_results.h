/* SPDX-License-Identifier: Apache-2.0 */
/* plan_results.h - what the simulated ranks must have in their buffers at the end: each algorithm's
 * result in its order of additions. */
#ifndef DDL_TESTS_PLAN_RESULTS_H
#define DDL_TESTS_PLAN_RESULTS_H

#include "plan/hierarchy.h"
#include "plan_simulator.h"

static bool is_ring(const world *w)
{
    return strcmp(w->ranks[0].plan->name, "ring") == 0;
}

/* Element i reduced over the hosts of a tree from a position on, as tree.c says. */
static uint64_t reduced_by_tree(const world *w, int position, int64_t i)
{
    const ddl__request *q = &w->request;
    const ddl__topology *t = q->topology;
    int hosts = t ? t->groups[DDL__HOSTS] : q->size, root = q->kind == DDL__ALLREDUCE ? 0 : q->root;
    int host = ((t ? ddl__topology_group(t, DDL__HOSTS, root) : root) + position) % hosts;
    uint64_t all = 0;
    bool first = true;
    for (int r = 0; r < q->size; r++) {
        if ((t ? ddl__topology_group(t, DDL__HOSTS, r) : r) != host)
            continue;
        all = first ? input(r, i) : combine(all, input(r, i));
        first = false;
    }
    for (int d = 1; (position == 0 || position % (2 * d) == 0) && position + d < hosts; d *= 2)
        all = combine(all, reduced_by_tree(w, position + d, i));
    return all;
}

/* Element i reduced over a group of a level, the children of the group in order. */
static uint64_t reduced_by_levels(const ddl__hierarchy *hierarchy, int level, int group, int64_t i)
{
    if (level == 0)
        return input(group, i);
    const int *above = hierarchy->groups + level * hierarchy->size,
              *below = above - hierarchy->size;
    uint64_t value = 0;
    int last = -1;
    for (int r = 0; r < hierarchy->size; r++)
        if (above[r] == group && below[r] > last) {
            uint64_t child = reduced_by_levels(hierarchy, level - 1, below[r], i);
            value = last < 0 ? child : combine(value, child);
            last = below[r];
        }
    return value;
}

/* A plain sum; or, in the order of the hierarchy of coarseness 0, where that is the plan's: else
 * what rank 0 has. */
static void expect_hierarchical(const world *w, uint64_t *want)
{
    const ddl__request *q = &w->request;
    ddl__hierarchy hierarchy = {0};
    bool halves = w->ranks[0].plan->by == DDL__ALGORITHM_HALVING;
    if (!w->in_any_order)
        CHECK(ddl__hierarchy_create(&hierarchy, q->topology, halves, 0), "out of memory");
    for (int64_t i = 0; i < q->count; i++) {
        uint64_t sum = 0;
        for (int r = 0; w->in_any_order && r < q->size; r++)
            sum += input(r, i);
        want[i] =
            scramble(w->in_any_order ? sum : reduced_by_levels(&hierarchy, hierarchy.n, 0, i));
    }
    if (!w->in_any_order)
        ddl__hierarchy_destroy(&hierarchy);
    if (w->any_result)
        memcpy(want, w->ranks[0].out, (size_t)q->count * sizeof *want);
}

/* The result of hosts and of packed reduce-scatters: a block is added up over its own host, then
 * over the other hosts backwards, whose sums may be rounded.
 */
static uint64_t reduced_over_hosts(const world *w, int rank, int64_t i)
{
    const ddl__topology *t = w->request.topology;
    int hosts = t->groups[DDL__HOSTS], own = ddl__topology_group(t, DDL__HOSTS, rank);
    uint64_t all = 0;
    for (int d = 0; d < hosts; d++) {
        uint64_t one = 0;
        bool first = true;
        for (int r = 0; r < w->request.size; r++) {
            if (ddl__topology_group(t, DDL__HOSTS, r) != (own - d + hosts) % hosts)
                continue;
            one = first ? input(r, i) : combine(one, input(r, i));
            first = false;
        }
        all = d ? combine(all, w->ranks[0].plan->bits ? rounded(one) : one) : one;
    }
    return scramble(all);
}

/* The result of a reduction. A ring adds a share up from the rank after its own one, a chain from
 * the rank after the root, others from rank 0. */
static void expect_reduced(const world *w, uint64_t *want)
{
    const ddl__request *request = &w->request;
    bool chained = strcmp(w->ranks[0].plan->name, "chain") == 0;
    if (w->ranks[0].plan->by == DDL__ALGORITHM_HIERARCHICAL ||
        w->ranks[0].plan->by == DDL__ALGORITHM_HALVING) {
        expect_hierarchical(w, want);
        return;
    }
    if (w->ranks[0].plan->by == DDL__ALGORITHM_TREE) {
        for (int64_t i = 0; i < request->count; i++)
            want[i] = scramble(reduced_by_tree(w, 0, i));
        return;
    }
    for (int s = 0; s < request->size; s++) {
        ddl__share share = ddl__share_of(request, s);
        int first = is_ring(w) ? s + 1 : chained ? request->root + 1 : 0;
        for (int64_t i = share.start; i < share.start + share.count; i++)
            want[i] = w->request.wire ? rounded(reduced_over_hosts(w, s, i)) : reduced(w, first, i);
    }
}

/* The result of leaders: from the host before the root's backwards to the root's, rank by rank. */
static uint64_t reduced_by_leaders(const world *w, int64_t i)
{
    const ddl__topology *t = w->request.topology;
    int hosts = t->groups[DDL__HOSTS], root = ddl__topology_group(t, DDL__HOSTS, w->request.root);
    uint64_t all = 0;
    bool first = true;
    for (int d = 1; d <= hosts; d++)
        for (int r = 0; r < w->request.size; r++) {
            if (ddl__topology_group(t, DDL__HOSTS, r) != (root - d + hosts) % hosts)
                continue;
            all = first ? input(r, i) : combine(all, input(r, i));
            first = false;
        }
    return scramble(all);
}

/* The expected content that comes from the other ranks' send buffers. */
static void expect_blocks(const world *w, int r, uint64_t *want)
{
    const simulated_rank *me = &w->ranks[r];
    for (int q = 0; q < w->request.size; q++) {
        if (q == r && me->in_place && w->request.kind == DDL__SCATTER)
            continue; /* stays where it is */
        for (int64_t i = 0; i < me->from[q].count; i++) {
            uint64_t value = input(q, w->ranks[q].to[r].start + i);
            want[me->from[q].start + i] = me->plan->bits ? rounded(value) : value;
        }
    }
}

/* The results of `count` elements from `first` on, in the order of a request. */
static void expect_ordered(const world *w, int64_t first, int64_t count, uint64_t *want)
{
    int wide = w->request.wide;
    for (int64_t i = 0; i < count; i++) {
        uint64_t words[2] = {0};
        for (int word = 0; word < wide; word++)
            words[word] = tree_sum(0, w->request.order->workers, (first + i) * wide + word);
        want[i] = narrowed(words, wide);
    }
}

static void expect_in_order(const world *w, int r, uint64_t *want)
{
    const simulated_rank *me = &w->ranks[r];
    const ddl__share all = {0, w->request.count}, none = {0, 0};
    bool scatters = w->request.kind == DDL__REDUCE_SCATTER;
    bool is_other = w->request.kind == DDL__REDUCE_TO_ROOT && r != w->request.root;
    ddl__share its = scatters ? me->to[r] : is_other ? none : all;
    expect_ordered(w, its.start, its.count, want + (scatters && me->in_place ? its.start : 0));
}

/* The expected recv buffer of a rank. `want` has its content before the operation. */
static void expect(const world *w, int r, uint64_t *want)
{
    const simulated_rank *me = &w->ranks[r];
    int64_t start = me->to[r].start;
    if (w->request.order) {
        expect_in_order(w, r, want);
        return;
    }
    switch (w->request.kind) {
    case DDL__REDUCE_TO_ROOT:
        if (r == w->request.root && strcmp(me->plan->name, "leaders") == 0)
            for (int64_t i = 0; i < me->out_count; i++)
                want[i] = reduced_by_leaders(w, i);
        else if (r == w->request.root)
            expect_reduced(w, want);
        return;
    case DDL__ALLREDUCE: expect_reduced(w, want); return;
    case DDL__REDUCE_SCATTER:
        for (int64_t i = start; i < start + me->to[r].count; i++)
            want[me->in_place ? i : i - start] =
                strcmp(me->plan->name, "hosts") == 0 || me->plan->bits
                    ? reduced_over_hosts(w, r, i)
                    : reduced(w, is_ring(w) ? r + 1 : 0, i);
        return;
    case DDL__BROADCAST:
        for (int64_t i = 0; i < me->out_count; i++)
            want[i] = input(w->request.root, i);
        return;
    case DDL__ALLGATHER:
    case DDL__GATHER:
    case DDL__SCATTER:
    case DDL__ALLTOALL: expect_blocks(w, r, want); return;
    case DDL__ORDERED_ALLREDUCE:
    case DDL__ORDERED_REDUCE_SCATTER:
    case DDL__BARRIER:
    case DDL__SEND:
    case DDL__RECV: return;
    }
}

static const char *verify_rank(const world *w, int r)
{
    const ddl__request *request = &w->request;
    const simulated_rank *me = &w->ranks[r];
    for (int64_t i = 0; !me->in_place && i < me->in_count; i++)
        if (me->in[i] != original(w, r, true, i))
            return "wrote to the input";
    if (request->kind == DDL__BARRIER)
        return me->heard == UINT64_MAX >> (64 - request->size) ? NULL
                                                               : "left the barrier too early";
    size_t bytes = (size_t)me->out_count * sizeof *me->out;
    bool for_all = request->kind == DDL__ALLREDUCE;
    if (for_all && r > 0) /* rank 0's is right */
        return memcmp(me->out, w->ranks[0].out, bytes) ? "ranks differ" : NULL;
    uint64_t *want = new_values(me->out_count);
    for (int64_t i = 0; i < me->out_count; i++)
        want[i] = original(w, r, false, i);
    expect(w, r, want);
    bool right = memcmp(me->out, want, bytes) == 0;
    free(want);
    return right ? NULL : "a wrong result";
}

static const char *verify(const world *w)
{
    const char *error = NULL;
    for (int r = 0; r < w->request.size && !error; r++)
        error = verify_rank(w, r);
    return error;
}

static const char *simulate(world *w, schedule how)
{
    const char *error = execute(w, how);
    return error ? error : verify(w);
}

#endif
