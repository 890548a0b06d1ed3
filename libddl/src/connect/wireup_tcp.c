/* Connections over TCP: by the paths that both hosts' interfaces give, and with lanes. */
#include "connect/wireup_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "net/socket.h"

/* Start a handshake with the peer over a path. */
static ddl_status start_on_path(const ddl__wireup *m, int peer, ddl__dial_attempt *d, uint8_t kind,
                                unsigned lane, ddl__path path)
{
    struct sockaddr_storage to, from;
    struct sockaddr *own = NULL;
    socklen_t length = ddl__address_ip(&m->addresses[peer], (unsigned)path.theirs, &to);
    if (path.ours >= 0) {
        ddl__address_of(&ddl__endpoint_address(m->endpoint)->ips[path.ours], 0, &from);
        own = (struct sockaddr *)&from;
    }
    int fd = ddl__dial_from(own, (struct sockaddr *)&to, length, ddl__wireup_address_deadline(m));
    if (fd < 0)
        return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    ddl__hello hello = ddl__wireup_hello(m, peer, kind);
    hello.lane = (uint8_t)lane;
    return ddl__dial_start(m, d, fd, &hello);
}

static void warn_unused(const ddl__wireup *m, int peer, ddl__path path)
{
    const ddl__address *own = ddl__endpoint_address(m->endpoint);
    ddl__log(DDL__WARN, "rank %d on %s is not reached over %s, which is not used: %s", peer,
             m->addresses[peer].host, path.ours < 0 ? "" : own->ips[path.ours].name,
             ddl__message());
}

/* The present path does not do: the next one. */
static void next_path(const ddl__wireup *m, int peer, ddl__peer_dial *a, ddl_status status)
{
    a->status = status;
    snprintf(a->why, sizeof a->why, "%s", ddl__message());
    ddl__dial_cancel(&a->messages);
    if (a->first + 1 < a->paths.at_once)
        warn_unused(m, peer, a->paths.path[a->first]);
    a->first++;
}

void ddl__wireup_dial_path(const ddl__wireup *m, int peer, ddl__peer_dial *a, uint8_t kind)
{
    while (a->dialing.fd < 0 && a->first < a->paths.n) {
        ddl_status status = start_on_path(m, peer, &a->dialing, kind, 0, a->paths.path[a->first]);
        if (status != DDL_OK)
            next_path(m, peer, a, status);
    }
}

void ddl__wireup_start_tcp(const ddl__wireup *m, int peer, ddl__peer_dial *a)
{
    a->tcp = true;
    a->paths = ddl__discover_paths(ddl__endpoint_address(m->endpoint), &m->addresses[peer]);
    a->status = DDL_EUNREACHABLE;
    snprintf(a->why, sizeof a->why, "it has no address that leads to it from here");
    ddl__wireup_dial_path(m, peer, a, DDL__CONN_TCP);
    if (a->dialing.fd >= 0 && a->paths.at_once * ddl__endpoint_sockets(m->endpoint) == 1)
        start_on_path(m, peer, &a->messages, DDL__CONN_MESSAGES, 0, a->paths.path[a->first]);
}

/* What the peer answers there, or by one of the paths that are left. */
static ddl_status join_connection(const ddl__wireup *m, int peer, ddl__peer_dial *a, uint8_t kind)
{
    for (;;) {
        ddl__wireup_dial_path(m, peer, a, kind);
        if (a->dialing.fd < 0)
            return ddl__fail(a->status, "rank %d on %s, port %u: %s", peer, m->addresses[peer].host,
                             m->addresses[peer].port, a->why);
        ddl_status status = ddl__dial_admitted(m, &a->dialing);
        if (status == DDL_OK)
            return ddl__dial_join(m, peer, &a->dialing);
        next_path(m, peer, a, status);
    }
}

/* A path that does not lead there is given up for one that does. */
static ddl_status dial_lanes(const ddl__wireup *m, int peer, ddl__peer_dial *a, uint8_t kind)
{
    ddl_status status = DDL_OK;
    ddl__dial_attempt d = {.fd = -1};
    for (unsigned lane = 1; status == DDL_OK && lane <= a->lanes; lane++) {
        ddl__path *path = &a->paths.path[(lane - 1) % a->paths.at_once];
        status = start_on_path(m, peer, &d, kind, lane, *path);
        if (status == DDL_OK)
            status = ddl__dial_admitted(m, &d);
        if (status != DDL_OK) {
            warn_unused(m, peer, *path);
            *path = a->paths.path[a->first];
            status = start_on_path(m, peer, &d, kind, lane, *path);
            if (status == DDL_OK)
                status = ddl__dial_admitted(m, &d);
        }
        if (status == DDL_OK)
            status = ddl__dial_join(m, peer, &d);
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

ddl_status ddl__wireup_join_tcp(const ddl__wireup *m, int peer, ddl__peer_dial *a)
{
    ddl_status status = join_connection(m, peer, a, DDL__CONN_TCP);
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

ddl_status ddl__wireup_join_messages(const ddl__wireup *m, int peer, ddl__peer_dial *a)
{
    ddl_status status = join_connection(m, peer, a, DDL__CONN_MESSAGES);
    if (status == DDL_OK)
        status = dial_lanes(m, peer, a, DDL__CONN_MESSAGES);
    if (status == DDL_OK)
        log_paths(m, peer, a->lanes);
    return status;
}
