/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - the layout of a comm's ranks on hosts and levels: proven, described or declared. */
#ifndef DDL_COMM_LAYOUT_H
#define DDL_COMM_LAYOUT_H

#include "engine/executor/choices.h"
#include "topo/topology.h"

typedef struct ddl_comm ddl_comm;

/* The layout settings from the environment. They are equal on all members, except the last two. */
typedef struct ddl__layout {
    /* 'r', 't', 'h': one ring, trees, halving; 'd': the declared levels; 'p': explore; 0: the
     * proven levels. With other modes than r, t and h, libddl chooses the algorithm */
    char mode;
    int dimensions[DDL__DIMENSIONS]; /* the dimensions that a mode declares */
    int dump_iter;      /* number of operations between two reports of times; 0 means no reports */
    char topology[128]; /* $DDL_TOPOLOGY */
    ddl__location location; /* where this rank runs */
    ddl__choices choices;   /* rank 0's choices of $DDL_PLAN_FILE */
} ddl__layout;

enum {
    /* The size of a ring in bytes. All of them may be published and unreleased at the same time. */
    DDL__RING = 2 * 1024 * 1024,
    /* Bytes of a ring that stays in a second-level cache. */
    DDL__RING_NEAR = 512 * 1024,
    /* Bytes of the smallest second-level cache for such a ring. */
    DDL__RING_CACHE = 2 * 1024 * 1024
};

/* Return the size of the ring for the spans of a rank with this location. */
uint64_t ddl__ring_bytes(const ddl__location *location, int size);

/* Fail if another member's settings differ. */
ddl_status ddl__layout_compare(const ddl_comm *comm, const ddl__layout *theirs, const char *name);

/* Create the comm's topology and pass it to the engine. `sharing` and `locations` have an entry for
 * each rank: the ranks that share memory with it, and its location. */
ddl_status ddl__layout_apply(ddl_comm *comm, const ddl__sharing *sharing,
                             const ddl__location *locations);

#endif
