/* SPDX-License-Identifier: Apache-2.0 */
/* rank.h - a member of a comm in a process of its own, which does what a schedule of the explorer
 * says, when a supervisor says so.
 *
 * Design notes. The library is linked with wrappers (-Wl,--wrap) at the points that the schedule
 * names, and all else is real: processes, kill -9, sockets, shared memory, the detector's thread,
 * the creation of the next comm. A wrapper holds back what the member receives over the parent's
 * control connections, the steps of its agreement, and the outcome of its creation, until the
 * supervisor asks for it. Timers do not run: the member's silence, grace and evidence limits pass
 * when the supervisor says so. */
#ifndef DDL_TESTS_EXPLORE_REAL_RANK_H
#define DDL_TESTS_EXPLORE_REAL_RANK_H

#include "ddl/ddl.h"
#include "explore/model.h"

typedef enum order {
    DO_DRAIN,      /* read all that has arrived, without handling it */
    DO_DELIVER,    /* handle the next message of rank `value`, or the end of its connection */
    DO_RESET,      /* the connection with that rank ends, as by a reset of the network */
    DO_LOSE,       /* what that rank has sent, and is not handled, is lost */
    DO_ADVANCE,    /* one step of the agreement */
    DO_SHRINK,     /* call ddl_comm_shrink */
    DO_AWAIT_JOIN, /* until the next comm is created, or that has failed */
    DO_CREATED,    /* let the creation succeed */
    DO_UNCREATED,  /* ... or fail */
    DO_GRACE,
    DO_WAIT, /* the evidence limit passes */
    DO_SILENCE,
    DO_ABORT,
    DO_EXPEL,
    DO_LEAVE, /* destroy the comm */
    DO_LATE,  /* the limit of the shrink runs out */
    DO_REPORT
} order;

typedef struct request {
    int order, value;
} request;

enum { RANKS_MAX = 8 };

typedef struct reply {
    int ok, value; /* of DO_DELIVER: the message's kind, or END_OF_CONNECTION */
    /* DO_REPORT: */
    int phase;      /* a member_phase */
    bool has_ended; /* the comm has failed */
    uint64_t list;  /* of the comm that it has returned */
    unsigned char states[RANKS_MAX];
} reply;

/* What each process sends first, and receives of all then. */
typedef struct rank_address {
    size_t length;
    unsigned char bytes[DDL_ADDRESS_MAX];
} rank_address;

/* The process of a rank: never returns. `links`: DDL_LINK_SHM or DDL_LINK_TCP. */
_Noreturn void run_rank(int rank, int size, unsigned links, int supervisor);

#endif
