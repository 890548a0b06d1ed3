/* SPDX-License-Identifier: Apache-2.0 */
/* health_state.h - the internals of the failure detector, shared by its files: health.c (opening
 * and closing), detector.c (the thread, and messages), heartbeats.c (heartbeats and silence),
 * ports.c (connects the state machine of membership/), comm_end.c (the end of the comm),
 * positions.c, last_operations.c and named_waits.c (waiting operations, by order and by name),
 * agreement.c (runs the survivors' agreement), late_control.c (connections to the leader of an
 * agreement in a sparse comm), health_report.c, flight_recorder.c, timeline.c. membership/ decides
 * who is dead and which ranks continue.
 *
 * Design notes.
 *
 * The detector has one thread for each endpoint. It is not the thread that drives operations,
 * because a step of a large operation may take longer than a heartbeat. Once per heartbeat it
 * wakes, sends a message to each member (in a large comm to some) and reads the messages that have
 * arrived. Between heartbeats, only the end of a connection wakes it, so the arrival of a heartbeat
 * wakes no thread. When a comm is dead or is being shrunk, its messages are read as they arrive.
 *
 * `lock` guards everything here. The engine's functions may be called while it is held: the
 * engine's locks are taken after it, and the engine never calls the detector. ddl__health_end only
 * records that a comm must end, so it may be called anywhere, for example while a connection is
 * read. ddl__health_settle then ends the comm. It releases the lock meanwhile, because ending a
 * comm first handles the data that peers have sent. `n_ending` keeps the health from being removed
 * in that time. Epoll events carry serial numbers, not pointers.
 *
 * Silence counts only while this thread runs: a process that was stopped for a minute does not
 * treat that time as the silence of the other members.
 *
 * A process that ends without a leave message may have completed its part, and data that it sent
 * still arrives. So its end fails the comm at once only if an operation waits for data of the ended
 * process; the engine detects that. Otherwise pending operations continue until they make no
 * progress for DDL__GRACE. If they complete, or if none was pending, the comm ends DDL__GRACE after
 * the process has ended. */
#ifndef DDL_HEALTH_HEALTH_STATE_H
#define DDL_HEALTH_HEALTH_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "health/control_conn.h"
#include "health/health.h"

/* The way in which an operation has ended; 0: it has not ended. */
enum { DDL__ENDED_OK = 1, DDL__ENDED_FAILED };

/* A rank's last operation, which every heartbeat carries. */
typedef struct ddl__position {
    ddl__signature last; /* the last operation by order that it has started; zero: none */
    uint32_t ended;      /* DDL__ENDED_...; 0: that operation has not ended */
    uint32_t waiting_ms; /* time that the operation has waited, if it has not ended */
} ddl__position;

/* The state of one of a rank's operations by order. */
typedef enum ddl__stage {
    DDL__NOT_YET = 1, /* not started */
    DDL__PENDING,
    DDL__ENDED,
    DDL__FORGOTTEN /* no longer in the rank's records */
} ddl__stage;

typedef struct ddl__answer {
    uint32_t sequence, stage; /* ddl__stage; 0: no answer yet */
    ddl__signature signature; /* valid if the stage is PENDING or ENDED */
} ddl__answer;

/* This rank's waiting operation, and what is known about it from asking the members. */
typedef struct ddl__stall {
    uint64_t number;  /* the number of its record + 1; 0: none */
    int64_t asked_at; /* time when the members were queried; 0 if they were not */
    unsigned idle;    /* rounds without progress after all other ranks had ended the operation */
    uint64_t moves;
    bool warned;
} ddl__stall;

enum { DDL__CAUSE = 288, DDL__NAME_STATE = 1000 };

typedef struct ddl__member {
    ddl__peer *peer; /* the member's state in the state machine */
    ddl__control_conn conn;
    bool heard_since_beat; /* a message has arrived since this rank's last beat */
    bool ever_heard;       /* a message has ever arrived, so the member monitors this rank by now */
    bool suspect;
    char *cause; /* DDL__CAUSE bytes: the reason why it is not alive; set when it dies */
    ddl__position position;
    int64_t position_at; /* time when that position was received */
    ddl__answer answer;
} ddl__member;

/* The content of DDL__DEAD: a status and its reason. The text is sent without its NUL. */
typedef struct ddl__notice {
    int32_t status;
    char text[DDL__MESSAGE_MAX];
} ddl__notice;

static inline size_t ddl__notice_bytes(const ddl__notice *notice)
{
    return offsetof(ddl__notice, text) + strlen(notice->text);
}

/* The reason why a comm must end; status DDL_OK: it continues. */
typedef struct ddl__end {
    ddl_status status;
    char text[DDL__MESSAGE_MAX];
} ddl__end;

struct ddl__health {
    ddl__health *next;
    uint64_t serial;
    struct ddl__detector *detector;
    ddl__health_config config;
    char *trace_dir; /* or NULL */
    ddl__engine *engine;
    int rank, size;
    char *const *names;
    ddl__limits limits;
    ddl__member *members; /* by rank; this rank's entry has no connection */
    char *causes;         /* the memory for the members' causes */
    ddl__membership *membership;
    int *survivors;           /* room for the ranks of a verdict */
    ddl__control_dial *dials; /* by rank, while the comm is created */
    bool monitored;           /* the detector's thread monitors the comm */

    int64_t last_beat, next_beat;
    unsigned beats;         /* number of beats so far */
    int neighbour_beats;    /* beats between two heartbeats to a neighbour in a sparse comm */
    int64_t position_limit; /* time for which a position reported by another member is valid */
    int arrivals;           /* in a large comm: an epoll set of all connections; else -1 */
    bool eager;             /* messages are read as they arrive */
    ddl__end end;           /* recorded by ddl__health_end, for ddl__health_settle */
    unsigned n_ending;      /* threads that are ending the comm, without the lock */
    bool abandoned;         /* the comm is closed because its members continue in another one
                               (ddl__health_abandon) */
    bool shrinking;

    /* The first member whose process ended without a leave message. */
    int grace_rank; /* -1: none */
    int64_t died_at, moved_at, grace_poll_at;
    /* The number of operations started before that process ended; values at the last check. */
    uint64_t grace_begun, grace_finished, grace_moves;

    ddl__stall stall;
    int64_t warned_of; /* submission time of the named operation about which the last warning was
                          logged */
    int64_t asked_of; /* submission time of the named operation about which rank 0 was last asked */
    char name_state[DDL__NAME_STATE]; /* the answer of rank 0, or "" if there is none yet */

    pthread_t writer; /* writes the flight record */
    bool writing;
    struct ddl__timeline *timeline; /* or NULL */

    struct ddl__late *late; /* the late connections (late_control.c), or NULL */
};

typedef struct ddl__detector {
    pthread_t thread;
    bool started, stop;
    int epoll, wake;
    int64_t wakes_at; /* the time when the thread wakes without an event */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signals a message or a death to shrinking threads */
    pthread_cond_t died;    /* signals a death or a comm's end to the threads of late_control.c */
    uint64_t serial;
    ddl__health *comms;
    struct ddl__witness *witness; /* or NULL */
} ddl__detector;

/* Under the lock: send a message to all members that are alive. */
static inline void ddl__health_broadcast(ddl__health *health, ddl__control_msg message,
                                         const void *content, size_t bytes)
{
    for (int i = 0; i < health->size; i++)
        if (i != health->rank && health->members[i].peer->state == DDL__ALIVE)
            ddl__control_conn_send(&health->members[i].conn, message, content, bytes);
}

/* ---- detector.c ---- */

/* Wake the thread. */
void ddl__detector_wake(ddl__detector *detector);

/* An event's number is the comm's serial, with the rank in this many lowest bits. */
enum { DDL__RANK_BITS = 16 };

/* Create the detector of the endpoint with this id, for the endpoint's first comm. `witness` is the
 * name of the launcher's socket, or NULL. For ddl__endpoint_attach. */
void *ddl__detector_create(const ddl__digest *endpoint, const void *witness);
void ddl__detector_destroy(void *detector);

/* Start or stop monitoring the comm. */
void ddl__detector_add(ddl__detector *detector, ddl__health *health);
void ddl__detector_remove(ddl__health *health);

/* Under the lock: if the comm is dead, send DEAD to all members, once. A rank that has received
 * DEAD sends it only to near members: its sender sends it to all members, and if the sender dies,
 * all members detect that. */
void ddl__health_announce(ddl__health *health);

/* Under the lock: receive a member's messages, and handle the end of its connection. */
void ddl__member_poll(ddl__health *health, int rank);

/* Under the lock: change how the thread waits for this member, by an operation of epoll_ctl. */
void ddl__member_register(ddl__health *health, int rank, int operation);

/* ---- heartbeats.c; all under the lock ---- */

/* Send the first heartbeats, before the program continues: members monitor a rank from its first
 * message on. */
void ddl__heartbeats_start(ddl__health *health, int64_t now);

/* Read the messages that have arrived, check for silent members, and send the heartbeats due. */
void ddl__heartbeats_send(ddl__health *health, int64_t now);

/* From now on, read this late control connection along with the others. */
void ddl__heartbeats_add(ddl__health *health, int rank);

/* Read messages as they arrive, from now on. */
void ddl__health_poll_eagerly(ddl__health *health);

/* Return this rank's last operation. */
ddl__position ddl__health_position(const ddl__health *health, int64_t now);

/* ---- comm_end.c; all under the lock ---- */

/* Record that the comm must end; the first reason counts. */
void ddl__health_end(ddl__health *health, ddl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* End the comm if ddl__health_end was called. Releases the lock meanwhile. */
void ddl__health_settle(ddl__health *health);

/* Watch the pending operations after a member's process ended without a leave message. */
void ddl__grace_start(ddl__health *health, int rank);
void ddl__grace_check(ddl__health *health, int64_t now);

/* ---- ports.c; all under the lock ---- */

extern const ddl__member_ports ddl__health_ports;

/* Pass a message to the state machine. */
void ddl__ports_receive(ddl__health *health, int from, ddl__control_msg kind,
                        const unsigned char *content, size_t bytes);

/* Return the reason why the comm is dead. */
ddl__notice ddl__health_notice(const ddl__health *health);

/* ---- last_operations.c; all under the lock ---- */

/* Check an operation that waits. Called with every heartbeat. */
void ddl__operations_check(ddl__health *health, int64_t now);

/* Compare the last operation that each member has reported with this rank's operation of the same
 * sequence. Returns true if one differs and the comm is not dead; `text` then describes both
 * calls. */
bool ddl__operations_compare_last(ddl__health *health, char text[DDL__MESSAGE_MAX]);

/* Explain an operation that has exceeded its limit: a ddl__explain_fn, not under the lock. */
void ddl__operations_explain(void *health, const ddl__signature *operation, const char *name,
                             char *text, size_t size);

/* When this rank leaves: compare the number of its operations with the numbers of members that have
 * left or have completed more. Return true if a number differs; `text` then describes the first
 * extra operation. */
bool ddl__operations_compare_numbers(ddl__health *health, char text[DDL__MESSAGE_MAX]);

/* Handle a member's ASK or ANSWER message. */
void ddl__operations_receive_ask(ddl__health *health, int from, const unsigned char *content,
                                 size_t bytes);
void ddl__operations_receive_answer(ddl__health *health, int from, const unsigned char *content,
                                    size_t bytes);

/* Return true if the member is alive and has not started the operation `own` of this rank. */
bool ddl__member_is_late(const ddl__health *health, int rank, const ddl__signature *own);

/* List the ranks for which `is` returns true: "rank 2", "ranks 0-2, 5". Returns their number. */
int ddl__list_ranks(char *text, size_t size, int n, bool (*is)(const void *context, int rank),
                    const void *context);

/* ---- named_waits.c; all under the lock ---- */

/* Check the named operations that wait. Called with every heartbeat. Warns once about the oldest
 * operation; the others usually wait for the same ranks. */
void ddl__names_check(ddl__health *health, int64_t now);

/* Describe the ranks that have not called the oldest waiting operation with a name, like
 * ": not called by rank 1; ...". Leaves `text` unchanged if rank 0 has not answered yet. */
void ddl__names_explain(const ddl__health *health, const char *name, char *text, size_t size);

/* Handle a member's ASK_NAME message to rank 0, or rank 0's ANSWER_NAME. */
void ddl__names_receive_ask(ddl__health *health, int from, const unsigned char *content,
                            size_t bytes);
void ddl__names_receive_answer(ddl__health *health, int from, const unsigned char *content,
                               size_t bytes);

/* ---- positions.c; all under the lock ---- */

/* The content of a heartbeat: the sender's position, and in a sparse comm the positions of the
 * members that are furthest behind. */
enum { DDL__BEHIND_MAX = 2 };
typedef struct ddl__beat {
    ddl__position position;
    struct ddl__behind {
        int32_t rank;
        uint32_t age_ms; /* the position's age */
        ddl__position position;
    } behind[DDL__BEHIND_MAX];
} ddl__beat;
size_t ddl__beat_make(const ddl__health *health, int64_t now, ddl__beat *beat);
void ddl__beat_receive(ddl__health *health, int from, const unsigned char *content, size_t bytes);

/* Return true if the member's position is known, and at most a few seconds old. */
bool ddl__position_is_known(const ddl__health *health, int rank);

/* ---- late_control.c ---- */

/* Prepare for late control connections, before the comm is monitored. */
ddl_status ddl__late_create(ddl__health *health);

/* Accept late control connections from now on, because all members have created the comm. Earlier
 * connections might belong to an earlier comm with this id. */
void ddl__late_accept(ddl__health *health);

/* Under the lock, when the comm is dead: start to keep a connection to the lowest rank that is
 * alive, which leads the agreement. */
void ddl__late_start(ddl__health *health);

/* Under the lock: take over the connections that were accepted. */
void ddl__late_adopt(ddl__health *health);

/* Stop dialing and accepting. Called without the lock. */
void ddl__late_destroy(ddl__health *health);

/* ---- flight_recorder.c ---- */

/* Under the lock, once: start to write the flight record, if there is a folder for it. */
void ddl__flight_record_start(ddl__health *health);

/* Wait until the record is written, before the health is freed. */
void ddl__flight_record_join(ddl__health *health);

/* ---- timeline.c ---- */

typedef struct ddl__timeline ddl__timeline;

/* Start to write all operations of the comm to this folder, unless it is NULL. */
void ddl__timeline_start(ddl__health *health, const char *folder);

/* Write the last operations, before the health is freed. */
void ddl__timeline_end(ddl__health *health);

#endif
