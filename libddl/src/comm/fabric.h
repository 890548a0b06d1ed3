/* SPDX-License-Identifier: Apache-2.0 */
/* fabric.h - the choice whether the spans between the hosts of a comm are sent over UCX. */
#ifndef DDL_COMM_FABRIC_H
#define DDL_COMM_FABRIC_H

#include "base/until.h"
#include "net/ucx/ucx.h"

enum { DDL__FABRIC_REASON = 300 };

/* This member's settings, and its part of UCX. */
typedef struct ddl__fabric {
    bool wanted;                  /* its links include ucx */
    bool required;                /* and not tcp */
    ddl__ucx *ucx;                /* NULL: not usable, or not needed */
    char why[DDL__FABRIC_REASON]; /* the reason why it is not usable; "" if it is not needed */
} ddl__fabric;

/* What the members tell each other with the other settings. */
typedef struct ddl__fabric_offer {
    bool wanted, required;
    bool usable;    /* also if this member needs no UCX */
    uint32_t bytes; /* of its UCX address, or of the reason with its terminating 0 */
} ddl__fabric_offer;

struct ddl_comm;

/* Open UCX if this member wants it and has a TCP link. */
ddl__fabric_offer ddl__fabric_open(struct ddl_comm *comm);

/* Exchange the UCX addresses, and use UCX for all TCP links. If a member cannot, continue over TCP,
 * or if a member requires UCX, return DDL_EUNSUPPORTED. All members call it with the offers of all,
 * `stride` bytes apart, and get the same result. */
ddl_status ddl__fabric_agree(struct ddl_comm *comm, const ddl__fabric_offer *offers, size_t stride,
                             const ddl__until *until);

#endif
