/* SPDX-License-Identifier: Apache-2.0 */
/* rank.h - a member of a comm in a separate process, which carries out the steps of an explorer's
 * schedule on the orders of a supervisor.
 *
 * Design notes. The library is linked with wrappers (-Wl,--wrap) at the points that the schedule
 * controls. All else is real: processes, kill -9, sockets, shared memory, the detector's thread,
 * the creation of the next comm. Wrappers delay the messages on the parent's control connections,
 * the steps of the agreement, and the outcome of the creation, until the supervisor orders them.
 * Timers do not run: the silence, grace and evidence limits pass when the supervisor orders it. */
#ifndef DDL_TESTS_EXPLORE_REAL_RANK_H
#define DDL_TESTS_EXPLORE_REAL_RANK_H

#include "ddl/ddl.h"
#include "explore/model.h"

typedef enum order {
    DO_DRAIN,      /* read all messages that have arrived, without handling them */
    DO_DELIVER,    /* handle the next message of rank `value`, or the end of its connection */
    DO_RESET,      /* end the connection with that rank, as a network reset does */
    DO_LOSE,       /* lose the unhandled messages of that rank */
    DO_ADVANCE,    /* do one step of the agreement */
    DO_SHRINK,     /* call ddl_comm_shrink */
    DO_AWAIT_JOIN, /* wait until the next comm is created, or its creation has failed */
    DO_CREATED,    /* let the creation succeed */
    DO_UNCREATED,  /* let the creation fail */
    DO_GRACE,
    DO_WAIT, /* let the evidence limit pass */
    DO_SILENCE,
    DO_ABORT,
    DO_EXPEL,
    DO_LEAVE, /* destroy the comm */
    DO_LATE,  /* let the limit of the shrink run out */
    DO_REPORT
} order;

typedef struct request {
    int order, value;
} request;

enum { RANKS_MAX = 8 };

typedef struct reply {
    int ok, value; /* value: for DO_DELIVER the message's kind, or END_OF_CONNECTION */
    /* The fields below are for DO_REPORT. */
    int phase;      /* a member_phase */
    bool has_ended; /* the comm has failed */
    uint64_t list;  /* the members of the comm that it has returned */
    unsigned char states[RANKS_MAX];
} reply;

/* The first message of each process. The supervisor then sends all of them to each process. */
typedef struct rank_address {
    size_t length;
    unsigned char bytes[DDL_ADDRESS_MAX];
} rank_address;

/* Run the process of a rank. Never returns. `links` is DDL_LINK_SHM or DDL_LINK_TCP. */
_Noreturn void run_rank(int rank, int size, unsigned links, int supervisor);

#endif
