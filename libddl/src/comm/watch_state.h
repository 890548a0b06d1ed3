/* watch_state.h - the insides of a watch, for the files that make it up: control.c (opening and
 * closing), watch.c (the thread: heartbeats and words), peer_death.c (what shows that a member is
 * dead, and what follows), compare.c and waiting.c (operations that wait, by order and by name),
 * shrink.c (who goes on).
 *
 * Design notes.
 *
 * One thread for each endpoint, apart from the one that drives, since a step of a large operation
 * may take longer than a heartbeat. It wakes once in a heartbeat, sends one word to each member and
 * reads what has come; in between only the end of a connection wakes it. So a heartbeat wakes
 * nobody. When a comm is dead or is being shrunk, its words are read as they come.
 *
 * `lock` guards everything here. It may be held while an engine is asked or told something, whose
 * own locks come after it; the engine never calls up. It is left only by ddl__control_settle, which
 * ends a comm and so takes in what was sent before: for so long the control is `ending`, and is not
 * removed. ddl__control_end notes that a comm is to end, and may therefore be called in the middle
 * of anything, as while a wire is read; settling may not. Events carry serial numbers, not
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
#ifndef DDL_COMM_WATCH_STATE_H
#define DDL_COMM_WATCH_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "comm/control_conn.h"
#include "comm/watch.h"

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
    ddl__control_conn wire;
    ddl__fate fate;
    bool heard; /* something, since the last heartbeat */
    bool met;   /* something, ever: it watches us as well by now */
    bool suspect;
    bool confirmed; /* a witness has seen its process end */
    bool may_go_on; /* one of us gave up the other while it was there: it may have gone on, and
                       others with it, so its own end proves nothing */
    int64_t silent; /* for so many nanoseconds */
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

struct ddl__control {
    ddl__control *next;
    uint64_t serial;
    ddl__watch *watch;
    ddl__control_config config;
    char *trace_dir; /* or NULL */
    ddl__engine *engine;
    int rank, size;
    char *const *names;
    ddl__limits limits;
    ddl__member *members;       /* by rank; our own has no wire */
    struct ddl__calling *calls; /* to lower ranks, while it is opened: see control.c */
    bool watched;               /* it has been opened */

    int64_t last_beat, next_beat;
    bool urgent;     /* words are read as they come */
    bool announced;  /* the comm's death, to the members */
    ddl__end end;    /* noted, to be settled */
    unsigned ending; /* threads that end the comm, without the lock */
    bool abandoned;  /* see ddl__control_abandon */
    bool shrinking;
    uint32_t attempt; /* the last one of shrinking, */
    uint32_t held;    /* and the one whose comm this rank has; 0: none */

    /* The first process that ended without a goodbye. */
    int mourned; /* rank, or -1 */
    int64_t died_at, moved_at, look_at;
    uint64_t begun_then, finished_last, moves_last; /* when it ended; at the last look */
    int64_t evidence_until; /* until then a witness may speak of a connection that has ended */

    ddl__stall stall;
    int64_t warned_of; /* when the last operation by name was submitted that was warned of */

    pthread_t writer; /* of the trace */
    bool writing;

    uint64_t detected;    /* deaths */
    int64_t detection_ns; /* the longest silence before one */
};

struct ddl__watch {
    pthread_t thread;
    bool started, stop;
    int epoll, wake;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something was heard that a shrinking thread waits for */
    uint64_t serial;
    ddl__control *controls;
    struct ddl__witness *witness; /* or NULL */
};

/* ---- watch.c ---- */

/* From now on it is watched. False: the system refuses. */
bool ddl__watch_add(ddl__watch *watch, ddl__control *control);
void ddl__watch_remove(ddl__control *control);

/* Under the lock: words are read as they come, from now on. */
void ddl__watch_hurry(ddl__control *control);

/* Under the lock: send it to all that can hear. */
void ddl__control_tell(ddl__control *control, ddl__control_msg word, const void *content,
                       size_t bytes);

/* Under the lock: what this rank does. */
ddl__position ddl__own_position(const ddl__control *control, int64_t now);

/* ---- peer_death.c; all under the lock ---- */

/* The comm is to end; the first reason counts. */
void ddl__control_end(ddl__control *control, ddl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* End it, if that was noted. The lock is left meanwhile. */
void ddl__control_settle(ddl__control *control);

bool ddl__is_dead(const ddl__control *control, int rank);

/* From now on the member counts as dead. */
void ddl__member_dead(ddl__control *control, int rank, ddl__fate fate, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* It is dead, but may be there: tell it that nobody counts on it, and end the comm. */
void ddl__member_expel(ddl__control *control, int rank);

/* Its connection has ended, or nothing can be read from it any more. The caller closes it. */
void ddl__member_ended(ddl__control *control, int rank, int error);
void ddl__member_unreachable(ddl__control *control, int rank, int error);

/* A witness has seen its process end; or this rank has, and tells all others. */
void ddl__member_confirm(ddl__control *control, int rank);
void ddl__member_testify(ddl__control *control, int rank);

/* It ended without a goodbye: look after what is under way. */
void ddl__member_mourn(ddl__control *control, int rank);
void ddl__control_look_after_death(ddl__control *control, int64_t now);

/* ---- compare.c; all under the lock ---- */

/* With every heartbeat: look after an operation that waits. */
void ddl__compare(ddl__control *control, int64_t now);

/* Compare the members' last operations, as far as they have told them, with our own of equal
 * sequence. True when one differs, and the comm is not dead already: `text` says who called what.
 */
bool ddl__compare_last(ddl__control *control, char text[DDL__MESSAGE_MAX]);

/* A member asks, or answers. */
void ddl__compare_asked(ddl__control *control, int from, const unsigned char *content,
                        size_t bytes);
void ddl__compare_answered(ddl__control *control, int from, const unsigned char *content,
                           size_t bytes);

/* Whether a member that is alive has not come to our operation. */
bool ddl__is_late(const ddl__control *control, int rank, const ddl__signature *own);

/* "rank 2", "ranks 0-2, 5": the ranks for which `is` holds. Returns their number. */
int ddl__list_ranks(char *text, size_t size, int n, bool (*is)(const void *context, int rank),
                    const void *context);

/* ---- waiting.c; all under the lock ---- */

/* With every heartbeat: look after operations by name that wait for their turn. Warns once for each
 * of the oldest; those behind it mostly wait for the same. */
void ddl__names_watch(ddl__control *control, int64_t now);

/* A member asks rank 0, or rank 0 answers. */
void ddl__names_asked(ddl__control *control, int from, const unsigned char *content, size_t bytes);
void ddl__names_answered(const ddl__control *control, const unsigned char *content, size_t bytes);

/* ---- shrink.c ---- */

/* Under the lock: a member has said JOIN, VERDICT or DONE. */
void ddl__shrink_heard(ddl__control *control, int from, ddl__control_msg word,
                       const unsigned char *content, size_t bytes);

/* ---- flight_recorder.c ---- */

/* Under the lock, once: begin to leave the flight record in the folder for it, if there is one. */
void ddl__trace_leave(ddl__control *control);

/* When nobody else knows the control any more: until that is done. */
void ddl__trace_await(ddl__control *control);

/* ---- watch.c ---- */

/* Under the lock: when the comm is dead, tell the members, once; also those who do not wait for
 * anything. */
void ddl__control_announce(ddl__control *control);

#endif
