/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_state.h - the internals of an endpoint, shared by its files: endpoint.c (creation and
 * destruction), endpoint_slots.c (the slots of comms), endpoint_thread.c (the thread: tasks and
 * events), pending.c (listeners, and connections that no comm has taken yet).
 *
 * An endpoint's thread accepts connections and runs their handshakes without blocking. It refuses
 * invalid clients at once, and parks the others until their comm opens its slot. It also runs the
 * background tasks of comms that no caller drives.
 *
 * `lock` guards everything here. The thread releases it while a task runs (`busy`), so that
 * accepting and creating continue. Epoll events carry serial numbers, never pointers, because a
 * slot may have been closed when its event is handled.
 *
 * The listeners and the pending connections have a separate epoll descriptor, `listeners`. A caller
 * that waits for an accepted connection polls this descriptor itself, because a wake-up by the
 * thread would double the time. Meanwhile the thread does not watch the descriptor. While
 * unauthenticated clients exceed the rate limit (docs/security.md) and no caller waits, it is only
 * polled from time to time. A task's descriptor is watched one-shot, and only while the task waits
 * for it. If it were always watched, data that a waiting caller is about to receive would wake the
 * thread as well. */
#ifndef DDL_CONNECT_ENDPOINT_STATE_H
#define DDL_CONNECT_ENDPOINT_STATE_H

#include <pthread.h>

#include "connect/addresses/path_memory.h"
#include "connect/endpoint/closer.h"
#include "connect/endpoint/endpoint.h"
#include "connect/endpoint/rate_limit.h"

/* The ids of epoll events. */
enum {
    DDL__WAKE,
    DDL__TIMER,
    DDL__LISTEN_EVENT,
    DDL__UNIX_LISTENER,
    DDL__TCP_LISTENER,
    DDL__FIRST_SERIAL = DDL__TCP_LISTENER + DDL__INTERFACES_MAX /* serials of connections, slots */
};

/* The number of times that the timer runs again after it was last needed. On a virtual machine,
 * setting a timer takes as long as a short operation, and calls come in bursts. */
enum { DDL__TIMER_RUNS = 16 };

/* A connection in its handshake, or parked until its comm takes it. */
typedef struct ddl__pending_conn {
    struct ddl__pending_conn *next;
    uint64_t serial;
    ddl__inbound inbound;
    bool proven;    /* the handshake is complete: the connection waits for its comm */
    bool peer_left; /* the peer has closed it; only the last message is left to read */
    int64_t deadline;
} ddl__pending_conn;

/* The function and context of ddl__endpoint_divert; take may be NULL. */
typedef struct ddl__taker {
    ddl__take_fn *take;
    void *context;
} ddl__taker;

struct ddl__comm_slot {
    ddl__comm_slot *next;
    uint64_t serial;
    ddl__comm_id id;
    ddl__background_task task; /* run is NULL while the comm is being created */
    uint64_t failed_serial; /* connections with a higher serial arrived after the creation failed;
                               0: it has not failed */
    bool keeps_waiting;     /* keep the slot's parked connections after a failure */
    ddl__taker takers[2];   /* the function that takes late connections (ddl__slot_taker) */
    bool has_cores;         /* each member on this host has a core (ddl__endpoint_grant_cores) */
    bool ready;             /* the task must run */
    bool ready_on_timer;    /* the task must run when the timer expires */
    bool asleep;            /* the task has run and waits for its fd */
    bool busy;              /* the task is running */
};

/* The highest number that was used for a creation of a family. */
typedef struct ddl__counter {
    struct ddl__counter *next;
    ddl__digest family, parent;
    uint32_t used;
} ddl__counter;

struct ddl_endpoint {
    unsigned generation; /* generation of the creating process (base/forks.h) */
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX]; /* interfaces of the address */
    ddl__job job;
    bool takes_secret; /* the creator left the secret open */
    unsigned sockets;
    int epoll, wake, timer, listeners, local;
    int tcp[DDL__INTERFACES_MAX]; /* the TCP listeners, one for each IP */
    bool timer_armed;
    int timer_runs; /* number of remaining restarts of the timer */
    pthread_t thread;
    bool started;
    ddl__regions *regions;
    ddl__fences fences; /* fences for memory that is shared with members on this host */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a connection was accepted, or a slot is no longer busy */
    bool stop;
    uint64_t serial;
    ddl__pending_conn *pending;
    unsigned n_pending;
    ddl__rate_limit rate_limit;
    ddl__closer *closer;
    int64_t accept_retry_at;  /* do not poll the listeners before this time; 0: poll them */
    int64_t accept_failed_at; /* the time of the last failure to accept; 0: never */
    unsigned n_accepting;     /* number of callers that wait for an accepted connection */
    bool polled;              /* one of these callers polls `listeners` */
    bool overloaded; /* clients exceed the rate limit: `listeners` is polled only from time to time
                      */
    int64_t poll_at; /* the time of the next such poll */
    bool watched;    /* the thread watches `listeners` */
    ddl__comm_slot *slots;
    ddl__counter *counters;
    char refusal[160]; /* the text of the last refusal */
    ddl__path_memory path_memory;
    ddl__replay_guard replay_guard; /* the numbered hellos that this endpoint has accepted */
    uint64_t n_hellos;              /* numbered hellos that this endpoint has sent */
    ddl__create_failures failures;
    void *attached[DDL__N_ATTACHED]; /* objects of other layers that the endpoint owns; NULL if not
                                        created */
    void (*destroy_attached[DDL__N_ATTACHED])(void *object);
};

/* ---- listen.c: the TCP listeners, one for each IP, all on one port ---- */

/* Listen on all IPs of the address, on one port of the range `ports` ("20000-20100"; "": any). The
 * port is stored in the address; fds has room for DDL__INTERFACES_MAX. An IP that is no longer
 * available is removed from the address, unless it is the only one. */
ddl_status ddl__listen_all(ddl__address *address, const char *ports, int *fds);

/* Listen on the unix socket named after the endpoint. Returns -1 with the message set. */
int ddl__listen_local(const ddl__digest *endpoint);

/* ---- endpoint_thread.c ---- */

/* The thread's function; its argument is the endpoint. */
void *ddl__endpoint_thread(void *endpoint);

/* Wake the thread. */
void ddl__endpoint_wake(ddl_endpoint *endpoint);

/* Under the lock: start the timer for tasks that are ready_on_timer. */
void ddl__endpoint_start_timer(ddl_endpoint *endpoint);

/* ---- pending.c; the caller has the lock ---- */

/* Accept a batch of connections, and continue a batch of handshakes. */
void ddl__pending_poll(ddl_endpoint *endpoint);

/* Wait for connections until the deadline, with the lock released, then do the same as
 * ddl__pending_poll. Only one thread may call this at a time. `awake`: do not sleep at first. */
void ddl__pending_await(ddl_endpoint *endpoint, bool awake, int64_t deadline);

/* Run the timed work: resume accepting, apply the rate limit, drop expired connections. */
void ddl__pending_maintain(ddl_endpoint *endpoint);

/* Take the next accepted connection of the slot's comm. Returns false if there is none. Control
 * connections are not returned until `control` is true. */
bool ddl__pending_take(ddl_endpoint *endpoint, const ddl__comm_slot *slot, bool control,
                       ddl__accepted *accepted);

/* Return the slot's taker of connections of this kind; NULL for kinds that wait for
 * ddl__pending_take. */
static inline ddl__taker *ddl__slot_taker(ddl__comm_slot *slot, uint8_t kind)
{
    bool is_link = kind == DDL__CONN_FIRST_USE || kind == DDL__CONN_FIRST_MEMORY;
    return is_link                          ? &slot->takers[0]
           : kind == DDL__CONN_LATE_CONTROL ? &slot->takers[1]
                                            : (ddl__taker *)NULL;
}

/* Return the highest number of a creation of the family for which a member has connected, if it is
 * above `used` and that creation has no slot here; else 0. */
uint32_t ddl__pending_find_creation(const ddl_endpoint *endpoint, ddl__digest family,
                                    uint32_t used);

/* Drop the connections that wait for a creation of the family, because this member makes no more of
 * them. */
void ddl__pending_drop_family(ddl_endpoint *endpoint, ddl__digest family);

/* Pass the connections that have arrived for the slot to the takers of their kinds
 * (ddl__slot_taker). */
void ddl__pending_divert(ddl_endpoint *endpoint, const ddl__comm_slot *slot);

/* Drop the connections of a slot that is being closed. */
void ddl__pending_drop_slot(ddl_endpoint *endpoint, const ddl__comm_slot *slot);

/* Drop all connections of an endpoint that is being destroyed. */
void ddl__pending_drop_all(ddl_endpoint *endpoint);

#endif
