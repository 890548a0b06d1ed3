/* Every rank dials all lower ranks, hears what they answer, and then receives the higher ones. A
 * dialed rank accepts after its own dialing, so waits point to lower ranks only and end at rank 0.
 *
 * Locality is proven: the dialer first tries the peer's abstract unix socket, which exists only in
 * the peer's network namespace and cannot be met by chance, and the two exchange the memfds of
 * their arenas over it. Where that fails they meet over TCP, by the paths that both hosts'
 * interfaces give (topo/interfaces.h). A pair has one connection for the link and one for messages,
 * which are dialed together. Where they have lanes, each connection is accepted before the dialer
 * opens the next one: the link's, its lanes, the one for messages, and its lanes, of which there
 * must be as many; so the dialed rank knows without being told when all are there. */
#include "comm/wireup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/discover.h"
#include "net/socket.h"

/* How long an address may take to answer before the next one is tried. */
static const int64_t DIAL_NS = 5 * 1000000000ll;

/* How often a waiting rank looks whether those who came are still there. */
static const int64_t PRESENT_NS = 100 * 1000000ll;

static int64_t dial_deadline(const ddl__wireup *m)
{
    int64_t limit = ddl__now() + DIAL_NS;
    return limit < m->deadline ? limit : m->deadline;
}

static ddl__hello introduce(const ddl__wireup *m, int peer, uint8_t kind)
{
    ddl__hello hello = ddl__endpoint_introduce(m->endpoint, kind, m->rank, peer, m->size);
    hello.endpoint = m->addresses[peer].endpoint;
    hello.comm = m->comm;
    return hello;
}

static bool over_tcp(uint8_t kind)
{
    return kind == DDL__CONN_TCP || kind == DDL__CONN_MESSAGES;
}

static bool is_tcp(const ddl__link *link)
{
    return !strcmp(link->ops->kind, "tcp");
}

/* As messages call it: "eth0 10.0.0.1 to 10.0.0.2". */
static void name_connection(const ddl__wireup *m, int fd, char *name, size_t size)
{
    const ddl__address *own = ddl__endpoint_address(m->endpoint);
    struct sockaddr_storage ends[2], candidate;
    char ip[2][INET6_ADDRSTRLEN] = {"?", "?"};
    const char *interface = "";
    memset(ends, 0, sizeof ends);
    for (int i = 0; i < 2; i++) {
        socklen_t length = sizeof ends[i];
        struct sockaddr *end = (struct sockaddr *)&ends[i];
        if (i ? getpeername(fd, end, &length) : getsockname(fd, end, &length))
            continue;
        inet_ntop(end->sa_family, ddl__address_bytes(end), ip[i], sizeof ip[i]);
    }
    for (unsigned i = 0; i < own->n_ips && !interface[0]; i++) {
        ddl__address_ip(own, i, &candidate);
        if (candidate.ss_family == ends[0].ss_family &&
            !memcmp(own->ips[i].bytes, ddl__address_bytes((struct sockaddr *)&ends[0]),
                    own->ips[i].family == 4 ? 4 : 16))
            interface = own->ips[i].name;
    }
    snprintf(name, size, "%s%s%s to %s", interface, interface[0] ? " " : "", ip[0], ip[1]);
}

/* A link of one connection, or one more connection for a link that is there. */
static ddl__link *make_tcp(const ddl__wireup *m, ddl__link *link, unsigned lane, int fd,
                           const ddl__session *session, ddl__side side)
{
    char name[128];
    ddl__seal *seal;
    name_connection(m, fd, name, sizeof name);
    if (ddl__session_seal(ddl__endpoint_job(m->endpoint), session, fd, side, &seal) != DDL_OK)
        return NULL;
    if (lane)
        link = ddl__tcp_link_add_lane(link, fd, name) ? link : NULL;
    else if ((link = ddl__tcp_link_create(m->slots, fd)))
        ddl__tcp_link_name(link, name);
    if (link)
        ddl__tcp_link_seal(link, lane, seal);
    else
        ddl__seal_destroy(seal);
    return link;
}

/* Make the link, or both, of what the two sides exchanged, as the hello says, or give it a lane.
 * Takes `fd` over only on success; `passed` is closed. */
static bool make_links(const ddl__wireup *m, int peer, const ddl__hello *hello,
                       const ddl__session *session, ddl__side side, int fd, int passed,
                       uint64_t pointer)
{
    ddl__link *link = NULL;
    uint8_t kind = hello->kind;
    if (over_tcp(kind)) {
        link = kind == DDL__CONN_TCP ? m->links[peer] : m->messages[peer];
        link = make_tcp(m, link, hello->lane, fd, session, side);
        if (!link)
            return false;
    } else {
        ddl__arena *theirs = kind == DDL__CONN_INPROC ? (ddl__arena *)(uintptr_t)pointer
                             : passed >= 0            ? ddl__arena_open(passed, (unsigned)m->rank)
                                                      : NULL;
        if (theirs)
            link = ddl__shm_link_create(m->arena, (unsigned)peer, theirs, (unsigned)m->rank, fd,
                                        kind == DDL__CONN_INPROC);
        else if (passed < 0)
            ddl__fail(DDL_EREFUSED, "no shared memory came with the hello");
        if (theirs && !link)
            ddl__arena_drop(theirs);
    }
    if (passed >= 0)
        close(passed);
    if (kind != DDL__CONN_MESSAGES)
        m->links[peer] = link;
    if (kind != DDL__CONN_TCP)
        m->messages[peer] = over_tcp(kind) || !link ? link : ddl__shm_link_beside(link);
    return link;
}

/* A connection to a peer, over which our hello and its proof were sent. */
typedef struct dialing {
    int fd; /* -1: none */
    ddl__hello hello;
    ddl__session session;
} dialing;

static void give_up(dialing *d)
{
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
    ddl__session_end(&d->session);
}

/* Start the handshake, with our memory; do not wait for an answer. Takes fd over. */
static ddl_status initiate(const ddl__wireup *m, dialing *d, int fd, const ddl__hello *hello)
{
    bool inproc = hello->kind == DDL__CONN_INPROC;
    int passed = hello->kind == DDL__CONN_SHM ? ddl__arena_fd(m->arena) : -1;
    d->fd = fd;
    d->hello = *hello;
    if (inproc)
        d->hello.arena = (uintptr_t)ddl__arena_share(m->arena);
    ddl_status status = ddl__handshake_start(ddl__endpoint_job(m->endpoint), fd, &d->hello, passed,
                                             dial_deadline(m), &d->session);
    if (status == DDL_OK)
        return status;
    if (inproc)
        ddl__arena_drop(m->arena); /* the reference stayed here */
    give_up(d);
    return status;
}

/* Wait until the peer's endpoint admits us. */
static ddl_status await_admission(const ddl__wireup *m, dialing *d)
{
    bool handed;
    ddl_status status = ddl__handshake_finish(ddl__endpoint_job(m->endpoint), d->fd,
                                              dial_deadline(m), &d->session, &handed);
    if (status == DDL_OK)
        return status;
    if (d->hello.kind == DDL__CONN_INPROC && !handed)
        ddl__arena_drop(m->arena);
    give_up(d);
    return status;
}

/* Whether both links with the peer are there, with all their lanes. */
static bool is_whole(const ddl__wireup *m, int peer)
{
    const ddl__link *link = m->links[peer], *messages = m->messages[peer];
    return link && messages &&
           (!is_tcp(link) || ddl__tcp_link_lanes(link) == ddl__tcp_link_lanes(messages));
}

/* "1 on a, 3 on b": the members that are waited for. Of lower ranks that is one at a time. */
static void list_missing(const ddl__wireup *m, char *list, size_t size)
{
    size_t n = 0;
    list[0] = 0;
    for (int i = 0; i < m->size && n + 80 < size; i++) {
        if (i == m->rank || is_whole(m, i))
            continue;
        n += (size_t)snprintf(list + n, size - n, "%s%d on %s", n ? ", " : "", i,
                              m->addresses[i].host);
        if (i < m->rank)
            break;
    }
}

/* Somebody has not come for long. */
static void warn_late(const ddl__wireup *m)
{
    char list[200], refusal[160];
    int64_t now = ddl__now();
    if (now < *m->warn_at)
        return;
    *m->warn_at = DDL__NEVER;
    list_missing(m, list, sizeof list);
    ddl__endpoint_refusal(m->endpoint, refusal, sizeof refusal);
    ddl__log(DDL__WARN,
             "rank %d on %s: the creation of a comm of %d ranks has waited for %.1f s: not there "
             "yet: rank%s %s%s%s",
             m->rank, ddl__endpoint_address(m->endpoint)->host, m->size,
             (double)(now - m->begun) * 1e-9, strchr(list, ',') ? "s" : "", list,
             refusal[0] ? "; it refused " : "", refusal);
}

/* A member that cannot create the comm says so, or why it has hung up; who just goes away again
 * ends the creation for all as well. */
static ddl_status check_present(const ddl__wireup *m)
{
    ddl__create_failure failure;
    ddl__reason reason;
    warn_late(m);
    if (ddl__endpoint_create_failure(m->endpoint, m->comm, &failure) &&
        (unsigned)failure.from < (unsigned)m->size) {
        *m->told = (ddl__reason){failure.status, failure.from, failure.attempt, NULL};
        return ddl__fail(failure.status, "rank %d on %s could not create the comm: %s",
                         failure.from, m->addresses[failure.from].host, failure.text);
    }
    for (int i = 0; i < m->size; i++) {
        ddl__link *link = m->links[i];
        if (!link)
            continue;
        link->ops->poll(link);
        if (link->state == DDL__LINK_ABORTED && ddl__reason_read(link->reason, &reason)) {
            *m->told = reason;
            if (reason.from >= 0)
                ddl__endpoint_heard(m->endpoint, m->comm, reason.from, reason.attempt);
            return ddl__fail(reason.status, "%s", reason.text);
        }
        if (link->state != DDL__LINK_OPEN)
            return ddl__fail(DDL_EPEER, "rank %d on %s hung up while the comm was created: %s", i,
                             m->addresses[i].host,
                             link->reason[0] ? link->reason : "it failed itself");
    }
    return DDL_OK;
}

/* Until the peer's comm says something, if it can. */
static ddl_status await_word(const ddl__wireup *m, int fd)
{
    ddl_status status;
    do {
        int64_t tick = ddl__now() + PRESENT_NS;
        if (ddl__await(fd, POLLIN, tick < m->deadline ? tick : m->deadline))
            return DDL_OK;
        status = check_present(m);
    } while (status == DDL_OK && ddl__now() < m->deadline);
    return status;
}

/* What the peer's comm says to us; *passed is the caller's also on failure. */
static ddl_status hear(const ddl__wireup *m, int peer, int fd, const ddl__session *session,
                       ddl__hello *answer, int *passed)
{
    const char *host = m->addresses[peer].host;
    ddl_status status = await_word(m, fd);
    if (status != DDL_OK)
        return status;
    if (!ddl__recv_with_fd(fd, answer, sizeof *answer, passed, m->deadline)) {
        int error = errno;
        if ((status = check_present(m)) != DDL_OK) /* it may have told why */
            return status;
        errno = error;
        if (errno == ETIMEDOUT)
            return ddl__fail(DDL_ETIMEDOUT,
                             "rank %d on %s is there, but did not create this comm in time", peer,
                             host);
        return ddl__fail(DDL_EPEER, "rank %d on %s hung up while the comm was created: %s", peer,
                         host, strerror(errno));
    }
    bool proven =
        ddl__answer_is_proven(ddl__endpoint_job(m->endpoint), session, DDL__AUTH_MEMBER, answer);
    ddl__hello_clean(answer);
    if (ddl__hello_check(answer) != DDL_OK)
        snprintf(answer->text, sizeof answer->text, "%s", ddl__message());
    else if (!proven)
        snprintf(answer->text, sizeof answer->text, "its answer was altered on its way");
    else if (answer->status == DDL_OK)
        return DDL_OK;
    return ddl__fail(DDL_EREFUSED, "rank %d on %s refused: %s", peer, host, answer->text);
}

/* Wait until the peer's comm accepts us, and make the link. */
static ddl_status enter(const ddl__wireup *m, int peer, dialing *d)
{
    ddl__hello answer;
    int passed = -1;
    ddl_status status = hear(m, peer, d->fd, &d->session, &answer, &passed);
    if (status == DDL_OK) {
        if (!make_links(m, peer, &d->hello, &d->session, DDL__DIALER, d->fd, passed, answer.arena))
            status = DDL_ESYSTEM;
    } else if (passed >= 0) {
        close(passed);
    }
    if (status == DDL_OK)
        d->fd = -1; /* the link's */
    give_up(d);
    return status;
}

/* What a rank does to join a lower one. All are dialed before an answer is waited for. */
typedef struct approach {
    dialing dialing;
    dialing messages; /* dialed beside it where neither has lanes */
    bool local, tcp;  /* which way it was begun; tcp: messages have connections of their own */
    bool here;        /* it has a unix socket on this host */
    ddl__paths paths;
    unsigned first, lanes; /* the path by which the peer answers; of the link, 0: none */
    ddl_status status;     /* of the last path that was tried, */
    char why[200];         /* and what was wrong with it */
} approach;

/* A connection to the peer's unix socket, or -1 with the status. ECONNREFUSED: nobody listens by
 * its name, so it is not *here. A full backlog says that it is: wait for room. */
static int connect_local(const ddl__wireup *m, int peer, bool *here, ddl_status *status)
{
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&m->addresses[peer].endpoint, &to);
    for (;;) {
        int64_t tick = ddl__now() + PRESENT_NS;
        int fd = ddl__dial((struct sockaddr *)&to, length, tick < m->deadline ? tick : m->deadline);
        *here = fd >= 0 || errno != ECONNREFUSED;
        if (fd >= 0)
            return fd;
        if (errno != ETIMEDOUT || ddl__now() >= m->deadline)
            break;
        if ((*status = check_present(m)) != DDL_OK)
            return -1;
    }
    *status = ddl__fail(DDL_EUNREACHABLE, "rank %d on %s shares no memory with rank %d: %s", peer,
                        m->addresses[peer].host, m->rank, strerror(errno));
    return -1;
}

/* To the peer's unix socket. DDL_EUNREACHABLE when it is not here or must not be used. */
static ddl_status dial_local(const ddl__wireup *m, int peer, approach *a)
{
    ddl_status status = DDL_OK;
    int fd = connect_local(m, peer, &a->here, &status);
    if (fd < 0)
        return status;
    bool ours = ddl__same_user(fd); /* our memory is for no other */
    uint8_t kind = m->kinds & DDL_LINK_INPROC && ddl__same_process(fd) ? DDL__CONN_INPROC
                   : m->kinds & DDL_LINK_SHM && ours                   ? DDL__CONN_SHM
                                                                       : 0;
    if (kind) {
        ddl__hello hello = introduce(m, peer, kind);
        return initiate(m, &a->dialing, fd, &hello);
    }
    close(fd);
    return ddl__fail(DDL_EUNREACHABLE, "rank %d on %s does not share memory: %s", peer,
                     m->addresses[peer].host, ours ? "not allowed" : "another user");
}

/* What the peer answers there. */
static ddl_status enter_local(const ddl__wireup *m, int peer, dialing *d)
{
    char why[DDL__MESSAGE_MAX - 128];
    if (await_admission(m, d) == DDL_OK)
        return enter(m, peer, d);
    snprintf(why, sizeof why, "%s", ddl__message());
    return ddl__fail(DDL_EUNREACHABLE, "rank %d on %s does not share memory: %s", peer,
                     m->addresses[peer].host, why);
}

/* Start a handshake with the peer over a path. */
static ddl_status come(const ddl__wireup *m, int peer, dialing *d, uint8_t kind, unsigned lane,
                       ddl__path path)
{
    struct sockaddr_storage to, from;
    struct sockaddr *own = NULL;
    socklen_t length = ddl__address_ip(&m->addresses[peer], (unsigned)path.theirs, &to);
    if (path.ours >= 0) {
        ddl__address_of(&ddl__endpoint_address(m->endpoint)->ips[path.ours], 0, &from);
        own = (struct sockaddr *)&from;
    }
    int fd = ddl__dial_from(own, (struct sockaddr *)&to, length, dial_deadline(m));
    if (fd < 0)
        return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    ddl__hello hello = introduce(m, peer, kind);
    hello.lane = (uint8_t)lane;
    return initiate(m, d, fd, &hello);
}

static void warn_unused(const ddl__wireup *m, int peer, ddl__path path)
{
    const ddl__address *own = ddl__endpoint_address(m->endpoint);
    ddl__log(DDL__WARN, "rank %d on %s is not reached over %s, which is not used: %s", peer,
             m->addresses[peer].host, path.ours < 0 ? "" : own->ips[path.ours].name,
             ddl__message());
}

/* The present path does not do: the next one. */
static void leave_path(const ddl__wireup *m, int peer, approach *a, ddl_status status)
{
    a->status = status;
    snprintf(a->why, sizeof a->why, "%s", ddl__message());
    give_up(&a->messages);
    if (a->first + 1 < a->paths.at_once)
        warn_unused(m, peer, a->paths.path[a->first]);
    a->first++;
}

/* Dial by the first path on which there is somebody. */
static void dial_path(const ddl__wireup *m, int peer, approach *a, uint8_t kind)
{
    while (a->dialing.fd < 0 && a->first < a->paths.n) {
        ddl_status status = come(m, peer, &a->dialing, kind, 0, a->paths.path[a->first]);
        if (status != DDL_OK)
            leave_path(m, peer, a, status);
    }
}

static void begin_tcp(const ddl__wireup *m, int peer, approach *a)
{
    a->tcp = true;
    a->paths = ddl__discover_paths(ddl__endpoint_address(m->endpoint), &m->addresses[peer]);
    a->status = DDL_EUNREACHABLE;
    snprintf(a->why, sizeof a->why, "it has no address that leads to it from here");
    dial_path(m, peer, a, DDL__CONN_TCP);
    if (a->dialing.fd >= 0 && a->paths.at_once * ddl__endpoint_sockets(m->endpoint) == 1)
        come(m, peer, &a->messages, DDL__CONN_MESSAGES, 0, a->paths.path[a->first]);
}

/* What the peer answers there, or by one of the paths that are left. */
static ddl_status enter_tcp(const ddl__wireup *m, int peer, approach *a, uint8_t kind)
{
    for (;;) {
        dial_path(m, peer, a, kind);
        if (a->dialing.fd < 0)
            return ddl__fail(a->status, "rank %d on %s, port %u: %s", peer, m->addresses[peer].host,
                             m->addresses[peer].port, a->why);
        ddl_status status = await_admission(m, &a->dialing);
        if (status == DDL_OK)
            return enter(m, peer, &a->dialing);
        leave_path(m, peer, a, status);
    }
}

/* A path that does not lead there is given up for one that does. */
static ddl_status dial_lanes(const ddl__wireup *m, int peer, approach *a, uint8_t kind)
{
    ddl_status status = DDL_OK;
    dialing d = {.fd = -1};
    for (unsigned lane = 1; status == DDL_OK && lane <= a->lanes; lane++) {
        ddl__path *path = &a->paths.path[(lane - 1) % a->paths.at_once];
        status = come(m, peer, &d, kind, lane, *path);
        if (status == DDL_OK)
            status = await_admission(m, &d);
        if (status != DDL_OK) {
            warn_unused(m, peer, *path);
            *path = a->paths.path[a->first];
            status = come(m, peer, &d, kind, lane, *path);
            if (status == DDL_OK)
                status = await_admission(m, &d);
        }
        if (status == DDL_OK)
            status = enter(m, peer, &d);
    }
    return status;
}

static void log_paths(const ddl__wireup *m, int peer, unsigned lanes)
{
    char text[400];
    ddl__tcp_link_describe(m->links[peer], text, sizeof text);
    ddl__log(DDL__INFO, "rank %d reaches rank %d on %s over %s: %u socket%s", m->rank, peer,
             m->addresses[peer].host, text, lanes ? lanes : 1, lanes ? "s" : "");
}

/* The link, with its lanes. */
static ddl_status join_tcp(const ddl__wireup *m, int peer, approach *a)
{
    ddl_status status = enter_tcp(m, peer, a, DDL__CONN_TCP);
    ddl__paths *paths = &a->paths;
    if (a->first >= paths->at_once) { /* none of those that were chosen */
        paths->path[0] = paths->path[a->first < paths->n ? a->first : 0];
        paths->at_once = 1;
        a->first = 0;
    }
    for (unsigned dead = 0; dead < a->first; dead++) /* its lanes would wait for it once more */
        paths->path[dead] = paths->path[a->first];
    unsigned sockets = paths->at_once * ddl__endpoint_sockets(m->endpoint);
    a->lanes = sockets > DDL__LANES_MAX ? DDL__LANES_MAX : sockets > 1 ? sockets : 0;
    return status == DDL_OK ? dial_lanes(m, peer, a, DDL__CONN_TCP) : status;
}

static ddl_status join_messages(const ddl__wireup *m, int peer, approach *a)
{
    ddl_status status = enter_tcp(m, peer, a, DDL__CONN_MESSAGES);
    if (status == DDL_OK)
        status = dial_lanes(m, peer, a, DDL__CONN_MESSAGES);
    if (status == DDL_OK)
        log_paths(m, peer, a->lanes);
    return status;
}

static bool may_share(const ddl__wireup *m)
{
    return m->kinds & (DDL_LINK_SHM | DDL_LINK_INPROC);
}

/* Say so where shared memory was to be expected. */
static void fall_back_to_tcp(const ddl__wireup *m, int peer, approach *a)
{
    if (a->here)
        ddl__log(m->kinds & DDL_LINK_SHM ? DDL__WARN : DDL__INFO,
                 "rank %d uses TCP to rank %d of the same host: %s", m->rank, peer, ddl__message());
    begin_tcp(m, peer, a);
}

static void begin(const ddl__wireup *m, int peer, approach *a)
{
    a->local = may_share(m) && dial_local(m, peer, a) == DDL_OK;
    if (!a->local && m->kinds & DDL_LINK_TCP)
        fall_back_to_tcp(m, peer, a);
}

static ddl_status reached(const ddl__wireup *m, int peer, ddl_status status)
{
    if (status != DDL_EUNREACHABLE || ddl__now() < m->deadline)
        return status;
    return ddl__fail(DDL_ETIMEDOUT,
                     "rank %d on %s did not answer before the creation's time was up", peer,
                     m->addresses[peer].host);
}

/* The first link with a peer that was dialed. */
static ddl_status join(const ddl__wireup *m, int peer, approach *a)
{
    ddl_status status = DDL_EUNREACHABLE;
    if (may_share(m) && !a->tcp) {
        status = a->local ? DDL_OK : dial_local(m, peer, a);
        if (status == DDL_OK)
            status = enter_local(m, peer, &a->dialing);
    }
    if (m->told->status != DDL_OK) /* whatever that status is, the peer was reached */
        return status;
    if ((status == DDL_EUNREACHABLE || status == DDL_EREFUSED) && m->kinds & DDL_LINK_TCP) {
        if (!a->tcp)
            fall_back_to_tcp(m, peer, a);
        status = join_tcp(m, peer, a);
    }
    return reached(m, peer, status);
}

/* Dial all lower ranks, and then hear one after the other. */
static ddl_status dial_all(const ddl__wireup *m, approach *all)
{
    ddl_status status = check_present(m);
    for (int peer = 0; peer < m->rank && status == DDL_OK; peer++)
        begin(m, peer, &all[peer]);
    for (int peer = 0; peer < m->rank && status == DDL_OK; peer++)
        status = join(m, peer, &all[peer]);
    bool checked = false;
    for (int peer = 0; peer < m->rank && status == DDL_OK; peer++) {
        if (!all[peer].tcp)
            continue;
        if (!checked)
            status = check_present(m);
        checked = true;
        all[peer].dialing = all[peer].messages;
        all[peer].messages.fd = -1;
        dial_path(m, peer, &all[peer], DDL__CONN_MESSAGES);
    }
    for (int peer = 0; peer < m->rank && status == DDL_OK; peer++)
        if (all[peer].tcp)
            status = reached(m, peer, join_messages(m, peer, &all[peer]));
    return status;
}

/* Lanes come in order, each link's behind the link; the second link has as many as the first. */
static const char *lane_objection(const ddl__hello *hello, const ddl__link *link,
                                  const ddl__link *messages)
{
    bool second = hello->kind == DDL__CONN_MESSAGES;
    const ddl__link *to = second ? messages : link;
    if (!over_tcp(hello->kind) || !link || !to || !is_tcp(to))
        return "a lane came without its link";
    if (hello->lane != ddl__tcp_link_lanes(to) + 1 ||
        (second ? hello->lane > ddl__tcp_link_lanes(link) : messages != NULL))
        return "a lane came out of order";
    return NULL;
}

/* Why an accepted connection cannot be a member's, or NULL. */
static const char *objection(const ddl__wireup *m, const ddl__hello *hello)
{
    if (hello->to != (uint32_t)m->rank || hello->size != (uint32_t)m->size ||
        hello->from <= (uint32_t)m->rank || hello->from >= (uint32_t)m->size)
        return "its rank or size does not fit this comm";
    bool second = hello->kind == DDL__CONN_MESSAGES;
    if (hello->kind == DDL__CONN_CONTROL)
        return "nobody is to be watched yet";
    const ddl__link *link = m->links[hello->from], *messages = m->messages[hello->from];
    if (hello->lane)
        return lane_objection(hello, link, messages);
    if (second ? messages : link)
        return "this rank is here already";
    uint32_t link_kind = over_tcp(hello->kind)          ? DDL_LINK_TCP
                         : hello->kind == DDL__CONN_SHM ? DDL_LINK_SHM
                                                        : DDL_LINK_INPROC;
    return m->kinds & link_kind ? NULL : "this kind of link is not allowed here";
}

/* Forget what make_links made. */
static void unmake_links(const ddl__wireup *m, int peer, uint8_t kind)
{
    ddl__link **made = kind == DDL__CONN_MESSAGES ? &m->messages[peer] : &m->links[peer];
    (*made)->ops->destroy(*made);
    *made = NULL;
    if (!over_tcp(kind))
        m->messages[peer] = NULL;
}

/* Nothing of it was altered on its way. */
static void label(const ddl__wireup *m, const ddl__accepted *accepted, ddl__hello *answer)
{
    ddl__answer_prove(ddl__endpoint_job(m->endpoint), &accepted->session, DDL__AUTH_MEMBER, answer);
}

/* Whether a member is here now, with both links: who does not fit is refused and changes nothing.
 */
static bool receive(const ddl__wireup *m, ddl__accepted *accepted)
{
    const ddl__hello *hello = &accepted->hello;
    const char *why = objection(m, hello);
    int peer = (int)hello->from;
    if (!why) {
        bool made = make_links(m, peer, hello, &accepted->session, DDL__DIALED, accepted->fd,
                               accepted->passed, hello->arena);
        why = made ? NULL : ddl__message();
    } else {
        if (hello->kind == DDL__CONN_INPROC)
            ddl__arena_drop((ddl__arena *)(uintptr_t)hello->arena);
        if (accepted->passed >= 0)
            close(accepted->passed);
    }
    ddl__hello answer = ddl__hello_answer(hello, why ? DDL_EREFUSED : DDL_OK, why);
    if (why) {
        label(m, accepted, &answer);
        ddl__send_all(accepted->fd, &answer, sizeof answer, dial_deadline(m));
        close(accepted->fd);
        ddl__log(DDL__INFO, "rank %u was refused: %s", hello->from, answer.text);
        return false;
    }
    if (hello->kind == DDL__CONN_INPROC)
        answer.arena = (uintptr_t)ddl__arena_share(m->arena);
    label(m, accepted, &answer);
    int passed = hello->kind == DDL__CONN_SHM ? ddl__arena_fd(m->arena) : -1;
    if (ddl__send_with_fd(accepted->fd, &answer, sizeof answer, passed, dial_deadline(m)))
        return is_whole(m, peer);
    if (hello->kind == DDL__CONN_INPROC)
        ddl__arena_drop(m->arena);
    unmake_links(m, peer, hello->kind);
    return false;
}

static ddl_status missing(const ddl__wireup *m)
{
    char list[200], refusal[160];
    ddl__endpoint_refusal(m->endpoint, refusal, sizeof refusal);
    list_missing(m, list, sizeof list);
    return ddl__fail(DDL_ETIMEDOUT, "rank %d waited for ranks that did not come in time: %s%s%s",
                     m->rank, list, refusal[0] ? "; it refused " : "", refusal);
}

static ddl_status dial_lower(const ddl__wireup *m)
{
    approach *all = m->rank ? calloc((size_t)m->rank, sizeof *all) : NULL;
    if (m->rank && !all)
        return ddl__fail(DDL_ENOMEM, "no memory to dial %d members", m->rank);
    for (int peer = 0; peer < m->rank; peer++)
        all[peer].dialing.fd = all[peer].messages.fd = -1;
    ddl_status status = dial_all(m, all);
    for (int peer = 0; peer < m->rank; peer++) {
        give_up(&all[peer].dialing); /* memory that was on its way is the peer's */
        give_up(&all[peer].messages);
    }
    free(all);
    return status;
}

static ddl_status receive_higher(const ddl__wireup *m)
{
    for (int left = m->size - 1 - m->rank; left > 0;) {
        ddl__accepted accepted;
        int64_t tick = ddl__now() + PRESENT_NS;
        if (ddl__endpoint_accept(m->endpoint, m->slot, false,
                                 tick < m->deadline ? tick : m->deadline, &accepted)) {
            left -= receive(m, &accepted);
            ddl__session_end(&accepted.session);
            continue;
        }
        ddl_status status = check_present(m);
        if (status != DDL_OK)
            return status;
        if (ddl__now() >= m->deadline)
            return missing(m);
    }
    return DDL_OK;
}

ddl_status ddl__wireup_run(const ddl__wireup *m)
{
    ddl_status status = dial_lower(m);
    return status == DDL_OK ? receive_higher(m) : status;
}
