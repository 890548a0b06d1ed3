/* levels.h - how a run of elements is divided between all ranks, level by level. For nested.c and
 * its test.
 *
 * Let a group of ranks (a host, say) hold a run of elements if for each of them one rank of the
 * group, its owner, has it reduced over the group. A rank holds the run as it is its own. A group
 * comes to hold it once its children do: wherever the children's owners change, the run is cut, and
 * for each cut the owners, one of each child, exchange it and become owners of a part each. As the
 * children's cuts are intersected, they need not be alike: a host of three ranks beside a host of
 * one works.
 */
#ifndef DDL_PLAN_LEVELS_H
#define DDL_PLAN_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

#include "topo/topology.h"

enum {
    /* A level of more groups is divided, when they are alike: fewer hops for a small message, and
     * never so many peers at once for a large one. */
    DDL__RADIX = 8,
    DDL__LADDER = 32, /* levels at most, divided ones counted */

    /* Runs that two ranks exchange at most, so that their spans fit a link. Unequal groups that
     * would need more are treated more coarsely. */
    DDL__PAIR_RUNS = 4
};

/* One partition of the ranks for each level, from single ranks (0) to all in one (n). */
typedef struct ddl__ladder {
    int size, n;
    int inside;  /* levels within hosts: none, that of their ranks, or those of nodes too */
    bool halves; /* levels above the hosts are divided by two again and again */
    bool capped; /* only as many ranks of a host own anything as the smallest host has */
    int *groups; /* [level * size + rank]; those of a level numbered by their first ranks */
    int n_groups[DDL__LADDER + 1];
} ddl__ladder;

/* The levels of a topology, divided by DDL__RADIX or in halves; the finest first that is not too
 * fine: coarseness 0, 1, ...; at the last, DDL__COARSEST, every run fits. False when out of memory.
 */
enum { DDL__COARSEST = 3 };
bool ddl__ladder_create(ddl__ladder *ladder, const ddl__topology *topology, bool halves,
                        int coarseness);
void ddl__ladder_destroy(ddl__ladder *ladder);

/* Elements that some ranks exchange: member i becomes owner of part i. */
typedef struct ddl__exchange {
    int64_t start, count;
    uint32_t member;          /* index of the first in levels->members */
    int members, parts, self; /* the first `parts` of them get a part */
} ddl__exchange;

/* What one rank exchanges. Each level's exchanges are in the order of their elements, for all ranks
 * alike. */
typedef struct ddl__levels {
    int n;
    uint32_t first[DDL__LADDER + 1]; /* of level l; those of the last level end at first[n] */
    ddl__exchange *exchanges;
    uint32_t *members;
    uint32_t n_exchanges, n_members, exchange_room, member_room;
    int64_t unit;
    int pair_runs; /* that any two ranks exchange at most */
} ddl__levels;

/* Divide `count` elements, parts beginning at multiples of `unit`. False when out of memory. Where
 * pair_runs is above DDL__PAIR_RUNS the rest is not valid. */
bool ddl__levels_create(ddl__levels *levels, const ddl__ladder *ladder, int rank, int64_t count,
                        int64_t unit);
void ddl__levels_destroy(ddl__levels *levels);

/* Where part `i` begins; that of `parts` is the end. */
int64_t ddl__part_start(const ddl__levels *levels, const ddl__exchange *exchange, int i);

#endif
