#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "connect/rendezvous.h"
#include "net/socket.h"

enum {
    CALLERS = 256,     /* heard at a time */
    STATE_MAX = 600,   /* characters of who is here and who is missing */
    REFUSALS = 16,     /* that are warned of */
    NO_ROOM_US = 10000 /* between two attempts to accept where descriptors are scarce */
};

typedef struct host {
    ddl__rendezvous_plan *plan;
    ddl_endpoint *endpoint;
    int size;
    ddl__rendezvous_record *records; /* by rank */
    int *fds;                        /* by rank, -1: not here yet */
    ddl__session *sessions;
    ddl__seal **seals;
    int64_t deadline;
    char refusal[160];            /* the last one, or who has left */
    ddl__digest warned[REFUSALS]; /* of which refusals */
    unsigned n_warned;
    bool short_of_descriptors; /* that was warned of */
} host;

/* Who has called and not yet shown a whole record. */
typedef struct caller {
    ddl__inbound inbound; /* fd -1: none */
    bool proven;
    ddl__seal *seal;
    size_t have; /* of the piece */
    int64_t deadline;
    struct {
        ddl__rendezvous_record record;
        unsigned char proof[DDL__KEY];
    } piece;
} caller;
_Static_assert(sizeof(((caller *)0)->piece) == sizeof(ddl__rendezvous_record) + DDL__KEY, "no gap");

static void hang_up(caller *from)
{
    if (from->inbound.fd >= 0)
        close(from->inbound.fd);
    if (from->inbound.passed >= 0)
        close(from->inbound.passed);
    from->inbound.fd = from->inbound.passed = -1;
    ddl__session_end(&from->inbound.session);
    ddl__seal_destroy(from->seal);
    from->seal = NULL;
}

/* Whether one who was here has gone again; its place is free then. */
static bool has_left(host *h, int rank)
{
    char byte;
    ssize_t n = recv(h->fds[rank], &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return false;
    close(h->fds[rank]);
    h->fds[rank] = -1;
    ddl__seal_destroy(h->seals[rank]);
    h->seals[rank] = NULL;
    ddl__session_end(&h->sessions[rank]);
    snprintf(h->refusal, sizeof h->refusal, "; rank %d came and left", rank);
    return true;
}

/* Where a caller comes from, as "10.0.0.2". */
static void name_caller(const caller *from, char *text, socklen_t size)
{
    struct sockaddr_storage end = {0};
    socklen_t length = sizeof end;
    if (getpeername(from->inbound.fd, (struct sockaddr *)&end, &length) ||
        !inet_ntop(end.ss_family, ddl__address_bytes((struct sockaddr *)&end), text, size))
        snprintf(text, size, "?");
}

/* Warn of each rank and reason once, and of so many in all: whoever finds the port can be refused.
 */
static void note_refusal(host *h, const caller *from, int rank, const char *why)
{
    char ip[INET6_ADDRSTRLEN];
    ddl__digest digest = {{0, 0}};
    snprintf(h->refusal, sizeof h->refusal, "; it refused rank %d: %s", rank, why);
    ddl__digest_add(&digest, h->refusal, strlen(h->refusal));
    for (unsigned i = 0; i < h->n_warned; i++)
        if (ddl__digest_equal(h->warned[i], digest))
            return;
    if (h->n_warned == REFUSALS)
        return;
    h->warned[h->n_warned++] = digest;
    name_caller(from, ip, sizeof ip);
    ddl__log(DDL__WARN, "rank 0 on %s: the rendezvous refused rank %d from %s: %s%s",
             ddl__endpoint_address(h->endpoint)->host, rank, ip, why,
             h->n_warned == REFUSALS ? "; no more refusals are shown" : "");
}

/* The record is whole: the caller is a rank now, or is told why it is none. */
static void admit(host *h, caller *from)
{
    ddl__rendezvous_record *c = &from->piece.record;
    const ddl__job *job = ddl__endpoint_job(h->endpoint);
    int fd = from->inbound.fd;
    if (c->magic != DDL__RECORD_MAGIC ||
        !ddl__is_proven(job, &from->inbound.session, DDL__AUTH_RECORD, c, sizeof *c,
                        from->piece.proof)) {
        hang_up(from);
        return;
    }
    bool fits = ddl__rendezvous_record_check(c, h->size);
    if (fits && h->fds[c->rank] >= 0 && !has_left(h, c->rank)) {
        fits = false;
        c->status = DDL_EREFUSED;
        snprintf(c->text, sizeof c->text, "rank %d is here already", c->rank);
    }
    if (fits) {
        h->records[c->rank] = *c;
        h->fds[c->rank] = fd;
        h->sessions[c->rank] = from->inbound.session;
        h->seals[c->rank] = from->seal;
        from->inbound.fd = -1;
        from->seal = NULL;
    } else {
        ddl__seal_send_all(from->seal, fd, c, sizeof *c, from->deadline);
        note_refusal(h, from, c->rank, c->text);
        hang_up(from);
    }
}

/* Why a client is not for this rendezvous, or NULL. */
static const char *objection(const ddl__hello *hello)
{
    return hello->kind == DDL__CONN_RENDEZVOUS ? NULL : "this is a rendezvous";
}

/* Its handshake. */
static void read_inbound(host *h, caller *from)
{
    const ddl__job *job = ddl__endpoint_job(h->endpoint);
    const ddl__hello *hello = &from->inbound.said.hello;
    switch (ddl__inbound_read(job, &from->inbound)) {
    case DDL__INBOUND_NONE: return;
    case DDL__INBOUND_HELLO:
        if (ddl__inbound_challenge(job, &from->inbound, objection(hello)))
            return;
        if (from->inbound.have >= sizeof *hello)
            note_refusal(h, from, (int)hello->from, ddl__message());
        break;
    case DDL__INBOUND_PROVEN:
        from->proven = ddl__session_seal(job, &from->inbound.session, from->inbound.fd, DDL__DIALED,
                                         &from->seal) == DDL_OK;
        if (from->proven)
            return;
        break;
    case DDL__INBOUND_REFUSED: note_refusal(h, from, (int)hello->from, ddl__message()); break;
    case DDL__INBOUND_CLOSED: break;
    }
    hang_up(from);
}

/* Read on; who says nothing holds up nobody. */
static void hear(host *h, caller *from)
{
    if (!from->proven) {
        read_inbound(h, from);
        return;
    }
    ssize_t n =
        ddl__seal_recv_bytes(from->seal, from->inbound.fd, (char *)&from->piece + from->have,
                             sizeof from->piece - from->have);
    if (n > 0)
        from->have += (size_t)n;
    if (from->have == sizeof from->piece)
        admit(h, from);
    else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        hang_up(from);
}

/* Of the callers, the one that gives way: the one who has taken longest, of those who have proven
 * nothing if there are any. NULL: there are none. */
static caller *oldest_of(caller *callers)
{
    caller *oldest = NULL;
    for (int i = 0; i < CALLERS; i++) {
        caller *c = &callers[i];
        if (c->inbound.fd >= 0 &&
            (!oldest ||
             (c->proven == oldest->proven ? c->deadline < oldest->deadline : oldest->proven)))
            oldest = c;
    }
    return oldest;
}

/* A place for one who has just called. */
static caller *slot(caller *callers)
{
    for (int i = 0; i < CALLERS; i++)
        if (callers[i].inbound.fd < 0)
            return &callers[i];
    caller *oldest = oldest_of(callers);
    hang_up(oldest);
    return oldest;
}

/* Why nobody could be accepted: mostly that the one who called has left. One who goes on waiting
 * needs a descriptor, which a caller that has proven nothing may give. */
static ddl_status make_room(host *h, caller *callers)
{
    int error = errno;
    caller *oldest = oldest_of(callers);
    if (error == EBADF || error == EINVAL || error == ENOTSOCK)
        return ddl__fail(DDL_ESYSTEM, "the rendezvous cannot accept anybody: %s", strerror(error));
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM)
        return DDL_OK;
    if (!h->short_of_descriptors)
        ddl__log(DDL__WARN,
                 "rank 0 on %s: the rendezvous has no descriptor for another rank: %s; "
                 "raise ulimit -n",
                 ddl__endpoint_address(h->endpoint)->host, strerror(error));
    h->short_of_descriptors = true;
    if (oldest && !oldest->proven)
        hang_up(oldest);
    usleep(NO_ROOM_US);
    return DDL_OK;
}

static ddl_status take_caller(host *h, int listener, caller *callers)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return make_room(h, callers);
    caller *c = slot(callers);
    memset(c, 0, sizeof *c);
    c->inbound.fd = fd;
    c->inbound.passed = -1;
    c->deadline = ddl__now() + DDL__HANDSHAKE_LIMIT;
    return DDL_OK;
}

/* Wait for callers and for what they say, until the nearest of their limits. Only those that are
 * there are waited for, since poll takes no more entries than the process may have descriptors. */
static ddl_status attend(host *h, int listener, caller *callers)
{
    struct pollfd polls[CALLERS + 1] = {{.fd = listener, .events = POLLIN}};
    caller *polled[CALLERS + 1];
    nfds_t n = 1;
    int64_t now = ddl__now();
    int64_t until = h->deadline < h->plan->warn_at ? h->deadline : h->plan->warn_at;
    for (int i = 0; i < CALLERS; i++) {
        caller *c = &callers[i];
        if (c->inbound.fd >= 0 && c->deadline <= now)
            hang_up(c);
        if (c->inbound.fd < 0)
            continue;
        polled[n] = c;
        polls[n++] = (struct pollfd){.fd = c->inbound.fd, .events = POLLIN};
        if (c->deadline < until)
            until = c->deadline;
    }
    int64_t left = until - now < 1000000000 ? (until - now) / 1000000 + 1 : 1000;
    int ready = poll(polls, n, left < 0 ? 0 : (int)left);
    if (ready < 0 && errno != EINTR)
        return ddl__fail(DDL_ESYSTEM, "the rendezvous cannot wait for %u connections: poll: %s",
                         (unsigned)n, strerror(errno));
    if (ready <= 0)
        return DDL_OK;
    for (nfds_t i = 1; i < n; i++)
        if (polls[i].revents)
            hear(h, polled[i]);
    return polls[0].revents ? take_caller(h, listener, callers) : DDL_OK;
}

/* "have ranks 0-2 of 4, waiting for 3; it refused rank 3: ..." */
static void describe_missing(const host *h, char *text, size_t size)
{
    char lists[2][160] = {"", ""};
    size_t n[2] = {0, 0};
    for (int first = 0; first < h->size; first++) {
        bool here = first == 0 || h->fds[first] >= 0;
        int last = first;
        while (last + 1 < h->size && (h->fds[last + 1] >= 0) == here)
            last++;
        if (n[here] + 24 < sizeof *lists)
            n[here] += (size_t)snprintf(lists[here] + n[here], sizeof *lists - n[here],
                                        last > first ? "%s%d-%d" : "%s%d", n[here] ? ", " : "",
                                        first, last);
        first = last;
    }
    snprintf(text, size, "have rank%s %s of %d, waiting for %s%s",
             strpbrk(lists[1], ",-") ? "s" : "", lists[1], h->size, lists[0], h->refusal);
}

/* Those who are here learn from us how it stands. */
static void tell_all(const host *h, ddl_status status, const char *text, int64_t patience)
{
    ddl__rendezvous_record record = {
        .magic = DDL__RECORD_MAGIC, .protocol = DDL__PROTOCOL, .status = status};
    snprintf(record.text, sizeof record.text, "%s", text);
    for (int i = 1; i < h->size; i++)
        if (h->fds[i] >= 0)
            ddl__seal_send_all(h->seals[i], h->fds[i], &record, sizeof record,
                               ddl__now() + patience);
}

/* Those who are here learn it from us, not from our end. */
static void dismiss(const host *h, ddl_status status)
{
    tell_all(h, status, ddl__message(), DDL__RENDEZVOUS_FAILURE_LIMIT);
}

static ddl_status fail_for_missing(const host *h)
{
    char state[STATE_MAX];
    describe_missing(h, state, sizeof state);
    return ddl__fail(DDL_ETIMEDOUT, "the rendezvous timed out: %s", state);
}

/* All that have left; whether there are any. */
static bool any_left(host *h)
{
    bool any = false;
    for (int i = 1; i < h->size; i++)
        any = (h->fds[i] >= 0 && has_left(h, i)) || any;
    return any;
}

/* Somebody has not come for long. */
static void warn(host *h)
{
    char state[STATE_MAX];
    int64_t now = ddl__now();
    if (now < h->plan->warn_at)
        return;
    h->plan->warn_at = DDL__NEVER;
    any_left(h);
    describe_missing(h, state, sizeof state);
    ddl__log(DDL__WARN, "rank 0 on %s: the rendezvous has waited for %.1f s: %s",
             ddl__endpoint_address(h->endpoint)->host, (double)(now - h->plan->begun) * 1e-9,
             state);
    tell_all(h, DDL_INPROGRESS, state, 0);
}

static bool all_here(const host *h)
{
    for (int i = 1; i < h->size; i++)
        if (h->fds[i] < 0)
            return false;
    return true;
}

static ddl_status hand_out(const host *h)
{
    const ddl__job *job = ddl__endpoint_job(h->endpoint);
    unsigned char sum[DDL__KEY], proof[DDL__KEY];
    if (!ddl__rendezvous_sum(job, h->records, h->size, sum))
        return DDL_ESYSTEM;
    for (int i = 1; i < h->size; i++)
        if (!ddl__prove(job, &h->sessions[i], DDL__AUTH_RECORDS, sum, sizeof sum, proof) ||
            !ddl__seal_send_all(h->seals[i], h->fds[i], h->records,
                                (size_t)h->size * sizeof *h->records, h->deadline) ||
            !ddl__seal_send_all(h->seals[i], h->fds[i], proof, sizeof proof, h->deadline))
            return ddl__fail(DDL_EUNREACHABLE, "rank %d left the rendezvous: %s", i,
                             strerror(errno));
    return DDL_OK;
}

static ddl_status gather(host *h, int listener)
{
    caller *callers = calloc(CALLERS, sizeof *callers);
    if (!callers)
        return ddl__fail(DDL_ENOMEM, "no memory for callers");
    for (int i = 0; i < CALLERS; i++)
        callers[i].inbound.fd = callers[i].inbound.passed = -1;
    ddl_status status = DDL_OK;
    while (status == DDL_OK && (!all_here(h) || any_left(h)) && ddl__now() < h->deadline) {
        status = attend(h, listener, callers);
        warn(h);
    }
    for (int i = 0; i < CALLERS; i++)
        hang_up(&callers[i]);
    free(callers);
    if (status == DDL_OK && !any_left(h) && all_here(h))
        return hand_out(h);
    if (status == DDL_OK)
        status = fail_for_missing(h);
    dismiss(h, status);
    return status;
}

ddl_status ddl__rendezvous_root(ddl__rendezvous_plan *plan)
{
    int size = plan->size;
    uint16_t port = (uint16_t)atoi(plan->port);
    unsigned char ip[16];
    bool numeric =
        inet_pton(AF_INET, plan->host, ip) == 1 || inet_pton(AF_INET6, plan->host, ip) == 1;
    int listener = numeric ? ddl__listen(plan->host, &port) : -1;
    if (listener < 0) /* a name, or an address that others reach us by */
        listener = ddl__listen(NULL, &port);
    if (listener < 0)
        return DDL_ESYSTEM;
    host h = {.plan = plan,
              .endpoint = plan->endpoint,
              .size = size,
              .records = plan->records,
              .fds = malloc((size_t)size * sizeof *h.fds),
              .sessions = calloc((size_t)size, sizeof *h.sessions),
              .seals = calloc((size_t)size, sizeof(ddl__seal *)),
              .deadline = plan->deadline};
    ddl_status status = DDL_ENOMEM;
    if (h.fds && h.sessions && h.seals) {
        for (int i = 0; i < size; i++)
            h.fds[i] = -1;
        status = gather(&h, listener);
        for (int i = 0; i < size; i++) {
            ddl__session_end(&h.sessions[i]);
            if (h.fds[i] >= 0)
                close(h.fds[i]);
            ddl__seal_destroy(h.seals[i]);
        }
    } else {
        ddl__fail(DDL_ENOMEM, "no memory for %d ranks", size);
    }
    free(h.fds);
    free(h.sessions);
    free(h.seals);
    close(listener);
    return status;
}
