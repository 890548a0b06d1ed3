/* layout.h - how a comm's ranks lie on the machine: proven, described or declared. */
#ifndef DDL_COMM_LAYOUT_H
#define DDL_COMM_LAYOUT_H

#include "engine/choices.h"
#include "topo/topology.h"

typedef struct ddl_comm ddl_comm;

/* What the environment says, equal on all members but for the last three. */
typedef struct ddl__layout {
    char mode; /* 'r', 't', 'h': by one ring, by trees, by halves; 'd': the levels declared, else as
                  chosen; 'p': explore; 0: all as found and chosen */
    int dimensions[DDL__DIMENSIONS]; /* declared with a mode */
    int dump_iter;                   /* operations after which they are reported; 0: never */
    char topology[128];              /* $DDL_TOPOLOGY */
    ddl__location location;          /* where this rank runs */
    ddl__choices choices;            /* rank 0's of $DDL_PLAN_FILE */
} ddl__layout;

/* Fail unless another member was told the same. */
ddl_status ddl__layout_compare(const ddl_comm *comm, const ddl__layout *theirs, const char *name);

/* Make the comm's topology of what was proven, shared[i * size + j], and of where the ranks run,
 * and tell its engine. */
ddl_status ddl__layout_apply(ddl_comm *comm, const unsigned char *shared,
                             const ddl__location *locations);

#endif
