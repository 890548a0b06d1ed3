/* Rank 0 listens at the url; every other rank brings its address there and gets the whole list.
 * Both prove that they know the job's secret (handshake.h), and that of the addresses nothing was
 * altered. Who does not fit is told why, and rank 0 goes on waiting for those who do. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/card.h"
#include "comm/comm.h"
#include "comm/environment.h"
#include "net/socket.h"

enum {
    RETRY_US = 20000,
    RETRIES = 20, /* of who was let in and then not heard: rank 0 has more callers than places */
    CALLERS = 256 /* heard at a time */
};

/* How long a caller may take to say its piece. */
static const int64_t CALLER_NS = 10 * 1000000000ll;

typedef struct place {
    char host[256], port[8];
} place;

static ddl_status parse_url(const char *url, place *to)
{
    static const char prefix[] = "tcp://";
    const char *host = url + sizeof prefix - 1;
    const char *colon = strrchr(url, ':');
    if (strncmp(url, prefix, sizeof prefix - 1) || !colon || colon < host)
        return ddl__fail(DDL_EINVAL, "url \"%s\" is not tcp://host:port", url);
    size_t n = (size_t)(colon - host);
    char *end;
    long port = strtol(colon + 1, &end, 10);
    if (n == 0 || n >= sizeof to->host || end == colon + 1 || *end || port < 1 || port > 65535)
        return ddl__fail(DDL_EINVAL, "url \"%s\" is not tcp://host:port", url);
    if (host[0] == '[' && host[n - 1] == ']' && n > 2) {
        host++;
        n -= 2;
    }
    memcpy(to->host, host, n);
    to->host[n] = 0;
    snprintf(to->port, sizeof to->port, "%ld", port);
    return DDL_OK;
}

static ddl__card write_card(ddl_endpoint *endpoint, int rank, int size)
{
    ddl__card c;
    memset(&c, 0, sizeof c);
    c.magic = DDL__CARD_MAGIC;
    c.protocol = DDL__PROTOCOL;
    c.rank = rank;
    c.size = size;
    c.length = (uint16_t)ddl__address_encode(ddl__endpoint_address(endpoint), c.address);
    return c;
}

/* --------------------------------------------------------------------------------------- rank 0 */

typedef struct host {
    ddl_endpoint *endpoint;
    int size;
    ddl__card *cards; /* by rank */
    int *fds;         /* by rank, -1: not here yet */
    ddl__session *sessions;
    ddl__seal **seals;
    int64_t deadline;
    char refusal[160]; /* the last one, or who has left */
} host;

/* Who has called and not yet shown a whole card. */
typedef struct caller {
    ddl__visit visit; /* fd -1: none */
    bool proven;
    ddl__seal *seal;
    size_t have; /* of the piece */
    int64_t deadline;
    struct {
        ddl__card card;
        unsigned char proof[DDL__KEY];
    } piece;
} caller;
_Static_assert(sizeof(((caller *)0)->piece) == sizeof(ddl__card) + DDL__KEY, "no gap");

static void hang_up(caller *from)
{
    if (from->visit.fd >= 0)
        close(from->visit.fd);
    if (from->visit.passed >= 0)
        close(from->visit.passed);
    from->visit.fd = from->visit.passed = -1;
    ddl__session_end(&from->visit.session);
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

static void note_refusal(host *h, int rank, const char *why)
{
    snprintf(h->refusal, sizeof h->refusal, "; it refused rank %d: %s", rank, why);
}

/* The card is whole: the caller is a rank now, or is told why it is none. */
static void admit(host *h, caller *from)
{
    ddl__card *c = &from->piece.card;
    const ddl__job *job = ddl__endpoint_job(h->endpoint);
    int fd = from->visit.fd;
    if (c->magic != DDL__CARD_MAGIC || !ddl__is_proven(job, &from->visit.session, DDL__VOW_CARD, c,
                                                       sizeof *c, from->piece.proof)) {
        hang_up(from);
        return;
    }
    bool fits = ddl__card_fits(c, h->size);
    if (fits && h->fds[c->rank] >= 0 && !has_left(h, c->rank)) {
        fits = false;
        c->status = DDL_EREFUSED;
        snprintf(c->text, sizeof c->text, "rank %d is here already", c->rank);
    }
    if (fits) {
        h->cards[c->rank] = *c;
        h->fds[c->rank] = fd;
        h->sessions[c->rank] = from->visit.session;
        h->seals[c->rank] = from->seal;
        from->visit.fd = -1;
        from->seal = NULL;
    } else {
        ddl__stream_send_all(from->seal, fd, c, sizeof *c, from->deadline);
        note_refusal(h, c->rank, c->text);
        hang_up(from);
    }
}

/* Why a caller is not at the right door, or NULL. */
static const char *objection(const ddl__hello *hello)
{
    return hello->door == DDL__DOOR_RENDEZVOUS ? NULL : "this is the door of a rendezvous";
}

/* Its handshake. */
static void hear_visit(host *h, caller *from)
{
    const ddl__job *job = ddl__endpoint_job(h->endpoint);
    const ddl__hello *hello = &from->visit.said.hello;
    switch (ddl__visit_read(job, &from->visit)) {
    case DDL__NEWS_NONE: return;
    case DDL__NEWS_HELLO:
        if (ddl__visit_challenge(job, &from->visit, objection(hello)))
            return;
        if (from->visit.have >= sizeof *hello)
            note_refusal(h, (int)hello->from, ddl__message());
        break;
    case DDL__NEWS_PROVEN:
        from->proven = ddl__session_seal(job, &from->visit.session, from->visit.fd, DDL__DIALED,
                                         &from->seal) == DDL_OK;
        if (from->proven)
            return;
        break;
    case DDL__NEWS_REFUSED: note_refusal(h, (int)hello->from, ddl__message()); break;
    case DDL__NEWS_OVER: break;
    }
    hang_up(from);
}

/* Read on; who says nothing holds up nobody. */
static void hear(host *h, caller *from)
{
    if (!from->proven) {
        hear_visit(h, from);
        return;
    }
    ssize_t n =
        ddl__stream_recv_bytes(from->seal, from->visit.fd, (char *)&from->piece + from->have,
                               sizeof from->piece - from->have);
    if (n > 0)
        from->have += (size_t)n;
    if (from->have == sizeof from->piece)
        admit(h, from);
    else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        hang_up(from);
}

/* A place for one who has just called; the one who has taken longest gives way, of those who have
 * proven nothing if there are any. */
static caller *seat(caller *callers)
{
    caller *oldest = callers;
    for (int i = 0; i < CALLERS; i++) {
        caller *c = &callers[i];
        if (c->visit.fd < 0)
            return c;
        if (c->proven == oldest->proven ? c->deadline < oldest->deadline : oldest->proven)
            oldest = c;
    }
    hang_up(oldest);
    return oldest;
}

/* Wait for callers and for what they say, until the nearest of their limits. */
static void attend(host *h, int listener, caller *callers)
{
    struct pollfd polls[CALLERS + 1] = {{.fd = listener, .events = POLLIN}};
    int64_t until = h->deadline, now = ddl__now();
    for (int i = 0; i < CALLERS; i++) {
        caller *c = &callers[i];
        if (c->visit.fd >= 0 && c->deadline <= now)
            hang_up(c);
        polls[i + 1] = (struct pollfd){.fd = c->visit.fd, .events = POLLIN};
        if (c->visit.fd >= 0 && c->deadline < until)
            until = c->deadline;
    }
    int64_t left = (until - now) / 1000000 + 1;
    if (poll(polls, CALLERS + 1, left < 0 ? 0 : left < 1000 ? (int)left : 1000) <= 0)
        return;
    for (int i = 0; i < CALLERS; i++)
        if (polls[i + 1].revents && callers[i].visit.fd >= 0)
            hear(h, &callers[i]);
    int fd = polls[0].revents ? accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    if (fd >= 0) {
        caller *c = seat(callers);
        memset(c, 0, sizeof *c);
        c->visit.fd = fd;
        c->visit.passed = -1;
        c->deadline = ddl__now() + CALLER_NS; /* `now` was before the wait */
    }
}

/* "have ranks 0-2 of 4, waiting for rank 3" */
static ddl_status fail_for_missing(const host *h)
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
    return ddl__fail(DDL_ETIMEDOUT,
                     "the rendezvous timed out: have rank%s %s of %d, waiting for %s%s",
                     strpbrk(lists[1], ",-") ? "s" : "", lists[1], h->size, lists[0], h->refusal);
}

/* Those who are here learn it from us, not from our end. */
static void dismiss(const host *h, ddl_status status)
{
    enum { MOMENT_NS = 100 * 1000000 };
    ddl__card card = {.magic = DDL__CARD_MAGIC, .protocol = DDL__PROTOCOL, .status = status};
    snprintf(card.text, sizeof card.text, "%s", ddl__message());
    for (int i = 1; i < h->size; i++)
        if (h->fds[i] >= 0)
            ddl__send_all(h->fds[i], &card, sizeof card, ddl__now() + MOMENT_NS);
}

static bool all_here(const host *h)
{
    for (int i = 1; i < h->size; i++)
        if (h->fds[i] < 0)
            return false;
    return true;
}

/* All that have left; whether there are any. */
static bool any_left(host *h)
{
    bool any = false;
    for (int i = 1; i < h->size; i++)
        any = (h->fds[i] >= 0 && has_left(h, i)) || any;
    return any;
}

/* What all cards come to, once for all callers. */
static bool sum_up(const ddl__job *job, const ddl__card *cards, int size,
                   unsigned char sum[DDL__KEY])
{
    ddl__session own;
    memcpy(own.key, job->key, sizeof own.key);
    bool ok = ddl__prove(job, &own, DDL__VOW_CARDS, cards, (size_t)size * sizeof *cards, sum);
    ddl__session_end(&own);
    return ok;
}

static ddl_status hand_out(const host *h)
{
    const ddl__job *job = ddl__endpoint_job(h->endpoint);
    unsigned char sum[DDL__KEY], proof[DDL__KEY];
    if (!sum_up(job, h->cards, h->size, sum))
        return DDL_ESYSTEM;
    for (int i = 1; i < h->size; i++)
        if (!ddl__prove(job, &h->sessions[i], DDL__VOW_CARDS, sum, sizeof sum, proof) ||
            !ddl__stream_send_all(h->seals[i], h->fds[i], h->cards,
                                  (size_t)h->size * sizeof *h->cards, h->deadline) ||
            !ddl__stream_send_all(h->seals[i], h->fds[i], proof, sizeof proof, h->deadline))
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
        callers[i].visit.fd = callers[i].visit.passed = -1;
    while ((!all_here(h) || any_left(h)) && ddl__now() < h->deadline)
        attend(h, listener, callers);
    for (int i = 0; i < CALLERS; i++)
        hang_up(&callers[i]);
    free(callers);
    if (!any_left(h) && all_here(h))
        return hand_out(h);
    ddl_status status = fail_for_missing(h);
    dismiss(h, status);
    return status;
}

static ddl_status hold(ddl_endpoint *endpoint, const place *at, int size, ddl__card *cards,
                       int64_t deadline)
{
    uint16_t port = (uint16_t)atoi(at->port);
    unsigned char ip[16];
    bool numeric = inet_pton(AF_INET, at->host, ip) == 1 || inet_pton(AF_INET6, at->host, ip) == 1;
    int listener = numeric ? ddl__listen(at->host, &port) : -1;
    if (listener < 0) /* a name, or an address that others reach us by */
        listener = ddl__listen(NULL, &port);
    if (listener < 0)
        return DDL_ESYSTEM;
    host h = {.endpoint = endpoint,
              .size = size,
              .cards = cards,
              .fds = malloc((size_t)size * sizeof *h.fds),
              .sessions = calloc((size_t)size, sizeof *h.sessions),
              .seals = calloc((size_t)size, sizeof(ddl__seal *)),
              .deadline = deadline};
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

/* ----------------------------------------------------------------------------------- other ranks
 */

/* A connection to rank 0, which may not listen yet. */
static int call_host(const place *at, int64_t deadline, char *why, size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    do {
        int error = getaddrinfo(at->host, at->port, &hints, &found);
        snprintf(why, size, "%s", error ? gai_strerror(error) : "no address");
        for (struct addrinfo *a = error ? NULL : found; a; a = a->ai_next) {
            int fd = ddl__dial(a->ai_addr, a->ai_addrlen, deadline);
            if (fd >= 0) {
                freeaddrinfo(found);
                return fd;
            }
            snprintf(why, size, "%s", strerror(errno));
        }
        if (!error)
            freeaddrinfo(found);
        usleep(RETRY_US);
    } while (ddl__now() < deadline);
    return -1;
}

/* The list, one card after the other, for the first one may say why there is none. */
static ddl_status hear_list(const ddl__job *job, const ddl__session *session, ddl__seal *seal,
                            int fd, int rank, int size, ddl__card *cards, int64_t deadline)
{
    unsigned char sum[DDL__KEY], proof[DDL__KEY];
    for (int i = 0; i < size; i++) {
        if (!ddl__stream_recv_all(seal, fd, &cards[i], sizeof *cards, deadline))
            return DDL_EUNREACHABLE;
        ddl_status status =
            cards[i].magic == DDL__CARD_MAGIC
                ? ddl__card_accept(&cards[i], rank)
                : ddl__fail(DDL_EREFUSED, "the rendezvous does not speak libddl's protocol");
        if (status != DDL_OK)
            return status;
    }
    if (!ddl__stream_recv_all(seal, fd, proof, sizeof proof, deadline))
        return DDL_EUNREACHABLE;
    if (!sum_up(job, cards, size, sum))
        return DDL_ESYSTEM;
    if (ddl__is_proven(job, session, DDL__VOW_CARDS, sum, sizeof sum, proof))
        return DDL_OK;
    return ddl__fail(DDL_EREFUSED, "the addresses that rank %d got were altered on their way",
                     rank);
}

/* Over a connection to rank 0. DDL_EUNREACHABLE is without a message, but with errno. */
static ddl_status talk(ddl_endpoint *endpoint, int fd, int rank, int size, ddl__card *cards,
                       int64_t deadline, bool *heard)
{
    const ddl__job *job = ddl__endpoint_job(endpoint);
    ddl__hello hello = ddl__hello_begin(job, DDL__DOOR_RENDEZVOUS, rank, 0, size);
    ddl__session session;
    struct {
        ddl__card card;
        unsigned char proof[DDL__KEY];
    } piece = {.card = write_card(endpoint, rank, size)};
    ddl_status status = ddl__knock(job, fd, &hello, -1, deadline, &session, NULL);
    if (status == DDL_EREFUSED) {
        char why[DDL__MESSAGE_MAX / 2];
        snprintf(why, sizeof why, "%s", ddl__message());
        return ddl__fail(status, "the rendezvous refused rank %d: %s", rank, why);
    }
    *heard = status == DDL_OK;
    if (status == DDL_OK &&
        !ddl__prove(job, &session, DDL__VOW_CARD, &piece.card, sizeof piece.card, piece.proof))
        status = DDL_ESYSTEM;
    ddl__seal *seal = NULL;
    if (status == DDL_OK)
        status = ddl__session_seal(job, &session, fd, DDL__DIALER, &seal);
    if (status == DDL_OK && !ddl__stream_send_all(seal, fd, &piece, sizeof piece, deadline))
        status = DDL_EUNREACHABLE;
    if (status == DDL_OK)
        status = hear_list(job, &session, seal, fd, rank, size, cards, deadline);
    int error = errno;
    ddl__session_end(&session);
    ddl__seal_destroy(seal);
    errno = error;
    return status;
}

/* Rank 0 hangs up on who has not proven anything yet when very many call at once. */
static ddl_status visit(ddl_endpoint *endpoint, const place *at, int rank, int size,
                        ddl__card *cards, int64_t deadline)
{
    char why[128];
    ddl_status status = DDL_EUNREACHABLE;
    bool heard = false;
    int error = 0;
    for (int i = 0; status == DDL_EUNREACHABLE && !heard && i < RETRIES; i++) {
        if (i)
            usleep(RETRY_US);
        int fd = call_host(at, deadline, why, sizeof why);
        if (fd < 0)
            return ddl__fail(
                DDL_EUNREACHABLE,
                "rank %d cannot reach the rendezvous at tcp://%s:%s: %s; is rank 0 running?", rank,
                at->host, at->port, why);
        status = talk(endpoint, fd, rank, size, cards, deadline, &heard);
        error = errno;
        close(fd);
        heard = heard || error == ETIMEDOUT;
    }
    if (status != DDL_EUNREACHABLE)
        return status;
    return ddl__fail(error == ETIMEDOUT ? DDL_ETIMEDOUT : DDL_EUNREACHABLE,
                     "rank %d waited at the rendezvous tcp://%s:%s: %s", rank, at->host, at->port,
                     error == ETIMEDOUT ? "not all ranks came in time" : strerror(error));
}

/* ----------------------------------------------------------------------------------------- both */

ddl_status ddl__rendezvous(ddl_endpoint *endpoint, const char *url, int rank, int size,
                           const ddl_comm_config *config, ddl_comm **comm)
{
    int64_t deadline = ddl__deadline(ddl__creation_ms(config));
    ddl_status status = DDL_OK;
    if (!url && rank == -1 && size == 0)
        status = ddl__environment_world(&url, &rank, &size);
    if (status != DDL_OK)
        return status;
    if (size < 1 || rank < 0 || rank >= size)
        return ddl__fail(DDL_EINVAL, "rank %d of size %d", rank, size);
    if (!url && size > 1)
        return ddl__fail(DDL_EINVAL, "url is NULL, but size is %d", size);

    ddl__card *cards = calloc((size_t)size, sizeof *cards);
    const void **addresses = calloc((size_t)size, sizeof *addresses);
    size_t *lengths = calloc((size_t)size, sizeof *lengths);
    place at;
    if (!cards || !addresses || !lengths)
        status = ddl__fail(DDL_ENOMEM, "no memory for %d ranks", size);
    if (status == DDL_OK && size > 1)
        status = parse_url(url, &at);
    if (status == DDL_OK) {
        cards[rank] = write_card(endpoint, rank, size);
        if (size > 1)
            status = rank == 0 ? hold(endpoint, &at, size, cards, deadline)
                               : visit(endpoint, &at, rank, size, cards, deadline);
    }
    if (status == DDL_OK) {
        for (int i = 0; i < size; i++) {
            addresses[i] = cards[i].address;
            lengths[i] = cards[i].length;
        }
        status = ddl__comm_create(endpoint, addresses, lengths, rank, size, config, true, deadline,
                                  comm);
    }
    free(cards);
    free(addresses);
    free(lengths);
    return status;
}
