/* SPDX-License-Identifier: Apache-2.0 */
/* fabric.h - decides if a comm sends the spans between its hosts over UCX. */
#ifndef DDL_COMM_FABRIC_H
#define DDL_COMM_FABRIC_H

#include "base/until.h"
#include "net/ucx/ucx.h"

enum { DDL__FABRIC_REASON = 300 };

/* This member's UCX settings and UCX object. */
typedef struct ddl__fabric {
    bool wanted;   /* the member's links include ucx */
    bool required; /* the links include ucx, but not tcp */
    ddl__ucx *ucx; /* NULL if UCX is not usable or not needed */
    bool given_up; /* a member did not reach another one over UCX, in this comm or in a parent */
    char why[DDL__FABRIC_REASON]; /* the reason why UCX is not usable; "" if not needed */
} ddl__fabric;

/* The part of a member's settings that concerns UCX. The members exchange it with the other
 * settings. */
typedef struct ddl__fabric_offer {
    bool wanted, required;
    bool usable;    /* false if UCX cannot be used; true if it is not needed */
    uint32_t bytes; /* length of its UCX address, or of the reason including the NUL */
} ddl__fabric_offer;

struct ddl_comm;

/* Return the initial fabric of a child comm. If the parent's members could not reach each other
 * over UCX, the child uses TCP from the start. */
ddl__fabric ddl__fabric_inherit(const ddl__fabric *parent);

/* Open UCX if this member wants it and has a TCP link. */
ddl__fabric_offer ddl__fabric_open(struct ddl_comm *comm);

/* Exchange the UCX addresses, probe the peers, and use UCX for all TCP links. If a member cannot
 * use UCX, or does not reach a peer within DDL__UCX_PROBE_LIMIT, continue over TCP, or return
 * DDL_EUNSUPPORTED if a member requires UCX. All members call this with the offers of all members,
 * `stride` bytes apart, and get the same result. */
ddl_status ddl__fabric_agree(struct ddl_comm *comm, const ddl__fabric_offer *offers, size_t stride,
                             const ddl__until *until);

#endif
