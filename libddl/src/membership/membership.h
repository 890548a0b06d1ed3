/* SPDX-License-Identifier: Apache-2.0 */
/* membership.h - what one rank knows of a comm's members, and what it decides: who is dead, whether
 * the comm ends, and which ranks continue. docs/dev/membership.md is the specification.
 *
 * Design notes. A state machine without I/O, clock, locks or allocation: each event is a function
 * of the state and the time, and calls the ports for what is to be done. A port never calls back.
 * health/ runs it over connections and under the detector's lock; tests/explore/ runs many over a
 * model of the network. The state is one block of memory, which may be copied. Times are in
 * nanoseconds. */
#ifndef DDL_MEMBERSHIP_MEMBERSHIP_H
#define DDL_MEMBERSHIP_MEMBERSHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddl/ddl.h"

/* The messages about a comm. The values are the protocol's. */
typedef enum ddl__control_msg {
    DDL__HEARTBEAT = 1, /* the sender is alive; its last operation */
    DDL__LEAVE,         /* the sender has destroyed the comm; its last operation */
    DDL__DEAD,          /* the comm is dead: status and reason */
    DDL__EXPEL,         /* the sender continues without the receiver: reason */
    DDL__ASK,           /* asks for the receiver's operation of this sequence */
    DDL__ANSWER,        /* answers ASK */
    DDL__JOIN,          /* agreement: the sender's leader, and the ranks that it accuses */
    DDL__VERDICT,       /* agreement: the survivors */
    DDL__DONE,          /* agreement: the sender has created the survivors' comm */
    DDL__ASK_NAME,      /* asks rank 0 which ranks have not called this name; the rank that asks */
    DDL__ANSWER_NAME,   /* answers ASK_NAME; the rank that asked */
    DDL__CONFIRM,       /* the process of this rank has ended, as the sender's kernel has shown */
    DDL__EXPELLED,      /* a rank's program has expelled another one: both, and the reason */
    DDL__LOST,          /* a rank counts another one as dead: both, and its state; see gossip.c */
    DDL__GONE           /* ranks that have left the comm, with their last operations */
} ddl__control_msg;

typedef enum ddl__member_state {
    DDL__ALIVE,
    DDL__LEFT,         /* it has destroyed the comm */
    DDL__KILLED,       /* its process has ended: the kernel that ran it has shown so */
    DDL__DISCONNECTED, /* its connection has ended: its process has, or the network cut it off */
    DDL__SILENT        /* silent for too long, or unreachable; it may be alive */
} ddl__member_state;

/* Why a member is not alive. */
typedef enum ddl__cause_kind {
    DDL__CAUSE_NONE,
    DDL__CAUSE_LEFT,
    DDL__CAUSE_PROCESS_ENDED,    /* error: an errno; 0: end of file */
    DDL__CAUSE_CONNECTION_ENDED, /* error */
    DDL__CAUSE_CONFIRMED,        /* a witness saw its process end */
    DDL__CAUSE_SILENT,           /* the member's silent_ns */
    DDL__CAUSE_UNREACHABLE,      /* error */
    DDL__CAUSE_CONTINUES,        /* it continues without this rank */
    DDL__CAUSE_EXPELLED,         /* by; text: the reason */
    DDL__CAUSE_LEFT_OUT,         /* the survivors left it out when they shrank the comm */
    DDL__CAUSE_LOST_BY_TWO,      /* by, other */
    DDL__CAUSE_NOT_CONNECTED,    /* it has not connected to this rank, which leads the agreement */
    DDL__CAUSE_NOT_REACHED,      /* text: what became of dialing it */
    DDL__CAUSE_HOST_UNREACHABLE, /* by: a rank that has lost it */
    DDL__CAUSE_LINK_ENDED,       /* its data link */
    DDL__CAUSE_LINK_UNREACHABLE
} ddl__cause_kind;

typedef struct ddl__cause {
    ddl__cause_kind kind;
    int by, other, error;
    const char *text; /* valid during the call */
} ddl__cause;

/* A message without its encoding. */
typedef struct ddl__member_msg {
    ddl__control_msg kind;
    int rank, by;             /* CONFIRM, EXPELLED, LOST, GONE: whom it is about, and who says so */
    uint32_t attempt;         /* JOIN, VERDICT, DONE; GONE: the last one that the rank has joined;
                                 CONFIRM: the last one whose comm it has created */
    int leader;               /* JOIN */
    uint32_t silent_ms;       /* LOST */
    unsigned char state;      /* LOST: a ddl__member_state */
    bool flag;                /* DONE: committed; EXPEL: left out */
    const unsigned char *set; /* JOIN, VERDICT */
    const char *text;         /* the reason: EXPEL, EXPELLED; DEAD without one */
} ddl__member_msg;

/* Why a comm is to end. */
typedef enum ddl__end_kind {
    DDL__END_DEAD,     /* member `rank` is dead */
    DDL__END_EXPELLED, /* this rank was expelled: by `rank`, text, for a program's reason */
    DDL__END_GIVEN_UP, /* `rank` continues without this rank: text */
    DDL__END_LOST,     /* this rank counts as dead for `rank`: state, silent_ms */
    DDL__END_SHRINKS   /* `rank` shrinks the comm */
} ddl__end_kind;

typedef struct ddl__comm_end {
    ddl__end_kind kind;
    int rank;
    unsigned char state;
    uint32_t silent_ms;
    const char *text;
} ddl__comm_end;

/* What the machine needs to have done. */
typedef struct ddl__member_ports {
    /* Send it to a member, if there is a connection. DEAD: the reason is the comm's. */
    void (*send)(void *context, int to, const ddl__member_msg *message);
    /* Send GONE for these ranks to a member, or to all that are alive (-1). */
    void (*send_gone)(void *context, int to, const int32_t *ranks, int n);
    /* The member is dead, or DDL__CAUSE_CONFIRMED: is known to have ended after all. */
    void (*died)(void *context, int rank, const ddl__cause *cause);
    void (*left)(void *context, int rank);
    /* Its process ended without LEAVE: the comm ends unless pending operations still complete. */
    void (*watch)(void *context, int rank);
    void (*end)(void *context, const ddl__comm_end *end);
    /* Let the launcher know that this rank may continue in the comm of this attempt. */
    void (*continues)(void *context, uint32_t attempt);
    /* Facts about members: True if some of them have no connection to this one. */
    bool (*has_late_pairs)(void *context, int rank);
    uint64_t (*network)(void *context, int rank); /* of its host; 0: unknown */
} ddl__member_ports;

typedef struct ddl__peer {
    unsigned char state;  /* ddl__member_state */
    unsigned char cause;  /* ddl__cause_kind */
    bool connected;       /* a control connection is open */
    bool late;            /* it has none unless an agreement needs it */
    bool is_new;          /* its late connection has brought no message so far */
    bool confirmed;       /* a witness has seen its process end */
    bool expelled;        /* a program has expelled it; of our own entry: this rank */
    bool may_continue;    /* it expelled us, or left after we had given it up: it may have continued
                             with others, so its own end does not prove that they have ended */
    bool by_report;       /* it counts as dead since others say so */
    bool reported_silent; /* one of them says that it was silent */
    unsigned char n_reporters;
    int reporters[2];           /* ranks that count it as dead; see gossip.c */
    int64_t silent_ns;          /* how long it has been silent */
    int64_t confirmed_at;       /* when the launcher has confirmed the end of its process */
    uint32_t confirmed_attempt; /* the last one whose comm it had created, for a witness */

    /* Its messages of the survivors' agreement: the last attempts that it has joined, decided,
     * created, and seen created by all; and the leader that it follows. */
    uint32_t joined, decided, done, committed;
    int leader;
} ddl__peer;

/* Where this rank is in the survivors' agreement. */
typedef enum ddl__agreement_phase {
    DDL__AGREEMENT_IDLE,
    DDL__AGREEMENT_GATHERING, /* until the leader has decided */
    DDL__AGREEMENT_CREATING,  /* the caller creates the comm of the attempt */
    DDL__AGREEMENT_AWAITING   /* until all survivors have created it */
} ddl__agreement_phase;

typedef struct ddl__membership {
    const ddl__member_ports *ports;
    void *context; /* of the ports */
    int rank, size;
    int n_late;              /* late members */
    int far_beats;           /* see graph.h */
    int64_t heartbeat, dead; /* intervals */
    int64_t position_limit;  /* that news of an operation counts */
    bool announced;          /* the members were sent the comm's death */
    int64_t evidence_until;  /* until then a witness may confirm the last death, or an expelled
                                member may turn out to have expelled this rank */
    bool left_out;           /* the survivors continue without this rank, by their verdict */
    int n_gone;              /* ranks that have left, to be sent with the next heartbeats */

    unsigned char phase;    /* ddl__agreement_phase */
    bool has_sent;          /* JOIN of `gathering` was sent, with the accused ranks of our entry */
    unsigned char why;      /* ddl__agreement_failure */
    int late_rank;          /* see ddl__agreement_why */
    int64_t deadline;       /* of the agreement */
    int64_t disputed_until; /* see awaits_news in agreement.c; 0: nothing is disputed */
    uint32_t gathering;     /* the attempt that is being agreed on */
    uint32_t attempt;       /* the last attempt that was agreed on */
    uint32_t created_attempt; /* the attempt whose comm this rank has created; 0: none */

    uint64_t n_deaths;
    int64_t detection_ns; /* the longest silence before a death */

    size_t set_bytes, sets_at, gone_at; /* the rest of the block */
    ddl__peer peers[];                  /* by rank; then the sets, and the ranks of GONE */
} ddl__membership;

/* ---- members.c ---- */

/* The bytes of the block for a comm of this size, all zero at first. */
size_t ddl__membership_bytes(int size);

/* Prepare a block that is zero. The caller sets the intervals, and which peers are late and
 * connected. */
void ddl__membership_init(ddl__membership *m, const ddl__member_ports *ports, void *context,
                          int rank, int size);

bool ddl__member_is_dead(const ddl__membership *m, int rank);

/* The lowest rank that counts as alive. */
int ddl__lowest_alive(const ddl__membership *m);

/* Handle a message of a member. The caller reads the operations in GONE and LEAVE. */
void ddl__member_receive(ddl__membership *m, int from, const ddl__member_msg *message, int64_t now);

/* The member's connection has ended, or has failed with an error. The caller closes it. `local`: a
 * unix socket, whose end proves that the process ended. */
void ddl__member_ended(ddl__membership *m, int rank, bool local, int error, int64_t now);
void ddl__member_unreachable(ddl__membership *m, int rank, int error, int64_t now);

/* Nothing has arrived from a connected member for `elapsed` more, while this rank was running; its
 * next message may take `interval`. Returns true once it is dead. */
bool ddl__member_check_silence(ddl__membership *m, int rank, int64_t elapsed, int64_t interval,
                               int64_t now);

/* While the comm is created: the member has left it, or its process or connection has ended. It is
 * handled once the comm is monitored (ddl__member_start). */
void ddl__member_left_early(ddl__membership *m, int rank);
void ddl__member_ended_early(ddl__membership *m, int rank, bool known, int64_t now);
void ddl__member_start(ddl__membership *m, int rank, int64_t now);

/* The data link with a member that has no control connection has ended (`lost`), or cannot be
 * opened. */
void ddl__member_link_failed(ddl__membership *m, int rank, bool lost, int64_t now);

/* The survivors create their comm, and nothing answers at the member's addresses, although its
 * heartbeats arrive, or the leader has it in the list: the two cannot both be in the next list.
 * One that is dead by report is accused by evidence of this rank's own from then on. Ignored
 * otherwise, and where silence proves nothing either. `was_accepted`: its host has accepted
 * a connection, so without heartbeats the member may be stopped. */
void ddl__member_cannot_connect(ddl__membership *m, int rank, bool was_accepted, int64_t now);

/* The launcher has seen the member's process end, after it had created the comm of `attempt` (0:
 * none). A leave message may still be on its way. */
void ddl__member_launcher_confirm(ddl__membership *m, int rank, uint32_t attempt, int64_t now);
void ddl__member_check_confirmed(ddl__membership *m, int rank, int64_t now);

/* This rank's program expels a member. DDL_EMINORITY: this rank was expelled itself. */
ddl_status ddl__member_expel(ddl__membership *m, int rank, const char *reason, int64_t now);

/* The comm is dead: send DEAD to all members, once. A rank that another one has told (`was_told`)
 * sends it only to those that are near: whoever told it tells all, and if it dies, all know that.
 */
void ddl__membership_announce(ddl__membership *m, bool was_told);

/* This rank leaves: note what the member's last message says. */
void ddl__member_note_last(ddl__membership *m, int rank, ddl__control_msg message);

/* A member has connected late: send it what it has missed. */
void ddl__member_connected(ddl__membership *m, int rank);

/* ---- gossip.c: see there ---- */

/* True if this rank passes messages on to that one. */
bool ddl__gossip_reaches(const ddl__membership *m, int rank);

/* True if the two send each other heartbeats less often than at every beat. */
bool ddl__member_is_far(const ddl__membership *m, int rank);

/* Send the members that have left since the last time to all. */
void ddl__gossip_send_gone(ddl__membership *m);

/* ---- leader.c: the leader of a sparse comm's agreement ---- */

/* What became of dialing the leader. */
typedef enum ddl__dialed {
    DDL__DIALED_LEFT,       /* it has left the comm */
    DDL__DIALED_LOST,       /* this rank counts as dead there */
    DDL__DIALED_LEFT_OUT,   /* the survivors have decided without this rank */
    DDL__DIALED_REFUSED,    /* its host refuses the connection */
    DDL__DIALED_SILENT,     /* nothing answers at its addresses */
    DDL__DIALED_UNANSWERED, /* it was reached, but has not answered */
    DDL__DIALED_FAILED      /* anything else */
} ddl__dialed;

/* For how long to dial it, by what the last attempt has led to. */
int64_t ddl__leader_limit(const ddl__membership *m, int leader, ddl__dialed result);

/* An attempt to dial the leader has ended; it has been dialed for `elapsed`. `text`: why it failed.
 * `answers(context, rank)`: whether that rank's host is known to answer. */
void ddl__leader_dialed(ddl__membership *m, int leader, ddl__dialed result, int64_t elapsed,
                        const char *text, bool (*answers)(const void *context, int rank),
                        const void *context, int64_t now);

/* The leader is connected. If it counts as dead meanwhile, it is sent so. */
void ddl__leader_connected(ddl__membership *m, int leader);

/* A rank that would lead next does not answer either. */
void ddl__leader_unreachable(ddl__membership *m, int rank, const char *text, int64_t now);

/* What to answer a late connection of this rank. DDL_OK; DDL_EPEER: it counts as dead here;
 * DDL_EMINORITY: the survivors have decided without it; DDL_EREFUSED: it has a connection. */
ddl_status ddl__leader_answer(const ddl__membership *m, int from);

/* This rank leads, and a late member has not connected to it for `elapsed` more. */
void ddl__leader_check_silence(ddl__membership *m, int rank, int64_t elapsed, int64_t now);

/* True if this rank has the next comm, and needs no leader any more. */
bool ddl__leader_is_unneeded(const ddl__membership *m);

/* ---- agreement.c ---- */

typedef enum ddl__agreement_step {
    DDL__STEP_WAIT,   /* for an event, or for a moment */
    DDL__STEP_CREATE, /* create the comm of the attempt, after abandoning an earlier one */
    DDL__STEP_RETURN, /* the comm that was created counts */
    DDL__STEP_FAIL    /* this rank cannot continue: see ddl__agreement_failure */
} ddl__agreement_step;

/* Why this rank cannot continue. */
typedef enum ddl__agreement_failure {
    DDL__FAILURE_NONE,
    DDL__FAILURE_EXPELLED,
    DDL__FAILURE_LEFT_OUT,
    DDL__FAILURE_NO_MAJORITY,
    DDL__FAILURE_LATE,    /* *rank has not shrunk the comm in time; -1: a member */
    DDL__FAILURE_CREATION /* this rank could not create the comm */
} ddl__agreement_failure;

/* Note that the comm has failed: a member is dead, or shrinks the comm. `failed`: it has. False if
 * the comm is alive, and may not be shrunk. */
bool ddl__agreement_may_begin(ddl__membership *m, bool failed);

void ddl__agreement_begin(ddl__membership *m, int64_t deadline);

/* Do what can be done now. After DDL__STEP_CREATE the caller calls ddl__agreement_created; after
 * DDL__STEP_RETURN and _FAIL the agreement has ended. */
ddl__agreement_step ddl__agreement_advance(ddl__membership *m, int64_t now);

/* The creation has ended. `final`: it has failed for a reason of this rank alone, or too late.
 * Returns DDL__STEP_WAIT or DDL__STEP_FAIL. */
ddl__agreement_step ddl__agreement_created(ddl__membership *m, bool created, bool final);

ddl__agreement_failure ddl__agreement_why(const ddl__membership *m, int *rank);

/* The member that makes the present creation vain; -1: none. This rank: it was expelled. */
int ddl__agreement_lost(const ddl__membership *m);

/* True if the rank is in the list of survivors of the present attempt. */
bool ddl__agreement_has(const ddl__membership *m, int rank);

#endif
