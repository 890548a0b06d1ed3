/* endpoint_state.h - the insides of an endpoint, for the files that make it up: endpoint.c (its
 * thread, its slots, opening and closing), pending.c (listeners, and connections that no comm has
 * yet).
 *
 * Design notes.
 *
 * One thread per endpoint. It accepts connections, has their handshakes without blocking, refuses
 * at once who is wrong here (another endpoint, job or version), and keeps the others until the comm
 * they want takes its slot. It also runs the tasks of comms for which nobody waits.
 *
 * `lock` guards everything here. The thread lets go of it while a task runs (`busy`), so that
 * accepting and creating go on; ddl__endpoint_close_slot waits for that. Epoll events carry serial
 * numbers, never pointers, since a slot may be gone when its event is looked at.
 *
 * Listeners and who has come by them are in an epoll descriptor of their own, `listeners`. When
 * strangers come in numbers it is looked at only once in DDL__OVERLOAD_POLL, and at some of them:
 * each time that the thread wakes, it takes a core from a rank. While somebody waits for an
 * accepted connection it is always open, so members that meet are not kept waiting; nobody is
 * banned, for a host that has a stranger may have members as well.
 *
 * A task's descriptor is watched one-shot, and only while the task waits for it: otherwise the
 * thread would turn for data that a waiting caller is about to take.
 */
#ifndef DDL_CONNECT_ENDPOINT_STATE_H
#define DDL_CONNECT_ENDPOINT_STATE_H

#include <pthread.h>

#include "connect/closer.h"
#include "connect/counters.h"
#include "connect/endpoint.h"
#include "connect/rate_limit.h"

/* Events' ids. */
enum {
    DDL__WAKE,
    DDL__TIMER,
    DDL__LISTEN_EVENT,
    DDL__UNIX_LISTENER,
    DDL__TCP_LISTENER,
    DDL__FIRST_SERIAL = DDL__TCP_LISTENER + DDL__INTERFACES_MAX /* pending connections, slots */
};

/* A connection whose handshake is not complete yet, or that waits for its comm. */
typedef struct ddl__pending_conn {
    struct ddl__pending_conn *next;
    uint64_t serial;
    ddl__inbound inbound;
    bool challenged; /* its hello fits */
    bool proven;     /* it waits for its comm */
    bool peer_left;  /* or has left, and only its last message waits */
    int64_t deadline;
} ddl__pending_conn;

struct ddl__comm_slot {
    ddl__comm_slot *next;
    uint64_t serial;
    ddl__digest comm;
    ddl__background_task task; /* run is NULL while the comm is being created */
    uint64_t failed_serial;    /* the serial at which that had failed, or 0 */
    bool ready;                /* to be driven */
    bool ready_on_timer;       /* to be driven when the timer has run out */
    bool asleep;               /* driven, nothing to do until its fd says so */
    bool busy;                 /* the thread is in it */
};

struct ddl_endpoint {
    unsigned generation; /* of the process that made it */
    ddl__address address;
    ddl__job job;
    unsigned sockets;
    int epoll, wake, timer, listeners, local;
    int tcp[DDL__INTERFACES_MAX]; /* one for each of the address's IPs */
    bool timer_armed;             /* the timer runs */
    int timer_runs;               /* how often it still is to, if nobody needs it again */
    pthread_t thread;
    bool started;
    ddl__fences fences; /* for memory that is shared with members of this host */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a connection was accepted, or a slot is not busy any more */
    bool stop;
    uint64_t serial;
    ddl__pending_conn *pending;
    unsigned n_pending;
    ddl__rate_limit rate_limit;
    ddl__closer *closer;
    int64_t accept_retry_at;  /* the listeners are not looked at before; 0: they are */
    int64_t accept_failed_at; /* when one could not accept last, or 0 */
    unsigned n_accepting;     /* threads that wait for an accepted connection */
    bool overloaded;          /* the listeners are not polled, but for a look at */
    int64_t poll_at;          /* this time */
    ddl__comm_slot *slots;
    ddl__counters counters;
    char refusal[160];              /* the last one */
    ddl__replay_guard replay_guard; /* hellos of others that needed no challenge, */
    uint64_t n_hellos;              /* and how many this endpoint has said */
    ddl__create_failures failures;
    void *attached; /* or NULL */
    void (*destroy_attached)(void *object);
};

/* ---- pending.c; the caller has the lock ---- */

/* Accept some of those who have come, and hear some of what they have said. */
void ddl__pending_poll(ddl_endpoint *endpoint);

/* Do what time has come for: rest, poll the listeners or stop, drop whose time is up. */
void ddl__pending_maintain(ddl_endpoint *endpoint);

/* The next accepted connection of the comm that has this slot, if one is there. Control
 * connections may come early, and wait until `control`. */
bool ddl__pending_take(ddl_endpoint *endpoint, const ddl__comm_slot *slot, bool control,
                       ddl__accepted *accepted);

/* The slot is given up: drop who came for it. */
void ddl__pending_drop_slot(ddl_endpoint *endpoint, const ddl__comm_slot *slot);

/* The endpoint ends: drop all. */
void ddl__pending_drop_all(ddl_endpoint *endpoint);

#endif
