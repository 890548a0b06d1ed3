/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/hierarchy.h"

#include <stdlib.h>
#include <string.h>

/* Count the groups of `below` in each group of `above`. Groups are numbered by their first ranks,
 * so the first rank identifies a group. */
static void count_children(const ddl__hierarchy *hierarchy, const int *below, int n_below,
                           const int *above, int *children)
{
    memset(children, 0, (size_t)hierarchy->size * sizeof *children);
    for (int r = 0, seen = 0; r < hierarchy->size && seen < n_below; r++)
        if (below[r] == seen) {
            children[above[r]]++;
            seen++;
        }
}

static int smallest(const int *children, int n)
{
    int least = children[0];
    for (int g = 1; g < n; g++)
        least = children[g] < least ? children[g] : least;
    return least;
}

static int largest(const int *children, int n)
{
    int most = children[0];
    for (int g = 1; g < n; g++)
        most = children[g] > most ? children[g] : most;
    return most;
}

/* Append a partition that joins consecutive groups of `below` within the groups of `above`, so that
 * each has about `parts` equal parts. `children` is from count_children; `scratch` has 3 * size
 * entries. */
static void divide(ddl__hierarchy *hierarchy, const int *below, const int *above,
                   const int *children, int64_t parts, int *scratch)
{
    size_t size = (size_t)hierarchy->size;
    int *joined = scratch; /* by group of `below`: its part */
    int *filled = scratch + size,
        *open = scratch + 2 * size; /* by group of `above`: number of children so far, and the part
                                       that is being filled */
    int *next = ddl__hierarchy_groups(hierarchy, hierarchy->n + 1), n = 0;
    memset(filled, 0, size * sizeof *filled);
    for (int r = 0, seen = 0; r < hierarchy->size; r++) {
        int a = above[r];
        if (below[r] == seen) {
            int64_t i = filled[a]++;
            if (i == 0 || i * parts / children[a] != (i - 1) * parts / children[a])
                open[a] = n++;
            joined[seen++] = open[a];
        }
        next[r] = joined[below[r]];
    }
    hierarchy->n_groups[++hierarchy->n] = n;
}

/* Append the partition `above`. Before it, append the halves of its groups, the quarters and so on,
 * down to single children of the largest group. The smallest parts come first. */
static void append_halves(ddl__hierarchy *hierarchy, const int *above, int n_above, int *scratch)
{
    const int *below = ddl__hierarchy_groups(hierarchy, hierarchy->n);
    int n_below = hierarchy->n_groups[hierarchy->n], doublings = 0;
    count_children(hierarchy, below, n_below, above, scratch);
    while (n_above != n_below && 1 << doublings < largest(scratch, n_above))
        doublings++;
    while (--doublings >= 0)
        divide(hierarchy, below, above, scratch, 1 << doublings, scratch + hierarchy->size);
}

/* Append the partition `above`. If it joins many groups, and `divides` is set, first append
 * partitions between the last level and this one. */
static void append_level(ddl__hierarchy *hierarchy, const int *above, int n_above, bool divides,
                         int *scratch)
{
    size_t bytes = (size_t)hierarchy->size * sizeof *above;
    if (hierarchy->halves && divides) {
        append_halves(hierarchy, above, n_above, scratch);
        return;
    }
    for (;;) {
        const int *below = ddl__hierarchy_groups(hierarchy, hierarchy->n);
        int *next = ddl__hierarchy_groups(hierarchy, hierarchy->n + 1);
        int n_below = hierarchy->n_groups[hierarchy->n];
        if (n_above == n_below)
            return;
        count_children(hierarchy, below, n_below, above, scratch);
        int most = largest(scratch, n_above), each = ddl__hierarchy_radix(most);
        bool same_size = most == smallest(scratch, n_above);
        if (!divides || !same_size || most <= DDL__RADIX || each == 1 ||
            hierarchy->n + 2 > DDL__LEVELS_MAX - DDL__GROUPINGS) {
            memcpy(next, above, bytes);
            hierarchy->n_groups[++hierarchy->n] = n_above;
            return;
        }
        divide(hierarchy, below, above, scratch, most / each, scratch + hierarchy->size);
    }
}

bool ddl__hierarchy_create(ddl__hierarchy *hierarchy, const ddl__topology *t, bool halves,
                           int coarseness)
{
    size_t size = (size_t)t->size;
    *hierarchy = (ddl__hierarchy){
        .size = t->size, .halves = halves && coarseness < 2, .capped = coarseness % 2};
    hierarchy->groups = calloc((DDL__LEVELS_MAX + 1) * size, sizeof *hierarchy->groups);
    int *scratch = calloc(5 * size, sizeof *scratch);
    if (!hierarchy->groups || !scratch) {
        free(scratch);
        ddl__hierarchy_destroy(hierarchy);
        return false;
    }
    const int *one_group = scratch + 4 * size; /* all ranks in group 0 */
    int hosts = t->groups[DDL__HOSTS];
    hierarchy->n_groups[0] = t->size;
    for (int r = 0; r < t->size; r++)
        hierarchy->groups[r] = r;
    if (t->node && coarseness == 0)
        append_level(hierarchy, t->node, t->nodes, false, scratch);
    append_level(hierarchy, t->group, hosts, false, scratch);
    hierarchy->inside = hierarchy->n;
    for (int g = DDL__RACKS; g < DDL__GROUPINGS && coarseness < 2; g++)
        append_level(hierarchy, t->group + g * t->size, t->groups[g], true, scratch);
    append_level(hierarchy, one_group, 1, hosts > 1 && coarseness < DDL__COARSEST, scratch);
    free(scratch);
    return true;
}

void ddl__hierarchy_destroy(ddl__hierarchy *hierarchy)
{
    free(hierarchy->groups);
    hierarchy->groups = NULL;
}
