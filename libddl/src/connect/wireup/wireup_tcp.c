/* SPDX-License-Identifier: Apache-2.0 */
/* Opens connections over TCP: the paths between the interfaces of both hosts, and lanes. */
#include "connect/wireup/wireup_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "connect/endpoint/race.h"
#include "net/socket.h"

ddl__path_ends ddl__wireup_path_ends(const ddl__wireup *w, int peer, ddl__path path)
{
    ddl__path_ends ends = {.is_bound = path.ours >= 0};
    ends.length = ddl__address_ip(&w->addresses[peer], (unsigned)path.theirs, &ends.to);
    if (ends.is_bound)
        ddl__address_of(&ddl__endpoint_address(w->endpoint)->ips[path.ours], 0, &ends.from);
    return ends;
}

ddl_status ddl__wireup_start_on_path(const ddl__wireup *w, int peer, ddl__dial_attempt *d,
                                     uint8_t kind, unsigned lane, ddl__path path)
{
    ddl__path_ends ends = ddl__wireup_path_ends(w, peer, path);
    ddl__until until = ddl__wireup_until(w, DDL__ADDRESS_LIMIT);
    ddl__hello hello = ddl__wireup_hello(w, peer, kind);
    hello.lane = (uint8_t)lane;
    ddl_status status = DDL__TEST_POINT(DDL__AT_PATH, &hello);
    int fd = -1;
    if (status == DDL_OK)
        fd = ddl__dial_until(ends.is_bound ? (struct sockaddr *)&ends.from : NULL,
                             (struct sockaddr *)&ends.to, ends.length, &until, &status);
    if (fd >= 0)
        return ddl__dial_start(w, d, fd, &hello);
    d->error = errno;
    return status != DDL_OK ? status : ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
}

static ddl_status dial_on_path(const ddl__wireup *w, int peer, ddl__dial_attempt *d, uint8_t kind,
                               unsigned lane, ddl__path path)
{
    ddl_status status = ddl__wireup_start_on_path(w, peer, d, kind, lane, path);
    return status == DDL_OK ? ddl__dial_await_admission(w, d) : status;
}

static void warn_unused(const ddl__wireup *w, int peer, ddl__path path)
{
    const ddl__address *own = ddl__endpoint_address(w->endpoint);
    ddl__log(DDL__WARN, "cannot reach rank %d on %s over %s, so this interface is not used: %s",
             peer, w->addresses[peer].host, path.ours < 0 ? "" : own->ips[path.ours].name,
             ddl__message());
}

/* Switch to the next path after the current one has failed. */
static void next_path(const ddl__wireup *w, int peer, ddl__peer_dial *a, ddl_status status)
{
    a->status = status;
    snprintf(a->why, sizeof a->why, "%s", ddl__message());
    ddl__dial_cancel(&a->messages);
    if (!w->links[peer])
        ddl__control_dial_close(&w->controls[peer]);
    if (a->path + 1 < a->paths.at_once)
        warn_unused(w, peer, a->paths.path[a->path]);
    a->path++;
}

ddl_status ddl__wireup_dial_path(const ddl__wireup *w, int peer, ddl__peer_dial *a, uint8_t kind)
{
    while (a->attempt.fd < 0 && a->path < a->paths.n) {
        ddl_status status =
            ddl__wireup_start_on_path(w, peer, &a->attempt, kind, 0, a->paths.path[a->path]);
        if (status != DDL_OK && !ddl__is_path_failure(w, status))
            return status;
        if (status != DDL_OK)
            next_path(w, peer, a, status);
    }
    return DDL_OK;
}

/* Dial the connection for messages and the control connection. A connection that fails is dialed
 * again later. */
static ddl_status start_others(const ddl__wireup *w, int peer, ddl__peer_dial *a)
{
    ddl__path path = a->paths.path[a->path];
    ddl__dial_attempt control = {.fd = -1};
    ddl_status status =
        ddl__wireup_start_on_path(w, peer, &a->messages, DDL__CONN_MESSAGES, 0, path);
    if (w->controls && (status == DDL_OK || ddl__is_path_failure(w, status)))
        status = ddl__wireup_start_on_path(w, peer, &control, DDL__CONN_CONTROL, 0, path);
    if (control.fd >= 0)
        w->controls[peer] = (ddl__control_dial){.fd = control.fd, .session = control.session};
    ddl__session_end(&control.session);
    return ddl__is_path_failure(w, status) ? DDL_OK : status;
}

/* Report to `until` that no address of the peer has answered. Nothing is reported after the
 * deadline of the creation, because the time may have been too short for an answer. */
static void report_unreachable(const ddl__wireup *w, int peer, bool was_accepted, int error)
{
    bool is_silent = error == ETIMEDOUT || error == EHOSTUNREACH;
    if (is_silent && w->until && w->until->unreachable && ddl__now() < w->deadline)
        w->until->unreachable(w->until->context, peer, was_accepted);
}

/* Use the result of the race to connect to a peer. Returns an error only if a member has failed. */
static ddl_status use_race(const ddl__wireup *w, int peer, ddl__peer_dial *a, const ddl__race *race)
{
    bool lanes = race->paths.at_once * ddl__endpoint_sockets(w->endpoint) > 1;
    a->paths = race->paths;
    a->first_use = w->first_use && !lanes;
    a->status = DDL_EUNREACHABLE;
    snprintf(a->why, sizeof a->why, "%s",
             race->error ? strerror(race->error) : "it has no address that leads to it from here");
    if (race->fd < 0) {
        a->path = a->paths.n;
        report_unreachable(w, peer, false, race->error);
        return DDL_OK;
    }
    a->was_accepted = true;
    uint8_t kind = a->first_use ? DDL__CONN_PAIR : DDL__CONN_TCP;
    ddl__hello hello = ddl__wireup_hello(w, peer, kind);
    ddl_status status = ddl__dial_start(w, &a->attempt, race->fd, &hello);
    if (status != DDL_OK)
        next_path(w, peer, a, status);
    return status == DDL_OK && !lanes && !a->first_use ? start_others(w, peer, a) : DDL_OK;
}

ddl_status ddl__wireup_start_tcp(const ddl__wireup *w, int first, int n, ddl__peer_dial *a)
{
    int n_races = 0;
    for (int i = 0; i < n; i++)
        n_races += a[i].tcp;
    ddl__race *races = n_races ? calloc((size_t)n_races, sizeof *races) : NULL;
    if (n_races && !races)
        return ddl__fail(DDL_ENOMEM, "out of memory: cannot dial %d members", n_races);
    ddl__race *race = races;
    for (int i = 0; i < n; i++)
        if (a[i].tcp)
            ddl__race_begin(w->endpoint, &w->addresses[first + i], race++);
    ddl__until until = ddl__wireup_until(w, DDL__NEVER);
    ddl_status status = n_races ? ddl__race_run(w->endpoint, races, n_races, &until) : DDL_OK;
    bool connected = status == DDL_OK;
    race = races;
    for (int i = 0; i < n && connected; i++)
        if (a[i].tcp && status == DDL_OK)
            status = use_race(w, first + i, &a[i], race++);
        else if (a[i].tcp && race++->fd >= 0)
            close(race[-1].fd);
    free(races);
    return status;
}

/* Complete the handshake over the current path, or over one of the remaining paths. */
static ddl_status join_connection(const ddl__wireup *w, int peer, ddl__peer_dial *a, uint8_t kind)
{
    for (;;) {
        ddl_status status = ddl__wireup_dial_path(w, peer, a, kind);
        if (status != DDL_OK)
            return status;
        if (a->attempt.fd < 0 && a->status == DDL_EUNREACHABLE)
            report_unreachable(w, peer, a->was_accepted, a->attempt.error);
        if (a->attempt.fd < 0)
            return ddl__fail(a->status, "rank %d on %s, port %u: %s", peer, w->addresses[peer].host,
                             w->addresses[peer].port, a->why);
        a->was_accepted = true;
        status = ddl__dial_await_admission(w, &a->attempt);
        if (status == DDL_OK)
            return ddl__dial_join(w, peer, &a->attempt);
        if (!ddl__is_path_failure(w, status))
            return status;
        next_path(w, peer, a, status);
    }
}

/* Open the lanes. A lane whose path fails uses the path of the link instead. */
static ddl_status dial_lanes(const ddl__wireup *w, int peer, ddl__peer_dial *a, uint8_t kind)
{
    ddl_status status = DDL_OK;
    ddl__dial_attempt d = {.fd = -1};
    for (unsigned lane = 1; status == DDL_OK && lane <= a->lanes; lane++) {
        ddl__path *path = &a->paths.path[(lane - 1) % a->paths.at_once];
        status = dial_on_path(w, peer, &d, kind, lane, *path);
        if (status != DDL_OK && ddl__is_path_failure(w, status)) {
            warn_unused(w, peer, *path);
            *path = a->paths.path[a->path];
            status = dial_on_path(w, peer, &d, kind, lane, *path);
        }
        if (status == DDL_OK)
            status = ddl__dial_join(w, peer, &d);
    }
    return status;
}

static void log_paths(const ddl__wireup *w, int peer, unsigned lanes)
{
    char text[400];
    ddl__tcp_link_describe(w->links[peer], text, sizeof text);
    ddl__log(DDL__INFO, "rank %d reaches rank %d on %s over %s: %u socket%s", w->rank, peer,
             w->addresses[peer].host, text, lanes ? lanes : 1, lanes ? "s" : "");
}

ddl_status ddl__wireup_join_tcp(const ddl__wireup *w, int peer, ddl__peer_dial *a)
{
    ddl_status status = join_connection(w, peer, a, a->first_use ? DDL__CONN_PAIR : DDL__CONN_TCP);
    ddl__paths *paths = &a->paths;
    if (a->first_use)
        return status;
    if (a->path >= paths->at_once) { /* all chosen paths have failed */
        paths->path[0] = paths->path[a->path < paths->n ? a->path : 0];
        paths->at_once = 1;
        a->path = 0;
    }
    for (unsigned dead = 0; dead < a->path; dead++) /* no lane tries a failed path again */
        paths->path[dead] = paths->path[a->path];
    unsigned sockets = paths->at_once * ddl__endpoint_sockets(w->endpoint);
    a->lanes = sockets > DDL__LANES_MAX ? DDL__LANES_MAX : sockets > 1 ? sockets : 0;
    return status == DDL_OK ? dial_lanes(w, peer, a, DDL__CONN_TCP) : status;
}

ddl_status ddl__wireup_join_messages(const ddl__wireup *w, int peer, ddl__peer_dial *a)
{
    ddl_status status = join_connection(w, peer, a, DDL__CONN_MESSAGES);
    if (status == DDL_OK)
        status = dial_lanes(w, peer, a, DDL__CONN_MESSAGES);
    if (status == DDL_OK)
        log_paths(w, peer, a->lanes);
    return status;
}
