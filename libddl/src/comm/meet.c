/* Every rank dials all lower ranks, in order, and then receives the higher ones. A dialed rank
 * accepts after its own dialing, so waits point to lower ranks only and end at rank 0.
 *
 * Locality is proven: the dialer first tries the peer's abstract unix socket, which exists only in
 * the peer's network namespace and cannot be met by chance, and the two exchange the memfds of
 * their arenas over it. Where that fails they meet over TCP, by the paths that both hosts'
 * interfaces give (topo/interfaces.h). Each connection is accepted before the dialer opens the next
 * one: the link's, its lanes, the one for messages, and its lanes, of which there must be as many;
 * so the dialed rank knows without being told when all are there. */
#include "comm/meet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/discover.h"
#include "net/socket.h"

/* How long an address may take to answer before the next one is tried. */
static const int64_t DOOR_NS = 5 * 1000000000ll;

/* How often a waiting rank looks whether those who came are still there. */
static const int64_t PRESENT_NS = 100 * 1000000ll;

static int64_t door_deadline(const ddl__meeting *m)
{
    int64_t limit = ddl__now() + DOOR_NS;
    return limit < m->deadline ? limit : m->deadline;
}

static ddl__hello introduce(const ddl__meeting *m, int peer, uint8_t door)
{
    ddl__hello hello =
        ddl__hello_begin(ddl__endpoint_job(m->endpoint), door, m->rank, peer, m->size);
    hello.endpoint = m->addresses[peer].endpoint;
    hello.comm = m->comm;
    return hello;
}

static bool over_tcp(uint8_t door)
{
    return door == DDL__DOOR_TCP || door == DDL__DOOR_MESSAGES;
}

static bool is_tcp(const ddl__link *link)
{
    return !strcmp(link->ops->kind, "tcp");
}

/* As messages call it: "eth0 10.0.0.1 to 10.0.0.2". */
static void name_connection(const ddl__meeting *m, int fd, char *name, size_t size)
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
static ddl__link *make_tcp(const ddl__meeting *m, ddl__link *link, unsigned lane, int fd,
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
static bool make_links(const ddl__meeting *m, int peer, const ddl__hello *hello,
                       const ddl__session *session, ddl__side side, int fd, int passed,
                       uint64_t pointer)
{
    ddl__link *link = NULL;
    uint8_t door = hello->door;
    if (over_tcp(door)) {
        link = door == DDL__DOOR_TCP ? m->links[peer] : m->messages[peer];
        link = make_tcp(m, link, hello->lane, fd, session, side);
        if (!link)
            return false;
    } else {
        ddl__arena *theirs = door == DDL__DOOR_INPROC ? (ddl__arena *)(uintptr_t)pointer
                             : passed >= 0            ? ddl__arena_open(passed, (unsigned)m->rank)
                                                      : NULL;
        if (theirs)
            link = ddl__shm_link_create(m->arena, (unsigned)peer, theirs, (unsigned)m->rank, fd,
                                        door == DDL__DOOR_INPROC);
        else if (passed < 0)
            ddl__fail(DDL_EREFUSED, "no shared memory came with the hello");
        if (theirs && !link)
            ddl__arena_drop(theirs);
    }
    if (passed >= 0)
        close(passed);
    if (door != DDL__DOOR_MESSAGES)
        m->links[peer] = link;
    if (door != DDL__DOOR_TCP)
        m->messages[peer] = over_tcp(door) || !link ? link : ddl__shm_link_beside(link);
    return link;
}

/* Come in at the door, with our memory. */
static ddl_status knock(const ddl__meeting *m, int fd, ddl__hello *hello, ddl__session *session)
{
    bool handed, inproc = hello->door == DDL__DOOR_INPROC;
    int passed = hello->door == DDL__DOOR_SHM ? ddl__arena_fd(m->arena) : -1;
    if (inproc)
        hello->arena = (uintptr_t)ddl__arena_share(m->arena);
    ddl_status status = ddl__knock(ddl__endpoint_job(m->endpoint), fd, hello, passed,
                                   door_deadline(m), session, &handed);
    if (inproc && !handed)
        ddl__arena_drop(m->arena); /* the reference stayed here */
    return status;
}

/* A member that cannot create the comm says so, or why it has hung up; who just goes away again
 * ends the creation for all as well. */
static ddl_status check_present(const ddl__meeting *m)
{
    ddl__regret regret;
    ddl__reason reason;
    if (ddl__endpoint_regret(m->endpoint, m->comm, &regret) &&
        (unsigned)regret.from < (unsigned)m->size) {
        *m->told = (ddl__reason){regret.status, regret.from, regret.attempt, NULL};
        return ddl__fail(regret.status, "rank %d on %s could not create the comm: %s", regret.from,
                         m->addresses[regret.from].host, regret.text);
    }
    for (int i = 0; i < m->size; i++) {
        ddl__link *link = m->links[i];
        if (!link)
            continue;
        link->ops->attend(link);
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
static ddl_status await_word(const ddl__meeting *m, int fd)
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
static ddl_status hear(const ddl__meeting *m, int peer, int fd, const ddl__session *session,
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
        ddl__answer_is_proven(ddl__endpoint_job(m->endpoint), session, DDL__VOW_MEMBER, answer);
    ddl__hello_clean(answer);
    if (ddl__hello_check(answer) != DDL_OK)
        snprintf(answer->text, sizeof answer->text, "%s", ddl__message());
    else if (!proven)
        snprintf(answer->text, sizeof answer->text, "its answer was altered on its way");
    else if (answer->status == DDL_OK)
        return DDL_OK;
    return ddl__fail(DDL_EREFUSED, "rank %d on %s refused: %s", peer, host, answer->text);
}

/* Wait until the peer's comm accepts us, and make the link. Closes fd on failure; ends the session.
 */
static ddl_status enter(const ddl__meeting *m, int peer, int fd, const ddl__hello *hello,
                        ddl__session *session)
{
    ddl__hello answer;
    int passed = -1;
    ddl_status status = hear(m, peer, fd, session, &answer, &passed);
    if (status == DDL_OK) {
        if (!make_links(m, peer, hello, session, DDL__DIALER, fd, passed, answer.arena))
            status = DDL_ESYSTEM;
    } else if (passed >= 0) {
        close(passed);
    }
    ddl__session_end(session);
    if (status != DDL_OK)
        close(fd);
    return status;
}

/* Over the peer's unix socket. DDL_EUNREACHABLE when it is not here or does not want us so. */
static ddl_status dial_local(const ddl__meeting *m, int peer)
{
    struct sockaddr_storage address;
    socklen_t length = ddl__address_unix(&m->addresses[peer].endpoint, &address);
    int fd = ddl__dial((struct sockaddr *)&address, length, door_deadline(m));
    if (fd < 0)
        return ddl__fail(DDL_EUNREACHABLE, "rank %d on %s shares no memory with rank %d", peer,
                         m->addresses[peer].host, m->rank);
    bool ours = ddl__same_user(fd); /* our memory is for no other */
    uint8_t door = m->kinds & DDL_LINK_INPROC && ddl__same_process(fd) ? DDL__DOOR_INPROC
                   : m->kinds & DDL_LINK_SHM && ours                   ? DDL__DOOR_SHM
                                                                       : 0;
    ddl__hello hello = introduce(m, peer, door);
    ddl__session session;
    if (door && knock(m, fd, &hello, &session) == DDL_OK)
        return enter(m, peer, fd, &hello, &session);
    close(fd);
    char why[DDL__MESSAGE_MAX - 128];
    snprintf(why, sizeof why, "%s", door ? ddl__message() : ours ? "not allowed" : "another user");
    return ddl__fail(DDL_EUNREACHABLE, "rank %d on %s does not share memory: %s", peer,
                     m->addresses[peer].host, why);
}

/* Come to the peer's door by a path. The connection, or -1 with the reason. */
static int come(const ddl__meeting *m, int peer, ddl__hello *hello, ddl__path path,
                ddl__session *session, ddl_status *status)
{
    struct sockaddr_storage to, from;
    struct sockaddr *own = NULL;
    socklen_t length = ddl__address_ip(&m->addresses[peer], (unsigned)path.theirs, &to);
    if (path.ours >= 0) {
        ddl__address_of(&ddl__endpoint_address(m->endpoint)->ips[path.ours], 0, &from);
        own = (struct sockaddr *)&from;
    }
    int fd = ddl__dial_from(own, (struct sockaddr *)&to, length, door_deadline(m));
    if (fd < 0) {
        *status = ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
        return -1;
    }
    *status = knock(m, fd, hello, session);
    if (*status == DDL_OK)
        return fd;
    close(fd);
    return -1;
}

static void warn_unused(const ddl__meeting *m, int peer, ddl__path path)
{
    const ddl__address *own = ddl__endpoint_address(m->endpoint);
    ddl__log(DDL__WARN, "rank %d on %s is not reached over %s, which is not used: %s", peer,
             m->addresses[peer].host, path.ours < 0 ? "" : own->ips[path.ours].name,
             ddl__message());
}

/* Try the paths from number *first on, which becomes that of the one by which the peer answers. */
static ddl_status dial_link(const ddl__meeting *m, int peer, uint8_t door, const ddl__paths *paths,
                            unsigned *first)
{
    const ddl__address *to = &m->addresses[peer];
    char why[DDL__MESSAGE_MAX - 128] = "it has no address that leads to it from here";
    ddl_status status = DDL_EUNREACHABLE;
    ddl__hello hello = introduce(m, peer, door);
    ddl__session session;
    for (; *first < paths->n; ++*first) {
        int fd = come(m, peer, &hello, paths->path[*first], &session, &status);
        if (fd >= 0)
            return enter(m, peer, fd, &hello, &session);
        snprintf(why, sizeof why, "%s", ddl__message());
        if (*first + 1 < paths->at_once)
            warn_unused(m, peer, paths->path[*first]);
    }
    return ddl__fail(status, "rank %d on %s, port %u: %s", peer, to->host, to->port, why);
}

/* A path that does not lead there is given up for one that does. */
static ddl_status dial_lanes(const ddl__meeting *m, int peer, uint8_t door, ddl__paths *paths,
                             unsigned first, unsigned lanes)
{
    ddl_status status = DDL_OK;
    ddl__hello hello = introduce(m, peer, door);
    ddl__session session;
    for (unsigned lane = 1; status == DDL_OK && lane <= lanes; lane++) {
        ddl__path *path = &paths->path[(lane - 1) % paths->at_once];
        hello.lane = (uint8_t)lane;
        int fd = come(m, peer, &hello, *path, &session, &status);
        if (fd < 0) {
            warn_unused(m, peer, *path);
            *path = paths->path[first];
            fd = come(m, peer, &hello, *path, &session, &status);
        }
        if (fd >= 0)
            status = enter(m, peer, fd, &hello, &session);
    }
    return status;
}

static void log_paths(const ddl__meeting *m, int peer, unsigned lanes)
{
    char text[400];
    ddl__tcp_link_describe(m->links[peer], text, sizeof text);
    ddl__log(DDL__INFO, "rank %d reaches rank %d on %s over %s: %u socket%s", m->rank, peer,
             m->addresses[peer].host, text, lanes ? lanes : 1, lanes ? "s" : "");
}

static ddl_status dial_tcp(const ddl__meeting *m, int peer)
{
    ddl__paths paths = ddl__discover_paths(ddl__endpoint_address(m->endpoint), &m->addresses[peer]);
    unsigned first = 0;
    ddl_status status = dial_link(m, peer, DDL__DOOR_TCP, &paths, &first);
    if (first >= paths.at_once) { /* none of those that were chosen */
        paths.path[0] = paths.path[first < paths.n ? first : 0];
        paths.at_once = 1;
        first = 0;
    }
    for (unsigned dead = 0; dead < first; dead++) /* its lanes would wait for it once more */
        paths.path[dead] = paths.path[first];
    unsigned sockets = paths.at_once * ddl__endpoint_sockets(m->endpoint);
    unsigned lanes = sockets > DDL__LANES_MAX ? DDL__LANES_MAX : sockets > 1 ? sockets : 0;
    if (status == DDL_OK)
        status = dial_lanes(m, peer, DDL__DOOR_TCP, &paths, first, lanes);
    if (status == DDL_OK)
        status = dial_link(m, peer, DDL__DOOR_MESSAGES, &paths, &first);
    if (status == DDL_OK)
        status = dial_lanes(m, peer, DDL__DOOR_MESSAGES, &paths, first, lanes);
    if (status == DDL_OK)
        log_paths(m, peer, lanes);
    return status;
}

static ddl_status dial(const ddl__meeting *m, int peer)
{
    ddl_status status = DDL_EUNREACHABLE;
    if (m->kinds & (DDL_LINK_SHM | DDL_LINK_INPROC))
        status = dial_local(m, peer);
    if (m->told->status != DDL_OK) /* whatever that status is, the peer was reached */
        return status;
    if ((status == DDL_EUNREACHABLE || status == DDL_EREFUSED) && m->kinds & DDL_LINK_TCP)
        status = dial_tcp(m, peer);
    if (status != DDL_EUNREACHABLE || ddl__now() < m->deadline)
        return status;
    return ddl__fail(DDL_ETIMEDOUT,
                     "rank %d on %s did not answer before the creation's time was up", peer,
                     m->addresses[peer].host);
}

/* Lanes come in order, each link's behind the link; the second link has as many as the first. */
static const char *lane_objection(const ddl__hello *hello, const ddl__link *link,
                                  const ddl__link *messages)
{
    bool second = hello->door == DDL__DOOR_MESSAGES;
    const ddl__link *to = second ? messages : link;
    if (!over_tcp(hello->door) || !to || !is_tcp(to))
        return "a lane came without its link";
    if (hello->lane != ddl__tcp_link_lanes(to) + 1 ||
        (second ? hello->lane > ddl__tcp_link_lanes(link) : messages != NULL))
        return "a lane came out of order";
    return NULL;
}

/* Whether both links with the peer are there, with all their lanes. */
static bool is_whole(const ddl__meeting *m, int peer)
{
    const ddl__link *link = m->links[peer], *messages = m->messages[peer];
    return link && messages &&
           (!is_tcp(link) || ddl__tcp_link_lanes(link) == ddl__tcp_link_lanes(messages));
}

/* Why a guest cannot be a member, or NULL. */
static const char *objection(const ddl__meeting *m, const ddl__hello *hello)
{
    if (hello->to != (uint32_t)m->rank || hello->size != (uint32_t)m->size ||
        hello->from <= (uint32_t)m->rank || hello->from >= (uint32_t)m->size)
        return "its rank or size does not fit this comm";
    bool second = hello->door == DDL__DOOR_MESSAGES;
    if (hello->door == DDL__DOOR_CONTROL)
        return "nobody is to be watched yet";
    const ddl__link *link = m->links[hello->from], *messages = m->messages[hello->from];
    if (second && !link)
        return "a second connection came without a first one";
    if (hello->lane)
        return lane_objection(hello, link, messages);
    if (second ? messages : link)
        return "this rank is here already";
    uint32_t kind = over_tcp(hello->door)          ? DDL_LINK_TCP
                    : hello->door == DDL__DOOR_SHM ? DDL_LINK_SHM
                                                   : DDL_LINK_INPROC;
    return m->kinds & kind ? NULL : "this kind of link is not allowed here";
}

/* Forget what make_links made. */
static void unmake_links(const ddl__meeting *m, int peer, uint8_t door)
{
    ddl__link **made = door == DDL__DOOR_MESSAGES ? &m->messages[peer] : &m->links[peer];
    (*made)->ops->destroy(*made);
    *made = NULL;
    if (!over_tcp(door))
        m->messages[peer] = NULL;
}

/* Nothing of it was altered on its way. */
static void vow(const ddl__meeting *m, const ddl__guest *guest, ddl__hello *answer)
{
    ddl__answer_prove(ddl__endpoint_job(m->endpoint), &guest->session, DDL__VOW_MEMBER, answer);
}

/* Whether a member is here now, with both links: who does not fit is refused and changes nothing.
 */
static bool receive(const ddl__meeting *m, ddl__guest *guest)
{
    const ddl__hello *hello = &guest->hello;
    const char *why = objection(m, hello);
    int peer = (int)hello->from;
    if (!why) {
        bool made = make_links(m, peer, hello, &guest->session, DDL__DIALED, guest->fd,
                               guest->passed, hello->arena);
        why = made ? NULL : ddl__message();
    } else {
        if (hello->door == DDL__DOOR_INPROC)
            ddl__arena_drop((ddl__arena *)(uintptr_t)hello->arena);
        if (guest->passed >= 0)
            close(guest->passed);
    }
    ddl__hello answer = ddl__hello_answer(hello, why ? DDL_EREFUSED : DDL_OK, why);
    if (why) {
        vow(m, guest, &answer);
        ddl__send_all(guest->fd, &answer, sizeof answer, door_deadline(m));
        close(guest->fd);
        ddl__log(DDL__INFO, "rank %u was refused: %s", hello->from, answer.text);
        return false;
    }
    if (hello->door == DDL__DOOR_INPROC)
        answer.arena = (uintptr_t)ddl__arena_share(m->arena);
    vow(m, guest, &answer);
    int passed = hello->door == DDL__DOOR_SHM ? ddl__arena_fd(m->arena) : -1;
    if (ddl__send_with_fd(guest->fd, &answer, sizeof answer, passed, door_deadline(m)))
        return is_whole(m, peer);
    if (hello->door == DDL__DOOR_INPROC)
        ddl__arena_drop(m->arena);
    unmake_links(m, peer, hello->door);
    return false;
}

static ddl_status missing(const ddl__meeting *m)
{
    char list[200] = "", refusal[160];
    size_t n = 0;
    ddl__endpoint_refusal(m->endpoint, refusal, sizeof refusal);
    for (int i = m->rank + 1; i < m->size && n + 80 < sizeof list; i++)
        if (!is_whole(m, i))
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%d on %s", n ? ", " : "", i,
                                  m->addresses[i].host);
    return ddl__fail(DDL_ETIMEDOUT, "rank %d waited for ranks that did not come in time: %s%s%s",
                     m->rank, list, refusal[0] ? "; it refused " : "", refusal);
}

ddl_status ddl__meet(const ddl__meeting *m)
{
    for (int peer = 0; peer < m->rank; peer++) {
        ddl_status status = check_present(m);
        if (status == DDL_OK)
            status = dial(m, peer);
        if (status != DDL_OK)
            return status;
    }
    for (int left = m->size - 1 - m->rank; left > 0;) {
        ddl__guest guest;
        int64_t tick = ddl__now() + PRESENT_NS;
        if (ddl__endpoint_guest(m->endpoint, m->seat, tick < m->deadline ? tick : m->deadline,
                                &guest)) {
            left -= receive(m, &guest);
            ddl__session_end(&guest.session);
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
