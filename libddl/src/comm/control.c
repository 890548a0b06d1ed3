/* Opening: as in meet.c every rank dials all lower ones and receives the higher ones. All have
 * finished their ddl__meet by then, so nobody there takes our connection for another one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/watch_state.h"
#include "net/shm.h"
#include "net/socket.h"
#include "net/tcp.h"

/* How long one address may take, and how often a waiting rank looks after the others. */
static const int64_t DOOR_NS = 5 * 1000000000ll, LOOK_NS = 50 * 1000000ll;

static int64_t within(const ddl__control *c, int64_t ns)
{
    int64_t limit = ddl__now() + ns;
    return limit < c->config.deadline ? limit : c->config.deadline;
}

/* Come in at the peer's door. */
static ddl_status knock(const ddl__control *c, int peer, int fd, ddl__seal **seal)
{
    const ddl__job *job = ddl__endpoint_job(c->config.endpoint);
    ddl__hello hello = ddl__hello_begin(job, DDL__DOOR_CONTROL, c->rank, peer, c->size);
    ddl__session session;
    hello.endpoint = c->config.addresses[peer].endpoint;
    hello.comm = c->config.comm;
    ddl_status status = ddl__knock(job, fd, &hello, -1, within(c, DOOR_NS), &session, NULL);
    if (status == DDL_OK)
        status = ddl__session_seal(job, &session, fd, DDL__DIALER, seal);
    ddl__session_end(&session);
    return status;
}

/* A connection that the peer's door has taken, or -1 with the message set. */
static int call(const ddl__control *c, int peer, const struct sockaddr *to, socklen_t length,
                ddl__seal **seal)
{
    int fd = ddl__dial(to, length, within(c, DOOR_NS));
    if (fd < 0) {
        ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
        return -1;
    }
    if (knock(c, peer, fd, seal) == DDL_OK)
        return fd;
    close(fd);
    return -1;
}

/* The address at which the peer was found for its data comes first. */
static int call_tcp(const ddl__control *c, int peer, int found, ddl__seal **seal)
{
    struct sockaddr_storage to;
    socklen_t length = sizeof to;
    const ddl__address *address = &c->config.addresses[peer];
    int fd = -1;
    if (!getpeername(found, (struct sockaddr *)&to, &length) && to.ss_family != AF_UNIX)
        fd = call(c, peer, (struct sockaddr *)&to, length, seal);
    for (unsigned i = 0; fd < 0 && i < address->n_ips; i++) {
        length = ddl__address_ip(address, i, &to);
        fd = call(c, peer, (struct sockaddr *)&to, length, seal);
    }
    return fd;
}

/* A guest becomes a member, or is told why it is none. */
static void receive(ddl__control *c, ddl__guest *guest)
{
    const ddl__hello *hello = &guest->hello;
    bool fits = hello->door == DDL__DOOR_CONTROL && hello->to == (uint32_t)c->rank &&
                hello->size == (uint32_t)c->size && hello->from > (uint32_t)c->rank &&
                hello->from < (uint32_t)c->size && c->members[hello->from].wire.fd < 0;
    if (hello->door == DDL__DOOR_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)hello->arena);
    if (guest->passed >= 0)
        close(guest->passed);
    ddl__seal *seal = NULL;
    if (fits && ddl__session_seal(ddl__endpoint_job(c->config.endpoint), &guest->session, guest->fd,
                                  DDL__DIALED, &seal) == DDL_OK) {
        ddl__wire_open(&c->members[hello->from].wire, guest->fd, seal);
        return;
    }
    ddl__hello answer = ddl__hello_answer(hello, DDL_EREFUSED, "it does not fit this comm");
    ddl__send_all(guest->fd, &answer, sizeof answer, within(c, DOOR_NS));
    close(guest->fd);
}

/* A member that fails meanwhile ends the creation for all. Who has left, or ended, was here: what
 * becomes of that is seen later. */
static ddl_status check_present(ddl__control *c)
{
    ddl__engine_look(c->engine);
    ddl__pulse pulse = ddl__engine_pulse(c->engine);
    if (pulse.status != DDL_OK)
        return ddl__fail(pulse.status, "%s", pulse.text);
    for (int i = 0; i < c->size; i++) {
        ddl__member *member = &c->members[i];
        const ddl__link *link = ddl__engine_links(c->engine)[i];
        if (i == c->rank || member->wire.fd >= 0 || member->fate != DDL__ALIVE)
            continue;
        if (link->state == DDL__LINK_LEFT)
            member->fate = DDL__LEFT;
        if (link->state == DDL__LINK_LOST)
            member->fate = DDL__KILLED;
        if (link->state == DDL__LINK_LOST)
            snprintf(member->cause, sizeof member->cause, "its process ended");
    }
    return DDL_OK;
}

static ddl_status dial(ddl__control *c, int peer)
{
    const ddl__link *link = ddl__engine_links(c->engine)[peer];
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&c->config.addresses[peer].endpoint, &to);
    ddl__seal *seal = NULL;
    int fd = link->ops->shared ? call(c, peer, (struct sockaddr *)&to, length, &seal)
                               : call_tcp(c, peer, ddl__tcp_link_socket(link), &seal);
    if (fd < 0) {
        char why[DDL__MESSAGE_MAX - 128];
        snprintf(why, sizeof why, "%s", ddl__message());
        ddl_status status = check_present(c);
        if (status != DDL_OK || c->members[peer].fate != DDL__ALIVE)
            return status;
        return ddl__fail(ddl__now() < c->config.deadline ? DDL_EUNREACHABLE : DDL_ETIMEDOUT,
                         "%s cannot be called to be watched: %s", c->names[peer], why);
    }
    ddl__wire_open(&c->members[peer].wire, fd, seal);
    return DDL_OK;
}

/* The next higher rank that is not here, or the size. */
static int missing(const ddl__control *c)
{
    int rank = c->rank + 1;
    while (rank < c->size && (c->members[rank].wire.fd >= 0 || c->members[rank].fate != DDL__ALIVE))
        rank++;
    return rank;
}

static ddl_status receive_all(ddl__control *c)
{
    for (int next; (next = missing(c)) < c->size;) {
        ddl__guest guest;
        if (ddl__endpoint_guest(c->config.endpoint, c->config.seat, within(c, LOOK_NS), &guest)) {
            receive(c, &guest);
            ddl__session_end(&guest.session);
            continue;
        }
        ddl_status status = check_present(c);
        if (status != DDL_OK)
            return status;
        if (ddl__now() >= c->config.deadline)
            return ddl__fail(DDL_ETIMEDOUT, "%s did not call to be watched in time",
                             c->names[next]);
    }
    return DDL_OK;
}

static void free_control(ddl__control *c)
{
    for (int i = 0; i < c->size; i++) {
        ddl__wire_close(&c->members[i].wire);
        free(c->members[i].accused);
        free(c->members[i].verdict);
    }
    free(c->trace_dir);
    free(c->members);
    free(c);
}

ddl_status ddl__control_open(const ddl__control_config *config, ddl__control **out)
{
    ddl__control *c = calloc(1, sizeof *c);
    ddl__watch *watch = ddl__endpoint_watch(config->endpoint);
    if (!c || !watch || !(c->members = calloc((size_t)config->size, sizeof *c->members))) {
        free(c);
        return watch ? ddl__fail(DDL_ENOMEM, "no memory to watch %d members", config->size)
                     : DDL_ESYSTEM;
    }
    c->watch = watch;
    c->config = *config;
    c->engine = config->engine;
    c->rank = config->rank;
    c->size = config->size;
    c->names = config->names;
    c->limits = config->limits;
    c->trace_dir = config->trace_dir ? strdup(config->trace_dir) : NULL;
    for (int i = 0; i < c->size; i++)
        c->members[i].wire.fd = -1;
    ddl_status status = DDL_OK;
    for (int peer = 0; status == DDL_OK && peer < c->rank; peer++)
        status = dial(c, peer);
    if (status == DDL_OK)
        status = receive_all(c);
    if (status == DDL_OK && !ddl__watch_add(watch, c))
        status = ddl__fail(DDL_ESYSTEM, "epoll refuses a comm: %s", strerror(errno));
    if (status == DDL_OK)
        *out = c;
    else
        free_control(c);
    return status;
}

static void ignore(void *context, ddl__word word, const unsigned char *content, size_t bytes)
{
    (void)context, (void)word, (void)content, (void)bytes;
}

void ddl__control_close(ddl__control *c)
{
    if (!c)
        return;
    ddl__watch_remove(c);
    ddl__position last = ddl__own_position(c, ddl__now());
    for (int i = 0; i < c->size; i++) {
        ddl__wire *wire = &c->members[i].wire;
        if (wire->fd < 0)
            continue;
        ddl__wire_send(wire, DDL__LEAVE, &last, sizeof last);
        /* Closing with something unread would reset the connection. */
        ddl__wire_receive(wire, ignore, NULL);
    }
    ddl__trace_await(c);
    free_control(c);
}

int ddl__control_failed(ddl__control *c, int *ranks, int capacity)
{
    int n = 0;
    pthread_mutex_lock(&c->watch->lock);
    for (int i = 0; i < c->size; i++)
        if (c->members[i].fate == DDL__KILLED || c->members[i].fate == DDL__SILENT) {
            if (n < capacity)
                ranks[n] = i;
            n++;
        }
    pthread_mutex_unlock(&c->watch->lock);
    return n;
}
