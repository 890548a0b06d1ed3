/* SPDX-License-Identifier: Apache-2.0 */
/* hierarchy.h - a topology's levels as partitions of the ranks. For hierarchical all-reduces. */
#ifndef DDL_PLAN_HIERARCHY_H
#define DDL_PLAN_HIERARCHY_H

#include <stdbool.h>

#include "topo/topology.h"

enum {
    /* A level that joins more groups of one size than this is divided. A rank then exchanges a
     * large message with at most this many peers at once, and a small message takes fewer hops than
     * with a division by two. */
    DDL__RADIX = 8,
    DDL__LEVELS_MAX = 32, /* including divided levels */
    DDL__COARSEST = 3
};

/* One partition of the ranks for each level, from single ranks (0) to one group of all (n). */
typedef struct ddl__hierarchy {
    int size, n;
    int inside; /* number of levels within hosts: 0 if each host has one rank, 1 if not, 2 with NUMA
                   nodes */
    bool halves; /* levels above the hosts are halved repeatedly */
    bool capped; /* each host has only as many owners as the smallest host has ranks */
    int *groups; /* [level * size + rank]; a level's groups are numbered by their first ranks */
    int n_groups[DDL__LEVELS_MAX + 1];
} ddl__hierarchy;

/* Create the levels of a topology, divided by DDL__RADIX or in halves. Coarseness 0 has all levels;
 * each higher one has fewer; DDL__COARSEST always fits the links. Return false if out of memory. */
bool ddl__hierarchy_create(ddl__hierarchy *hierarchy, const ddl__topology *topology, bool halves,
                           int coarseness);
void ddl__hierarchy_destroy(ddl__hierarchy *hierarchy);

/* Return the group of each rank at a level. */
static inline int *ddl__hierarchy_groups(const ddl__hierarchy *hierarchy, int level)
{
    return hierarchy->groups + (size_t)level * (size_t)hierarchy->size;
}

/* Return how many of `groups` groups of one size the next level joins into one: the largest divisor
 * of `groups` up to DDL__RADIX, which may be 1. */
static inline int ddl__hierarchy_radix(int groups)
{
    int divisor = DDL__RADIX;
    while (groups % divisor)
        divisor--;
    return divisor;
}

#endif
