/* SPDX-License-Identifier: Apache-2.0 */
/* exchanges.h - the division of a range of elements between all ranks, level by level, for the
 * hierarchical all-reduces.
 *
 * A group of ranks, such as a host, holds a range if each element has one owner in the group: the
 * rank that has the element reduced over the group. A single rank holds the whole range and owns
 * all of it.
 *
 * A group holds the range after its children have exchanged it. The range is cut wherever the owner
 * changes in any of the children. For each cut, its owners, one from each child, exchange it, and
 * each becomes the owner of a part. Because the cuts of all children are merged, the children may
 * have different sizes. */
#ifndef DDL_PLAN_EXCHANGES_H
#define DDL_PLAN_EXCHANGES_H

#include <stdint.h>

#include "plan/hierarchy.h"

enum {
    /* The largest number of ranges that two ranks may exchange at a level, so that their spans fit
     * a link. */
    DDL__PAIR_RANGES = 4
};

/* A range that some ranks exchange: member i becomes owner of part i. */
typedef struct ddl__exchange {
    int64_t start, count;
    uint32_t member; /* index of the first member in exchanges->members */
    /* number of members, of which the first `parts` get a part; index of this rank among them */
    int members, parts, self;
} ddl__exchange;

/* The exchanges of one rank. The exchanges of a level are in the order of their elements on all
 * ranks. */
typedef struct ddl__exchanges {
    int n;                               /* number of levels */
    uint32_t first[DDL__LEVELS_MAX + 1]; /* level l begins at list[first[l]] and ends before
                                          * list[first[l + 1]] */
    ddl__exchange *list;
    uint32_t *members;
    uint32_t n_list, n_members, list_room, member_room;
    int64_t unit;
    int pair_ranges; /* largest number of ranges that two ranks exchange at one level */
} ddl__exchanges;

/* Divide `count` elements; parts begin at multiples of `unit`. Return false if out of memory. If
 * pair_ranges is above DDL__PAIR_RANGES, the other fields are not valid. */
bool ddl__exchanges_create(ddl__exchanges *exchanges, const ddl__hierarchy *hierarchy, int rank,
                           int64_t count, int64_t unit);
void ddl__exchanges_destroy(ddl__exchanges *exchanges);

/* Return the start of part `i`. Part `parts` starts where the exchange ends. */
int64_t ddl__part_start(const ddl__exchanges *exchanges, const ddl__exchange *exchange, int i);

#endif
