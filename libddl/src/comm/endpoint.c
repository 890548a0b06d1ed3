/* Design notes.
 *
 * One thread per endpoint. It accepts connections, has their handshakes without blocking, refuses
 * at once who is wrong here (another door, job or version), and keeps the others until the comm
 * they want takes its seat. It also drives the engines of comms for which nobody waits.
 *
 * `lock` guards everything here. The thread lets go of it while an engine runs (`busy`), so that
 * accepting and creating go on; ddl__endpoint_leave waits for that. Epoll events carry serial
 * numbers, never pointers, since a seat may be gone when its event is looked at.
 *
 * Listeners and who has come by them are in an epoll descriptor of their own, `door`. When
 * strangers come in numbers it is looked at only once in BEAT_MS, and at some of them: each time
 * that the thread wakes, it takes a core from a rank. While somebody waits for a guest it is always
 * open, so members that meet are not kept waiting; nobody is banned, for a host that has a stranger
 * may have members as well.
 *
 * An engine's own epoll descriptor is watched one-shot, and only while the engine is asleep in the
 * background: otherwise the thread would turn for data that a waiting caller is about to take.
 */
#include "comm/endpoint.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/crowd.h"
#include "comm/discover.h"
#include "comm/listen.h"
#include "comm/regrets.h"
#include "comm/watch.h"
#include "net/shm.h"
#include "net/socket.h"

enum {
    WAKE,
    TIMER,
    DOOR,
    UNIX_LISTENER,
    TCP_LISTENER,
    FIRST_SERIAL = TCP_LISTENER + DDL__INTERFACES_MAX, /* visitors and seats count from here */

    EVENTS = 64,
    VISITORS_MAX = 4096,
    STRANGERS_MAX = 64,  /* connections without a whole hello */
    UNPROVEN_MAX = 1024, /* and those that have yet to prove what it says */
    LOOK = 16,           /* events of the door, and newcomers at a listener, at a time */
    BEAT_MS = 10,        /* between two looks at a crowd */
    TICK_MS = 100,
    SOCKETS_MAX = 16,
    /* Long for who waits at once, short for who computes meanwhile. Setting a timer takes a virtual
       machine as long as a short operation, so it goes on for some turns after it was last needed,
       as callers come in bursts. */
    SOON_NS = 1000 * 1000,
    TURNS = 16
};

/* A handshake must be complete, and its comm be created, within these. */
static const int64_t HANDSHAKE_NS = 10 * 1000000000ll, PARKED_NS = 600 * 1000000000ll;

/* A connection whose handshake is not complete yet, or that waits for its comm. */
typedef struct visitor {
    struct visitor *next;
    uint64_t serial;
    ddl__visit visit;
    bool challenged; /* its hello fits */
    bool proven;     /* it waits for its comm */
    bool gone;       /* or has left, and only its last word does */
    bool local;      /* came by the unix socket */
    int64_t deadline;
} visitor;

struct ddl__seat {
    ddl__seat *next;
    uint64_t serial;
    ddl__digest comm;
    ddl__engine *engine; /* NULL while the comm is being created */
    uint64_t failed;     /* the serial at which that had failed, or 0 */
    bool ready;          /* to be driven */
    bool soon;           /* to be driven when the timer has run out */
    bool asleep;         /* driven, nothing to do until its fd says so */
    bool busy;           /* the thread is in it */
};

typedef struct counter {
    struct counter *next;
    ddl__digest list;
    uint64_t count;
} counter;

struct ddl_endpoint {
    unsigned generation; /* of the process that made it */
    ddl__address address;
    ddl__job job;
    unsigned sockets;
    int epoll, wake, timer, door, local;
    int tcp[DDL__INTERFACES_MAX]; /* one for each of the address's IPs */
    bool timed;                   /* the timer runs */
    int turns;                    /* how often it still is to, if nobody needs it again */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a guest has come, or a seat is not busy any more */
    bool stop;
    uint64_t serial;
    visitor *visitors;
    unsigned n_visitors;
    ddl__crowd crowd;
    unsigned hosts;  /* threads that wait for a guest */
    bool shut;       /* the door, but for a look at */
    int64_t look_at; /* this time */
    ddl__seat *seats;
    counter *counters;
    char refusal[160]; /* the last one */
    ddl__regrets regrets;
    ddl__watch *watch; /* NULL until there is a comm of several members */
};

/* ------------------------------------------------------------------------------------- visitors */

static void drop_visitor(ddl_endpoint *endpoint, visitor *v)
{
    if (!v->proven)
        ddl__crowd_count(&endpoint->crowd, ddl__now());
    /* A reference of an arena travels with an in-process hello. */
    if (v->proven && v->visit.said.hello.door == DDL__DOOR_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)v->visit.said.hello.arena);
    close(v->visit.fd);
    if (v->visit.passed >= 0)
        close(v->visit.passed);
    ddl__session_end(&v->visit.session);
    free(v);
}

static void unlink_visitor(ddl_endpoint *endpoint, visitor **at)
{
    *at = (*at)->next;
    endpoint->n_visitors--;
}

/* Why a complete hello is refused at the door, or NULL. */
static const char *objection(const ddl_endpoint *endpoint, const visitor *v)
{
    const ddl__hello *hello = &v->visit.said.hello;
    if (!ddl__digest_equal(hello->endpoint, endpoint->address.endpoint))
        return "another endpoint was meant";
    bool tcp = hello->door == DDL__DOOR_TCP || hello->door == DDL__DOOR_MESSAGES;
    bool any = hello->door == DDL__DOOR_CONTROL || hello->door == DDL__DOOR_REGRET;
    if ((tcp == v->local && !any) ||
        (!tcp && !any && hello->door != DDL__DOOR_SHM && hello->door != DDL__DOOR_INPROC))
        return "a wrong kind of connection";
    if (v->local && !ddl__same_user(v->visit.fd))
        return "another user";
    /* Pointers are believed only from this very process. */
    if (hello->door == DDL__DOOR_INPROC && !ddl__same_process(v->visit.fd))
        return "another process";
    return NULL;
}

static void note_refusal(ddl_endpoint *endpoint, const visitor *v)
{
    const ddl__hello *hello = &v->visit.said.hello;
    ddl__log(DDL__INFO, "refused a connection: %s", ddl__message());
    if (v->visit.have >= sizeof *hello)
        snprintf(endpoint->refusal, sizeof endpoint->refusal, "rank %u: %s", hello->from,
                 ddl__message());
}

/* Read on; false when the visitor is to be dropped. */
static bool hear_visitor(ddl_endpoint *endpoint, visitor *v)
{
    switch (ddl__visit_read(&endpoint->job, &v->visit)) {
    case DDL__NEWS_NONE: return true;
    case DDL__NEWS_HELLO:
        v->challenged = ddl__visit_challenge(&endpoint->job, &v->visit, objection(endpoint, v));
        if (!v->challenged)
            note_refusal(endpoint, v);
        return v->challenged;
    case DDL__NEWS_PROVEN: break;
    case DDL__NEWS_REFUSED: note_refusal(endpoint, v); return false;
    case DDL__NEWS_OVER: return false;
    }
    v->proven = true;
    const ddl__hello *hello = &v->visit.said.hello;
    if (hello->door == DDL__DOOR_REGRET) {
        ddl__regrets_add(&endpoint->regrets, hello);
        return false; /* that is all */
    }
    ddl__regrets_forget(&endpoint->regrets, hello->comm, (int)hello->from);
    /* From here on only its going away is of interest. */
    struct epoll_event event = {.events = EPOLLRDHUP, .data.u64 = v->serial};
    epoll_ctl(endpoint->door, EPOLL_CTL_MOD, v->visit.fd, &event);
    v->deadline = ddl__now() + PARKED_NS;
    pthread_cond_broadcast(&endpoint->changed);
    return true;
}

/* The oldest one, at the end of the list, gives way: of those who have not said who they are, else,
 * since an endpoint's id is known to few, of those who have not proven it. */
static void limit_strangers(ddl_endpoint *endpoint)
{
    unsigned strangers = 0, unproven = 0;
    visitor **stranger = NULL, **oldest = NULL;
    for (visitor **at = &endpoint->visitors; *at; at = &(*at)->next)
        if (!(*at)->proven) {
            unproven++;
            oldest = at;
            strangers += !(*at)->challenged;
            stranger = (*at)->challenged ? stranger : at;
        }
    if (strangers > STRANGERS_MAX)
        oldest = stranger;
    else if (unproven <= UNPROVEN_MAX)
        return;
    visitor *v = *oldest;
    bool before = v->challenged;
    if (hear_visitor(endpoint, v) && (v->proven || v->challenged != before))
        return;
    unlink_visitor(endpoint, oldest);
    drop_visitor(endpoint, v);
}

/* Most strangers have said enough by now to be sent away at once. */
static void take_in(ddl_endpoint *endpoint, int fd, bool local)
{
    visitor *v = endpoint->n_visitors < VISITORS_MAX ? calloc(1, sizeof *v) : (visitor *)NULL;
    if (!v) {
        ddl__crowd_count(&endpoint->crowd, ddl__now());
        close(fd);
        return;
    }
    v->serial = endpoint->serial++;
    v->visit.fd = fd;
    v->visit.passed = -1;
    v->local = local;
    v->deadline = ddl__now() + HANDSHAKE_NS;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = v->serial};
    if (!hear_visitor(endpoint, v) || epoll_ctl(endpoint->door, EPOLL_CTL_ADD, fd, &event)) {
        drop_visitor(endpoint, v);
        return;
    }
    v->next = endpoint->visitors;
    endpoint->visitors = v;
    endpoint->n_visitors++;
    limit_strangers(endpoint);
}

static void accept_some(ddl_endpoint *endpoint, int listener, bool local)
{
    int fd = -1;
    for (int i = 0; i < LOOK; i++) {
        if ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0)
            break;
        take_in(endpoint, fd, local);
    }
    if (fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
        ddl__log(DDL__WARN, "cannot accept a connection: %s", strerror(errno));
        usleep(1000); /* the listener stays readable: do not turn at full speed */
    }
}

static bool has_seat(const ddl_endpoint *endpoint, ddl__digest comm)
{
    const ddl__seat *seat = endpoint->seats;
    while (seat && !ddl__digest_equal(seat->comm, comm))
        seat = seat->next;
    return seat;
}

/* A member that was there and has left already: its last word is in the socket. */
static bool leaves_word(const ddl_endpoint *endpoint, const visitor *v)
{
    return v->proven && v->visit.said.hello.door == DDL__DOOR_CONTROL &&
           has_seat(endpoint, v->visit.said.hello.comm);
}

static void attend_visitor(ddl_endpoint *endpoint, uint64_t serial)
{
    for (visitor **at = &endpoint->visitors; *at; at = &(*at)->next)
        if ((*at)->serial == serial) {
            visitor *v = *at;
            if (leaves_word(endpoint, v)) {
                v->gone = true;
                epoll_ctl(endpoint->door, EPOLL_CTL_DEL, v->visit.fd, NULL);
            } else if (v->proven || !hear_visitor(endpoint, v)) {
                unlink_visitor(endpoint, at);
                drop_visitor(endpoint, v);
            }
            return;
        }
}

static void expire_visitors(ddl_endpoint *endpoint)
{
    int64_t now = ddl__now();
    for (visitor **at = &endpoint->visitors; *at;) {
        visitor *v = *at;
        if (v->deadline > now) {
            at = &v->next;
            continue;
        }
        unlink_visitor(endpoint, at);
        drop_visitor(endpoint, v);
    }
}

/* Of those who have come and of what they have said, some. */
static void look(ddl_endpoint *endpoint)
{
    struct epoll_event events[LOOK];
    int n = epoll_wait(endpoint->door, events, LOOK, 0);
    for (int i = 0; i < n; i++) {
        uint64_t id = events[i].data.u64;
        if (id == UNIX_LISTENER)
            accept_some(endpoint, endpoint->local, true);
        else if (id < FIRST_SERIAL)
            accept_some(endpoint, endpoint->tcp[id - TCP_LISTENER], false);
        else
            attend_visitor(endpoint, id);
    }
    endpoint->look_at = ddl__now() + BEAT_MS * 1000000ll;
}

/* Shut the door while there is a crowd, and look at it when it is time to. */
static void keep_door(ddl_endpoint *endpoint)
{
    int64_t now = ddl__now();
    bool shut = !endpoint->hosts && ddl__crowd_is_there(&endpoint->crowd, now);
    struct epoll_event event = {.events = shut ? 0 : EPOLLIN, .data.u64 = DOOR};
    if (shut != endpoint->shut &&
        !epoll_ctl(endpoint->epoll, EPOLL_CTL_MOD, endpoint->door, &event))
        endpoint->shut = shut;
    if (endpoint->shut && now >= endpoint->look_at)
        look(endpoint);
}

/* ----------------------------------------------------------------------------------- the thread */

static void notify(ddl_endpoint *endpoint)
{
    uint64_t one = 1;
    ssize_t n = write(endpoint->wake, &one, sizeof one);
    (void)n; /* a full counter wakes as well */
}

static void drive(ddl_endpoint *endpoint, ddl__seat *seat)
{
    seat->ready = seat->asleep = false;
    seat->busy = true;
    pthread_mutex_unlock(&endpoint->lock);
    ddl__background state = ddl__engine_background(seat->engine);
    pthread_mutex_lock(&endpoint->lock);
    seat->busy = false;
    seat->asleep = state == DDL__BACKGROUND_ASLEEP;
    if (seat->asleep) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = seat->serial};
        epoll_ctl(endpoint->epoll, EPOLL_CTL_MOD, ddl__engine_fd(seat->engine), &event);
    }
    pthread_cond_broadcast(&endpoint->changed);
}

static void drive_all(ddl_endpoint *endpoint, bool tick)
{
    for (ddl__seat *s = endpoint->seats; s; s = s->next)
        s->ready = s->ready || (tick && s->asleep);
    for (ddl__seat *s = endpoint->seats; s;) {
        if (s->ready && s->engine) {
            drive(endpoint, s);
            s = endpoint->seats; /* the list may have changed meanwhile */
        } else {
            s = s->next;
        }
    }
}

static int tick_ms(const ddl_endpoint *endpoint)
{
    if (endpoint->shut)
        return BEAT_MS;
    for (const ddl__seat *s = endpoint->seats; s; s = s->next)
        if (s->asleep)
            return TICK_MS;
    return endpoint->visitors ? 1000 : -1;
}

static void start_timer(ddl_endpoint *endpoint)
{
    static const struct itimerspec soon = {.it_value.tv_nsec = SOON_NS};
    if (!endpoint->timed)
        endpoint->timed = !timerfd_settime(endpoint->timer, 0, &soon, NULL);
}

static void attend_timer(ddl_endpoint *endpoint)
{
    uint64_t count;
    ssize_t n = read(endpoint->timer, &count, sizeof count);
    (void)n; /* it has run out, whatever it says */
    endpoint->timed = false;
    for (ddl__seat *s = endpoint->seats; s; s = s->next) {
        if (s->soon && ddl__engine_was_driven(s->engine)) {
            endpoint->turns = TURNS;
            continue;
        }
        s->ready = s->ready || s->soon;
        s->soon = false;
    }
    if (endpoint->turns-- > 0)
        start_timer(endpoint);
}

static void attend_event(ddl_endpoint *endpoint, uint64_t id)
{
    uint64_t count;
    switch (id) {
    case TIMER: attend_timer(endpoint); return;
    case WAKE:
        if (read(endpoint->wake, &count, sizeof count) < 0 && errno != EAGAIN)
            ddl__log(DDL__WARN, "eventfd: %s", strerror(errno));
        return;
    case DOOR: look(endpoint); return;
    default: break;
    }
    for (ddl__seat *s = endpoint->seats; s; s = s->next)
        if (s->serial == id) {
            s->ready = true;
            return;
        }
}

static void *serve(void *argument)
{
    ddl_endpoint *endpoint = argument;
    struct epoll_event events[EVENTS];
    int64_t next_tick = 0;
    pthread_mutex_lock(&endpoint->lock);
    while (!endpoint->stop) {
        int timeout = tick_ms(endpoint);
        pthread_mutex_unlock(&endpoint->lock);
        int n = epoll_wait(endpoint->epoll, events, EVENTS, timeout);
        pthread_mutex_lock(&endpoint->lock);
        for (int i = 0; i < n; i++)
            attend_event(endpoint, events[i].data.u64);
        keep_door(endpoint);
        expire_visitors(endpoint);
        bool tick = ddl__now() >= next_tick;
        if (tick)
            next_tick = ddl__now() + TICK_MS * 1000000ll;
        drive_all(endpoint, tick);
    }
    pthread_mutex_unlock(&endpoint->lock);
    return NULL;
}

/* ---------------------------------------------------------------------------------------- seats */

uint64_t ddl__endpoint_count(ddl_endpoint *endpoint, ddl__digest list)
{
    pthread_mutex_lock(&endpoint->lock);
    counter *c = endpoint->counters;
    while (c && !ddl__digest_equal(c->list, list))
        c = c->next;
    if (!c && (c = calloc(1, sizeof *c))) {
        c->list = list;
        c->next = endpoint->counters;
        endpoint->counters = c;
    }
    uint64_t count = c ? ++c->count : 0;
    pthread_mutex_unlock(&endpoint->lock);
    return count;
}

void ddl__endpoint_uncount(ddl_endpoint *endpoint, ddl__digest list)
{
    pthread_mutex_lock(&endpoint->lock);
    for (counter *c = endpoint->counters; c; c = c->next)
        if (ddl__digest_equal(c->list, list))
            c->count--;
    pthread_mutex_unlock(&endpoint->lock);
}

ddl_status ddl__endpoint_enter(ddl_endpoint *endpoint, ddl__digest comm, ddl__seat **out)
{
    ddl__seat *seat = calloc(1, sizeof *seat);
    if (!seat)
        return ddl__fail(DDL_ENOMEM, "no memory for a comm");
    pthread_mutex_lock(&endpoint->lock);
    for (ddl__seat *s = endpoint->seats; s; s = s->next)
        if (ddl__digest_equal(s->comm, comm)) {
            pthread_mutex_unlock(&endpoint->lock);
            free(seat);
            return ddl__fail(DDL_ESTATE, "a comm of these members with this tag and epoch is alive "
                                         "here already: destroy it or choose another tag");
        }
    seat->serial = endpoint->serial++;
    seat->comm = comm;
    seat->next = endpoint->seats;
    endpoint->seats = seat;
    pthread_mutex_unlock(&endpoint->lock);
    *out = seat;
    return DDL_OK;
}

static bool take_guest(ddl_endpoint *endpoint, const ddl__seat *seat, ddl__guest *guest)
{
    for (visitor **at = &endpoint->visitors; *at; at = &(*at)->next) {
        visitor *v = *at;
        if (!v->proven || !ddl__digest_equal(v->visit.said.hello.comm, seat->comm))
            continue;
        epoll_ctl(endpoint->door, EPOLL_CTL_DEL, v->visit.fd, NULL);
        *guest = (ddl__guest){v->visit.fd, v->visit.passed, v->visit.said.hello, v->visit.session};
        unlink_visitor(endpoint, at);
        ddl__session_end(&v->visit.session);
        free(v);
        return true;
    }
    return false;
}

bool ddl__endpoint_guest(ddl_endpoint *endpoint, ddl__seat *seat, int64_t deadline,
                         ddl__guest *guest)
{
    struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    pthread_mutex_lock(&endpoint->lock);
    bool found;
    endpoint->hosts++;
    while (!(found = take_guest(endpoint, seat, guest)) && ddl__now() < deadline) {
        if (endpoint->shut)
            notify(endpoint);
        pthread_cond_timedwait(&endpoint->changed, &endpoint->lock, &until);
    }
    endpoint->hosts--;
    pthread_mutex_unlock(&endpoint->lock);
    return found;
}

bool ddl__endpoint_regret(ddl_endpoint *endpoint, ddl__digest comm, ddl__regret *regret)
{
    pthread_mutex_lock(&endpoint->lock);
    bool found = ddl__regrets_find(&endpoint->regrets, comm, regret);
    pthread_mutex_unlock(&endpoint->lock);
    return found;
}

void ddl__endpoint_heard(ddl_endpoint *endpoint, ddl__digest comm, int from, uint32_t attempt)
{
    pthread_mutex_lock(&endpoint->lock);
    ddl__regrets_heard(&endpoint->regrets, comm, from, attempt);
    pthread_mutex_unlock(&endpoint->lock);
}

uint32_t ddl__endpoint_failed(ddl_endpoint *endpoint, ddl__seat *seat)
{
    pthread_mutex_lock(&endpoint->lock);
    uint64_t attempt = endpoint->serial++;
    if (seat)
        seat->failed = attempt;
    pthread_mutex_unlock(&endpoint->lock);
    return (uint32_t)attempt;
}

void ddl__endpoint_forget(ddl_endpoint *endpoint, ddl__digest comm)
{
    pthread_mutex_lock(&endpoint->lock);
    ddl__regrets_forget(&endpoint->regrets, comm, -1);
    pthread_mutex_unlock(&endpoint->lock);
}

ddl_status ddl__endpoint_serve(ddl_endpoint *endpoint, ddl__seat *seat, ddl__engine *engine)
{
    struct epoll_event event = {.events = 0, .data.u64 = seat->serial};
    if (epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, ddl__engine_fd(engine), &event))
        return ddl__fail(DDL_ESYSTEM, "epoll refuses a comm: %s", strerror(errno));
    pthread_mutex_lock(&endpoint->lock);
    seat->engine = engine;
    pthread_mutex_unlock(&endpoint->lock);
    return DDL_OK;
}

void ddl__endpoint_need_progress(ddl_endpoint *endpoint, ddl__seat *seat, ddl__urgency urgency)
{
    pthread_mutex_lock(&endpoint->lock);
    if (urgency == DDL__NOW) {
        seat->ready = true;
        notify(endpoint);
    } else {
        seat->soon = true;
        endpoint->turns = TURNS;
        start_timer(endpoint);
    }
    pthread_mutex_unlock(&endpoint->lock);
}

void ddl__endpoint_leave(ddl_endpoint *endpoint, ddl__seat *seat)
{
    pthread_mutex_lock(&endpoint->lock);
    while (seat->busy)
        pthread_cond_wait(&endpoint->changed, &endpoint->lock);
    for (ddl__seat **at = &endpoint->seats; *at; at = &(*at)->next)
        if (*at == seat) {
            *at = seat->next;
            break;
        }
    ddl__regrets_forget(&endpoint->regrets, seat->comm, -1);
    /* Who still waits here came for a later comm of the same name, unless this one never was, and
       he came before that was known. */
    for (visitor **at = &endpoint->visitors; *at;) {
        visitor *v = *at;
        if (!v->proven || (seat->engine && !v->gone) ||
            (seat->failed && v->serial > seat->failed) ||
            !ddl__digest_equal(v->visit.said.hello.comm, seat->comm)) {
            at = &v->next;
            continue;
        }
        unlink_visitor(endpoint, at);
        drop_visitor(endpoint, v);
    }
    if (seat->engine)
        epoll_ctl(endpoint->epoll, EPOLL_CTL_DEL, ddl__engine_fd(seat->engine), NULL);
    pthread_mutex_unlock(&endpoint->lock);
    free(seat);
}

/* ------------------------------------------------------------------------------------ lifecycle */

const ddl__address *ddl__endpoint_address(const ddl_endpoint *endpoint)
{
    return &endpoint->address;
}

unsigned ddl__endpoint_sockets(const ddl_endpoint *endpoint)
{
    return endpoint->sockets;
}

bool ddl__endpoint_inherited(const ddl_endpoint *endpoint)
{
    return endpoint->generation != ddl__generation();
}

const ddl__job *ddl__endpoint_job(const ddl_endpoint *endpoint)
{
    return &endpoint->job;
}

void ddl__endpoint_refusal(ddl_endpoint *endpoint, char *text, size_t size)
{
    pthread_mutex_lock(&endpoint->lock);
    snprintf(text, size, "%s", endpoint->refusal);
    pthread_mutex_unlock(&endpoint->lock);
}

ddl__watch *ddl__endpoint_watch(ddl_endpoint *endpoint)
{
    pthread_mutex_lock(&endpoint->lock);
    if (!endpoint->watch)
        endpoint->watch = ddl__watch_create();
    ddl__watch *watch = endpoint->watch;
    pthread_mutex_unlock(&endpoint->lock);
    return watch;
}

static int listen_local(const ddl__digest *endpoint)
{
    struct sockaddr_storage address;
    socklen_t length = ddl__address_unix(endpoint, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&address, length) && !listen(fd, SOMAXCONN))
        return fd;
    ddl__fail(DDL_ESYSTEM, "cannot listen on an abstract unix socket: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool watch(int epoll, int fd, uint64_t id)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    return !epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static ddl_status listen_tcp(ddl_endpoint *endpoint, const ddl_endpoint_config *config)
{
    ddl__address *address = &endpoint->address;
    if (config->host && config->interfaces)
        return ddl__fail(DDL_EINVAL, "host \"%s\" and interfaces \"%s\": give one of them",
                         config->host, config->interfaces);
    if (config->sockets > SOCKETS_MAX)
        return ddl__fail(DDL_EINVAL, "sockets is %u, at most %d can be had", config->sockets,
                         SOCKETS_MAX);
    endpoint->sockets = config->sockets ? config->sockets : 1;
    ddl_status status = ddl__discover(address, config->host, config->interfaces);
    if (status == DDL_OK)
        status = ddl__listen_all(address, config->ports ? config->ports : "", endpoint->tcp);
    for (unsigned i = 0; status == DDL_OK && i < address->n_ips; i++)
        ddl__guard(endpoint->tcp[i]);
    return status;
}

static ddl_status open_ports(ddl_endpoint *endpoint, const ddl_endpoint_config *config)
{
    ddl__digest *id = &endpoint->address.endpoint;
    if (!ddl__random(id, sizeof *id))
        return DDL_ESYSTEM;
    ddl_status status = listen_tcp(endpoint, config);
    if (status != DDL_OK) {
        endpoint->address.n_ips = 0; /* none is open */
        return status;
    }
    endpoint->local = ddl__guard(listen_local(id));
    if (endpoint->local < 0)
        return DDL_ESYSTEM;
    endpoint->epoll = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    endpoint->door = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    endpoint->wake = ddl__guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    endpoint->timer = ddl__guard(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    bool watched = endpoint->epoll >= 0 && endpoint->door >= 0 && endpoint->wake >= 0 &&
                   endpoint->timer >= 0 && watch(endpoint->epoll, endpoint->wake, WAKE) &&
                   watch(endpoint->epoll, endpoint->timer, TIMER) &&
                   watch(endpoint->epoll, endpoint->door, DOOR) &&
                   watch(endpoint->door, endpoint->local, UNIX_LISTENER);
    for (unsigned i = 0; watched && i < endpoint->address.n_ips; i++)
        watched = watch(endpoint->door, endpoint->tcp[i], TCP_LISTENER + i);
    return watched ? DDL_OK
                   : ddl__fail(DDL_ESYSTEM, "no descriptors for an endpoint: %s", strerror(errno));
}

ddl_status ddl__endpoint_create(const ddl_endpoint_config *config, ddl_endpoint **out)
{
    ddl_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint)
        return ddl__fail(DDL_ENOMEM, "no memory for an endpoint");
    endpoint->epoll = endpoint->wake = endpoint->timer = endpoint->door = endpoint->local = -1;
    endpoint->serial = FIRST_SERIAL;
    endpoint->generation = ddl__generation();
    pthread_mutex_init(&endpoint->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&endpoint->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);

    ddl_status status = ddl__job_open(&endpoint->job, config->secret, config->encrypt > 0);
    if (status == DDL_OK)
        status = open_ports(endpoint, config);
    if (status == DDL_OK) {
        int error = ddl__thread_start(&endpoint->thread, serve, endpoint);
        endpoint->started = !error;
        if (error)
            status = ddl__fail(DDL_ESYSTEM, "no thread for an endpoint: %s", strerror(error));
    }
    if (status == DDL_OK)
        *out = endpoint;
    else
        ddl__endpoint_destroy(endpoint);
    return status;
}

void ddl__endpoint_destroy(ddl_endpoint *endpoint)
{
    if (!endpoint)
        return;
    ddl__watch_destroy(endpoint->watch);
    if (endpoint->started) {
        pthread_mutex_lock(&endpoint->lock);
        endpoint->stop = true;
        pthread_mutex_unlock(&endpoint->lock);
        notify(endpoint);
        pthread_join(endpoint->thread, NULL);
    }
    for (visitor *v; (v = endpoint->visitors);) {
        endpoint->visitors = v->next;
        drop_visitor(endpoint, v);
    }
    for (counter *c; (c = endpoint->counters);) {
        endpoint->counters = c->next;
        free(c);
    }
    for (unsigned i = 0; i < endpoint->address.n_ips; i++)
        ddl__close_guarded(endpoint->tcp[i]);
    int fds[] = {endpoint->epoll, endpoint->wake, endpoint->timer, endpoint->door, endpoint->local};
    for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++)
        ddl__close_guarded(fds[i]);
    ddl__job_close(&endpoint->job);
    pthread_cond_destroy(&endpoint->changed);
    pthread_mutex_destroy(&endpoint->lock);
    free(endpoint);
}
