/* layout.h - how a comm's ranks lie on the machine: proven, described or declared. */
#ifndef DDL_COMM_LAYOUT_H
#define DDL_COMM_LAYOUT_H

#include "topo/topology.h"

typedef struct ddl_comm ddl_comm;

/* What the environment says; equal on all members. */
typedef struct ddl__layout {
    char mode; /* 'r': one ring of all; 'd': direct over the levels declared; 0: chosen */
    int dimensions[DDL__DIMENSIONS]; /* declared with a mode */
    char topology[128];              /* $DDL_TOPOLOGY */
} ddl__layout;

/* Fail unless another member was told the same. */
ddl_status ddl__layout_compare(const ddl_comm *comm, const ddl__layout *theirs, const char *name);

/* Make the comm's topology of what was proven, shared[i * size + j], and tell its engine. */
ddl_status ddl__layout_apply(ddl_comm *comm, const unsigned char *shared);

#endif
