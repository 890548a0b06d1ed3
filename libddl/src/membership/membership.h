/* SPDX-License-Identifier: Apache-2.0 */
/* membership.h - one rank's knowledge of a comm's members, and its decisions: which members are
 * dead, if the comm ends, and which ranks continue. docs/dev/membership.md is the specification.
 *
 * Design notes. This is a state machine without I/O, clock, locks or allocation. Each event is a
 * function of the state and the time, and calls the ports for the actions. A port never calls back.
 * health/ runs the machine over connections, under the detector's lock. tests/explore/ runs many
 * machines over a model of the network. The state is one block of memory, which may be copied.
 * Times are in nanoseconds. */
#ifndef DDL_MEMBERSHIP_MEMBERSHIP_H
#define DDL_MEMBERSHIP_MEMBERSHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddl/ddl.h"

/* The messages about a comm, and their contents. The values are part of the protocol. */
typedef enum ddl__control_msg {
    DDL__HEARTBEAT = 1, /* the sender is alive; its last operation */
    DDL__LEAVE,         /* the sender has destroyed the comm; its last operation */
    DDL__DEAD,          /* the comm is dead: status and reason */
    DDL__EXPEL,         /* the sender continues without the receiver: reason */
    DDL__ASK,           /* requests the receiver's operation of this sequence */
    DDL__ANSWER,        /* answers ASK */
    DDL__JOIN,          /* agreement: the sender's leader, and the ranks that it accuses */
    DDL__VERDICT,       /* agreement: the survivors */
    DDL__DONE,          /* agreement: the sender has created the survivors' comm */
    DDL__ASK_NAME,      /* asks rank 0 which ranks have not called this name; the asking rank */
    DDL__ANSWER_NAME,   /* answers ASK_NAME; the asking rank */
    DDL__CONFIRM,       /* the process of a rank on the sender's host has ended */
    DDL__EXPELLED,      /* a rank's program has expelled another rank: both, and the reason */
    DDL__LOST,          /* a rank has declared another one dead: both, its state; see gossip.c */
    DDL__GONE,          /* ranks that have left the comm, with their last operations */
    DDL__VOUCH          /* agreement: a rank that the leader has lost has joined it */
} ddl__control_msg;

typedef enum ddl__member_state {
    DDL__ALIVE,
    DDL__LEFT,         /* it has destroyed the comm */
    DDL__KILLED,       /* its process has ended, by evidence of the kernel that ran it */
    DDL__DISCONNECTED, /* its connection has ended: the process ended, or the network cut it off */
    DDL__SILENT        /* silent for too long, or unreachable; it may be alive */
} ddl__member_state;

/* The reason why a member is not alive. */
typedef enum ddl__cause_kind {
    DDL__CAUSE_NONE,
    DDL__CAUSE_LEFT,
    DDL__CAUSE_PROCESS_ENDED,    /* error: an errno; 0: end of file */
    DDL__CAUSE_CONNECTION_ENDED, /* error */
    DDL__CAUSE_CONFIRMED,        /* a witness reported the end of its process */
    DDL__CAUSE_SILENT,           /* silent for the member's silent_ns */
    DDL__CAUSE_UNREACHABLE,      /* error */
    DDL__CAUSE_CONTINUES,        /* it continues without this rank */
    DDL__CAUSE_EXPELLED,         /* by: the expelling rank; text: its reason */
    DDL__CAUSE_LEFT_OUT,         /* the survivors left it out when they shrank the comm */
    DDL__CAUSE_RESIGNED,         /* it led the agreement, and was cut off */
    DDL__CAUSE_LOST_BY_TWO,      /* by, other */
    DDL__CAUSE_NOT_CONNECTED,    /* it has not connected to this rank, which leads the agreement */
    DDL__CAUSE_NOT_REACHED,      /* text: the result of dialing it */
    DDL__CAUSE_HOST_UNREACHABLE, /* by: a rank that has lost it */
    DDL__CAUSE_LINK_ENDED,       /* its data link has ended */
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
    int rank, by;        /* CONFIRM, EXPELLED, LOST, GONE, VOUCH: the subject; the reporter */
    uint32_t attempt;    /* JOIN, VERDICT, DONE, VOUCH: the current attempt; GONE: the last attempt
                          * that `rank` has joined; CONFIRM: the last whose comm `rank` has
                          * created */
    int leader;          /* JOIN */
    uint32_t silent_ms;  /* LOST */
    unsigned char state; /* LOST: a ddl__member_state */
    bool flag;           /* DONE: committed; EXPEL: left out */
    const unsigned char *set; /* JOIN, VERDICT */
    const char *text;         /* EXPEL, EXPELLED: the reason. DEAD: NULL; the encoder adds it */
} ddl__member_msg;

/* The reason why a comm must end. */
typedef enum ddl__end_kind {
    DDL__END_DEAD,     /* member `rank` is dead */
    DDL__END_EXPELLED, /* the program of `rank` has expelled this rank; text: its reason */
    DDL__END_GIVEN_UP, /* `rank` continues without this rank; text: the reason */
    DDL__END_LOST,     /* `rank` has declared this rank dead: state, silent_ms */
    DDL__END_SHRINKS   /* `rank` shrinks the comm */
} ddl__end_kind;

typedef struct ddl__comm_end {
    ddl__end_kind kind;
    int rank;
    unsigned char state;
    uint32_t silent_ms;
    const char *text;
} ddl__comm_end;

/* The actions that the machine requests from its environment. */
typedef struct ddl__member_ports {
    /* Send a message to a member, if there is a connection. The text of a DEAD message is NULL: the
     * implementation adds the reason why the comm is dead. */
    void (*send)(void *context, int to, const ddl__member_msg *message);
    /* Send a GONE message about these ranks to a member, or to all members that are alive (`to` is
     * -1). */
    void (*send_gone)(void *context, int to, const int32_t *ranks, int n);
    /* Handle a member's death. DDL__CAUSE_CONFIRMED: a dead member's process is known to have
     * ended.
     */
    void (*died)(void *context, int rank, const ddl__cause *cause);
    void (*left)(void *context, int rank);
    /* Watch the pending operations after a member's process has ended without LEAVE. The
     * implementation ends the comm when the operations complete or make no more progress. */
    void (*watch)(void *context, int rank);
    void (*end)(void *context, const ddl__comm_end *end);
    /* Report to the launcher that this rank may continue in the comm of this attempt. */
    void (*continues)(void *context, uint32_t attempt);
    /* Return true if some members have no connection to this member. */
    bool (*has_late_pairs)(void *context, int rank);
    uint64_t (*network)(void *context, int rank); /* the network of its host; 0: unknown */
} ddl__member_ports;

typedef struct ddl__peer {
    unsigned char state; /* ddl__member_state */
    unsigned char cause; /* ddl__cause_kind */
    bool connected;      /* a control connection is open */
    bool late;           /* it has a control connection only if an agreement needs one */
    bool is_new;         /* no message has arrived over its late connection so far */
    bool confirmed;      /* a witness has reported the end of its process */
    bool expelled; /* a program has expelled it; in this rank's own entry: has expelled this rank */
    bool may_continue;    /* it expelled this rank, or left after this rank declared it dead: it may
                             have continued with other ranks, which may still run after its end */
    bool resigned;        /* it led the agreement, was cut off, and never continues */
    bool by_report;       /* it was declared dead by the reports of other ranks */
    bool reported_silent; /* a reporter says that it was silent */
    unsigned char n_reporters;
    int reporters[2];           /* ranks that have declared it dead; see gossip.c */
    int64_t silent_ns;          /* time for which it has been silent */
    int64_t confirmed_at;       /* when the launcher confirmed the end of its process */
    uint32_t confirmed_attempt; /* according to a witness: the last attempt whose comm it had
                                 * created */

    /* From the member's messages in the agreement: the last attempt that it has joined, decided on,
     * created, and knows to be created by all; and the leader that it follows. */
    uint32_t joined, decided, done, committed;
    uint32_t vouched;    /* on a leader that has lost the member: the attempt in which followers
                            vouched for it */
    uint32_t vouched_at; /* on a follower: the attempt in which it has vouched for the member, and
                          * the leader that received the VOUCH */
    int vouched_to;
    int leader;
    int disputes; /* while a leader decides: the number of ranks that it accuses or that accuse it;
                     otherwise 0 */
} ddl__peer;

/* The phase of the survivors' agreement on this rank. */
typedef enum ddl__agreement_phase {
    DDL__AGREEMENT_IDLE,
    DDL__AGREEMENT_GATHERING, /* wait until the leader has decided */
    DDL__AGREEMENT_CREATING,  /* the caller creates the comm of the attempt */
    DDL__AGREEMENT_AWAITING   /* wait until all survivors have created the comm */
} ddl__agreement_phase;

typedef struct ddl__membership {
    const ddl__member_ports *ports;
    void *context; /* passed to the ports */
    int rank, size;
    int n_late;              /* number of late members */
    int far_beats;           /* intervals between heartbeats of far members (graph.h) */
    int64_t heartbeat, dead; /* intervals */
    int64_t position_limit;  /* age at which a reported position is outdated */
    bool announced;          /* DEAD was sent to the members */
    int64_t evidence_until;  /* until then, a witness may confirm the last death, or an expelled
                                member may turn out to have expelled this rank */
    bool left_out;           /* the survivors' verdict leaves out this rank */
    int n_gone;              /* number of ranks that have left, for the next heartbeats */

    unsigned char phase; /* ddl__agreement_phase */
    bool has_sent; /* JOIN of `gathering` was sent, with the accused ranks in this rank's entry */
    unsigned char why;        /* ddl__agreement_failure */
    int late_rank;            /* the rank that ddl__agreement_why returns */
    int64_t deadline;         /* the agreement's deadline */
    int64_t disputed_until;   /* until then, evidence may arrive; 0: nothing is disputed */
    uint32_t gathering;       /* the attempt that is being agreed on */
    uint32_t attempt;         /* the last attempt that was agreed on */
    uint32_t created_attempt; /* the attempt whose comm this rank has created; 0: none */

    uint64_t n_deaths;
    int64_t detection_ns; /* the longest silence before a death */

    size_t set_bytes;  /* size of one set of ranks */
    size_t sets_at;    /* offset of the sets from the start of this struct */
    size_t gone_at;    /* offset of the ranks for the next GONE */
    ddl__peer peers[]; /* the members by rank, followed by the sets and the ranks of GONE */
} ddl__membership;

/* ---- members.c ---- */

/* Return the size in bytes of the block for a comm of this size. The block must be zero at
 * first. */
size_t ddl__membership_bytes(int size);

/* Initialise a zeroed block. The caller sets the intervals, and which peers are late and
 * connected. */
void ddl__membership_init(ddl__membership *m, const ddl__member_ports *ports, void *context,
                          int rank, int size);

bool ddl__member_is_dead(const ddl__membership *m, int rank);

/* Return the lowest rank that is believed alive. */
int ddl__lowest_alive(const ddl__membership *m);

/* Handle a message of a member. The caller reads the operations in GONE and LEAVE. */
void ddl__member_receive(ddl__membership *m, int from, const ddl__member_msg *message, int64_t now);

/* Handle the end of a member's connection, or its failure with an error. The caller closes it.
 * `local` means a unix socket, whose end proves that the process has ended. */
void ddl__member_ended(ddl__membership *m, int rank, bool local, int error, int64_t now);
void ddl__member_unreachable(ddl__membership *m, int rank, int error, int64_t now);

/* Add `elapsed` to the silence of a connected member, measured while this rank was running. Its
 * next message may take `interval`. Returns true once the member is dead. */
bool ddl__member_check_silence(ddl__membership *m, int rank, int64_t elapsed, int64_t interval,
                               int64_t now);

/* While the comm is created: record that the member has left, or that its process or connection has
 * ended. ddl__member_start handles that once the comm is monitored. */
void ddl__member_left_early(ddl__membership *m, int rank);
void ddl__member_ended_early(ddl__membership *m, int rank, bool known, int64_t now);
void ddl__member_start(ddl__membership *m, int rank, int64_t now);

/* Handle the failure of a data link to a member without a control connection. `lost`: the link has
 * ended; else it cannot be opened. */
void ddl__member_link_failed(ddl__membership *m, int rank, bool lost, int64_t now);

/* Handle a survivor that answers at none of its addresses while the survivors create their comm. If
 * it is known to run, it and this rank cannot both be in the next list, so it is declared dead by
 * this rank's own evidence, even if it was declared dead by report before. It is known to run if
 * its heartbeats arrive, or if it is in the leader's list without a connection to this rank.
 * Otherwise, or if silence does not count as death, do nothing. `was_accepted`: its host has
 * accepted a connection, so without heartbeats the member may be stopped. */
void ddl__member_cannot_connect(ddl__membership *m, int rank, bool was_accepted, int64_t now);

/* Handle the launcher's report that the member's process has ended, after it had created the comm
 * of `attempt` (0: none). A leave message may still be on its way. */
void ddl__member_launcher_confirm(ddl__membership *m, int rank, uint32_t attempt, int64_t now);
void ddl__member_check_confirmed(ddl__membership *m, int rank, int64_t now);

/* Expel a member for this rank's program. Returns DDL_EMINORITY if this rank was expelled itself.
 */
ddl_status ddl__member_expel(ddl__membership *m, int rank, const char *reason, int64_t now);

/* Send DEAD to all members, once, when the comm is dead. A rank that has received DEAD (`was_told`)
 * sends it only to near members: its sender sends it to all members, and if the sender dies, all
 * members detect that. */
void ddl__membership_announce(ddl__membership *m, bool was_told);

/* Record a member's last message while this rank leaves. */
void ddl__member_note_last(ddl__membership *m, int rank, ddl__control_msg message);

/* Send a member that has connected late the messages that it has missed. */
void ddl__member_connected(ddl__membership *m, int rank);

/* ---- gossip.c: see the design notes there ---- */

/* Return true if this rank forwards messages to `rank`. */
bool ddl__gossip_reaches(const ddl__membership *m, int rank);

/* Return true if this rank and `rank` do not exchange heartbeats at every beat. */
bool ddl__member_is_far(const ddl__membership *m, int rank);

/* Send all members the list of ranks that have left since the last call. */
void ddl__gossip_send_gone(ddl__membership *m);

/* ---- leader.c: the leader of a sparse comm's agreement ---- */

/* The result of dialing the leader. */
typedef enum ddl__dialed {
    DDL__DIALED_LEFT,       /* it has left the comm */
    DDL__DIALED_LOST,       /* it has declared this rank dead */
    DDL__DIALED_LEFT_OUT,   /* the survivors have decided without this rank */
    DDL__DIALED_REFUSED,    /* its host refuses the connection */
    DDL__DIALED_SILENT,     /* nothing answers at its addresses */
    DDL__DIALED_UNANSWERED, /* it was reached, but has not answered */
    DDL__DIALED_FAILED      /* anything else */
} ddl__dialed;

/* Return how long to dial the leader, given the result of the last attempt. */
int64_t ddl__leader_limit(const ddl__membership *m, int leader, ddl__dialed result);

/* Handle the result of an attempt to dial the leader, which has been dialed for `elapsed`. `text`
 * is the reason of a failure. `answers(context, rank)` is true if that rank's host is known to
 * answer.
 */
void ddl__leader_dialed(ddl__membership *m, int leader, ddl__dialed result, int64_t elapsed,
                        const char *text, bool (*answers)(const void *context, int rank),
                        const void *context, int64_t now);

/* Handle the connection to the leader. If the leader was declared dead meanwhile, send EXPEL. */
void ddl__leader_connected(ddl__membership *m, int leader);

/* Declare dead a rank that would lead next and does not answer either. */
void ddl__leader_unreachable(ddl__membership *m, int rank, const char *text, int64_t now);

/* Return the answer to a late connection of rank `from`: DDL_OK; DDL_EPEER if it was declared dead;
 * DDL_EMINORITY if the survivors have decided without it; DDL_EREFUSED if it has a connection. */
ddl_status ddl__leader_answer(const ddl__membership *m, int from);

/* If this rank leads: add `elapsed` to the time for which a late member has not connected to it. */
void ddl__leader_check_silence(ddl__membership *m, int rank, int64_t elapsed, int64_t now);

/* Return true if this rank has the next comm, and no longer needs a leader. */
bool ddl__leader_is_unneeded(const ddl__membership *m);

/* ---- agreement.c ---- */

typedef enum ddl__agreement_step {
    DDL__STEP_WAIT,   /* wait until an event occurs, or for a short time */
    DDL__STEP_CREATE, /* create the comm of the attempt, after abandoning an earlier one */
    DDL__STEP_RETURN, /* return the created comm: it counts */
    DDL__STEP_FAIL    /* this rank cannot continue: see ddl__agreement_failure */
} ddl__agreement_step;

/* The reason why this rank cannot continue. */
typedef enum ddl__agreement_failure {
    DDL__FAILURE_NONE,
    DDL__FAILURE_EXPELLED,
    DDL__FAILURE_LEFT_OUT,
    DDL__FAILURE_NO_MAJORITY,
    DDL__FAILURE_CUT_OFF, /* it has lost ranks that others can reach, so they leave it out */
    DDL__FAILURE_LATE,    /* *rank has not shrunk the comm in time; -1: unknown */
    DDL__FAILURE_CREATION /* this rank could not create the comm */
} ddl__agreement_failure;

/* Record that the comm has failed, because a member is dead or shrinks the comm. `failed` is true
 * if the comm has failed already. Returns false if the comm is alive, and so may not be shrunk. */
bool ddl__agreement_may_begin(ddl__membership *m, bool failed);

void ddl__agreement_begin(ddl__membership *m, int64_t deadline);

/* Advance the agreement as far as possible now. After DDL__STEP_CREATE the caller calls
 * ddl__agreement_created. After DDL__STEP_RETURN and _FAIL the agreement has ended. */
ddl__agreement_step ddl__agreement_advance(ddl__membership *m, int64_t now);

/* Handle the end of the creation. `final` is true if it failed for a reason of this rank alone, or
 * too late. Returns DDL__STEP_WAIT or DDL__STEP_FAIL. */
ddl__agreement_step ddl__agreement_created(ddl__membership *m, bool created, bool final);

ddl__agreement_failure ddl__agreement_why(const ddl__membership *m, int *rank);

/* Return a member that makes the current creation impossible, or -1 if there is none. It is this
 * rank if this rank was expelled. */
int ddl__agreement_lost(const ddl__membership *m);

/* Return true if the rank is in the list of survivors of the current attempt. */
bool ddl__agreement_has(const ddl__membership *m, int rank);

#endif
