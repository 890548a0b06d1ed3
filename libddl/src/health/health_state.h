/* health_state.h - the insides of the failure detector, for the files that make it up: health.c
 * (opening and closing), detector.c (the thread: heartbeats and messages), peer_death.c (what shows
 * that a member is dead, and what follows), compare.c and waiting.c (operations that wait, by order
 * and by name), shrink.c (who goes on).
 *
 * Design notes.
 *
 * One thread for each endpoint, apart from the one that drives, since a step of a large operation
 * may take longer than a heartbeat. It wakes once in a heartbeat, sends one message to each member
 * and reads what has come; in between only the end of a connection wakes it. So a heartbeat wakes
 * nobody. When a comm is dead or is being shrunk, its messages are read as they come.
 *
 * `lock` guards everything here. It may be held while an engine is asked or told something, whose
 * own locks come after it; the engine never calls up. It is left only by ddl__health_settle, which
 * ends a comm and so takes in what was sent before: for so long the health is `ending`, and is not
 * removed. ddl__health_end notes that a comm is to end, and may therefore be called in the middle
 * of anything, as while a conn is read; settling may not. Events carry serial numbers, not
 * pointers.
 *
 * Silence is counted in time during which this thread ran itself: who was stopped for a minute does
 * not take that for the silence of the others.
 *
 * A process that ends without a goodbye may have done its part: what it sent still arrives. So its
 * end fails the comm at once only where the data path waits for it (the engine sees to that).
 * Elsewhere what is under way goes on until it stands still for GRACE; when it is over, or when
 * nothing was under way, the comm ends GRACE after the process.
 */
#ifndef DDL_HEALTH_HEALTH_STATE_H
#define DDL_HEALTH_HEALTH_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "health/control_conn.h"
#include "health/health.h"

typedef enum ddl__fate {
    DDL__ALIVE,
    DDL__LEFT,         /* it has destroyed the comm */
    DDL__KILLED,       /* its process has ended: the kernel that ran it says so */
    DDL__DISCONNECTED, /* its connection has ended: so has its process, or a network has cut it off
                        */
    DDL__SILENT        /* not heard of for too long, or unreachable; it may still be there */
} ddl__fate;

/* What a rank does, as it tells in every heartbeat. */
typedef struct ddl__position {
    ddl__signature last; /* the last operation by order that it began; zero: none */
    uint32_t ended;      /* that one has */
    uint32_t waiting_ms; /* else: for so long */
} ddl__position;

/* What a rank says of one of its operations by order. */
typedef enum ddl__stage {
    DDL__NOT_YET = 1, /* it has not begun one of this sequence */
    DDL__PENDING,
    DDL__ENDED,
    DDL__FORGOTTEN /* too long ago */
} ddl__stage;

typedef struct ddl__answer {
    uint32_t sequence, stage; /* ddl__stage; 0: has not answered */
    ddl__signature signature; /* PENDING, ENDED */
} ddl__answer;

/* Our operation that waits, and what was done about it. */
typedef struct ddl__stall {
    uint64_t number;  /* its record's + 1; 0: none */
    int64_t asked_at; /* 0: not yet */
    unsigned idle;    /* rounds in which all others had ended and nothing moved */
    uint64_t moves;
    bool warned;
} ddl__stall;

typedef struct ddl__member {
    ddl__control_conn conn;
    ddl__fate fate;
    bool heard_since_beat; /* something, since the last heartbeat */
    bool ever_heard;       /* something, ever: it watches us as well by now */
    bool suspect;
    bool confirmed;    /* a witness has seen its process end */
    bool may_go_on;    /* one of us gave up the other while it was there: it may have gone on, and
                          others with it, so its own end proves nothing */
    int64_t silent_ns; /* for so many nanoseconds */
    int64_t disconnected_at;
    char cause[96]; /* of a fate other than alive */
    ddl__position position;
    ddl__answer answer;

    /* What it has said while the comm was shrunk: the last attempts that it joined, decided, has
     * created and has seen created by all; whom it follows and accuses, and who goes on. */
    uint32_t joined, decided, done, committed;
    int leader;
    unsigned char *accused, *verdict; /* sets of ranks */
} ddl__member;

/* What DDL__DEAD says: a status and why; the text travels without its end. */
typedef struct ddl__notice {
    int32_t status;
    char text[DDL__MESSAGE_MAX];
} ddl__notice;

static inline size_t ddl__notice_bytes(const ddl__notice *notice)
{
    return offsetof(ddl__notice, text) + strlen(notice->text);
}

/* Why a comm is to end; status DDL_OK: it is not. */
typedef struct ddl__end {
    ddl_status status;
    char text[DDL__MESSAGE_MAX];
} ddl__end;

struct ddl__health {
    ddl__health *next;
    uint64_t serial;
    ddl__detector *detector;
    ddl__health_config config;
    char *trace_dir; /* or NULL */
    ddl__engine *engine;
    int rank, size;
    char *const *names;
    ddl__limits limits;
    ddl__member *members;            /* by rank; our own has no connection */
    struct ddl__control_dial *dials; /* to lower ranks, while it is opened: see health.c */
    bool monitored;                  /* it was opened */

    int64_t last_beat, next_beat;
    bool eager;        /* messages are read as they come */
    bool announced;    /* the comm's death, to the members */
    ddl__end end;      /* noted, to be settled */
    unsigned n_ending; /* threads that end the comm, without the lock */
    bool abandoned;    /* see ddl__health_abandon */
    bool shrinking;
    uint32_t attempt;         /* the last one of shrinking, */
    uint32_t created_attempt; /* and the one whose comm this rank has; 0: none */

    /* The first process that ended without a goodbye. */
    int grace_rank; /* rank, or -1 */
    int64_t died_at, moved_at, grace_poll_at;
    uint64_t grace_begun, grace_finished, grace_moves; /* when it ended; at the last look */
    int64_t evidence_until; /* until then a witness may speak of a connection that has ended */

    ddl__stall stall;
    int64_t warned_of; /* when the last operation by name was submitted that was warned of */

    pthread_t writer; /* of the trace */
    bool writing;

    uint64_t n_deaths;    /* deaths */
    int64_t detection_ns; /* the longest silence before one */
};

struct ddl__detector {
    pthread_t thread;
    bool started, stop;
    int epoll, wake;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something was heard that a shrinking thread waits for */
    uint64_t serial;
    ddl__health *comms;
    struct ddl__witness *witness; /* or NULL */
};

/* ---- detector.c ---- */

/* From now on it is watched. False: the system refuses. */
bool ddl__detector_add(ddl__detector *detector, ddl__health *health);
void ddl__detector_remove(ddl__health *health);

/* Under the lock: messages are read as they come, from now on. */
void ddl__health_poll_eagerly(ddl__health *health);

/* Under the lock: send it to all that can hear. */
void ddl__health_broadcast(ddl__health *health, ddl__control_msg message, const void *content,
                           size_t bytes);

/* Under the lock: what this rank does. */
ddl__position ddl__health_position(const ddl__health *health, int64_t now);

/* ---- peer_death.c; all under the lock ---- */

/* The comm is to end; the first reason counts. */
void ddl__health_end(ddl__health *health, ddl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* End it, if that was noted. The lock is left meanwhile. */
void ddl__health_settle(ddl__health *health);

bool ddl__member_is_dead(const ddl__health *health, int rank);

/* From now on the member counts as dead. */
void ddl__member_mark_dead(ddl__health *health, int rank, ddl__fate fate, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* It is dead, but may be there: tell it that nobody counts on it, and end the comm. */
void ddl__member_expel(ddl__health *health, int rank);

/* Its connection has ended, or nothing can be read from it any more. The caller closes it. */
void ddl__member_ended(ddl__health *health, int rank, int error);
void ddl__member_unreachable(ddl__health *health, int rank, int error);

/* A witness has seen its process end; or this rank has, and tells all others. */
void ddl__member_confirm(ddl__health *health, int rank);
void ddl__member_announce_end(ddl__health *health, int rank);

/* It ended without a goodbye: look after what is under way. */
void ddl__member_start_grace(ddl__health *health, int rank);
void ddl__health_check_grace(ddl__health *health, int64_t now);

/* ---- compare.c; all under the lock ---- */

/* With every heartbeat: look after an operation that waits. */
void ddl__operations_check(ddl__health *health, int64_t now);

/* Compare the members' last operations, as far as they have told them, with our own of equal
 * sequence. True when one differs, and the comm is not dead already: `text` says who called what.
 */
bool ddl__operations_compare_last(ddl__health *health, char text[DDL__MESSAGE_MAX]);

/* A member asks, or answers. */
void ddl__operations_receive_ask(ddl__health *health, int from, const unsigned char *content,
                                 size_t bytes);
void ddl__operations_receive_answer(ddl__health *health, int from, const unsigned char *content,
                                    size_t bytes);

/* Whether a member that is alive has not come to our operation. */
bool ddl__member_is_late(const ddl__health *health, int rank, const ddl__signature *own);

/* "rank 2", "ranks 0-2, 5": the ranks for which `is` holds. Returns their number. */
int ddl__list_ranks(char *text, size_t size, int n, bool (*is)(const void *context, int rank),
                    const void *context);

/* ---- waiting.c; all under the lock ---- */

/* With every heartbeat: look after operations by name that wait for their turn. Warns once for each
 * of the oldest; those behind it mostly wait for the same. */
void ddl__names_check(ddl__health *health, int64_t now);

/* A member asks rank 0, or rank 0 answers. */
void ddl__names_receive_ask(ddl__health *health, int from, const unsigned char *content,
                            size_t bytes);
void ddl__names_receive_answer(const ddl__health *health, const unsigned char *content,
                               size_t bytes);

/* ---- shrink.c ---- */

/* Under the lock: a member has said JOIN, VERDICT or DONE. */
void ddl__agreement_receive(ddl__health *health, int from, ddl__control_msg message,
                            const unsigned char *content, size_t bytes);

/* ---- flight_recorder.c ---- */

/* Under the lock, once: begin to leave the flight record in the folder for it, if there is one. */
void ddl__flight_record_start(ddl__health *health);

/* When nobody else knows it any more: until that is done. */
void ddl__flight_record_join(ddl__health *health);

/* ---- detector.c ---- */

/* Under the lock: when the comm is dead, tell the members, once; also those who do not wait for
 * anything. */
void ddl__health_announce(ddl__health *health);

#endif
