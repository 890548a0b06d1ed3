/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/endpoint/race.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "net/socket.h"

static void hang_up(ddl__race *race, unsigned i)
{
    if (race->tries[i].fd < 0)
        return;
    ddl__skip_time_wait(race->tries[i].fd);
    close(race->tries[i].fd);
    race->tries[i].fd = -1;
}

static void fail_path(ddl__race *race, unsigned i, int error)
{
    hang_up(race, i);
    race->tries[i].state = DDL__PATH_FAILED;
    race->tries[i].error = race->error = error;
}

/* Handle the result of a finished connect. */
static void settle_path(ddl__race *race, unsigned i)
{
    int error = ddl__dial_error(race->tries[i].fd);
    if (error) {
        fail_path(race, i, error);
        return;
    }
    race->tries[i].state = DDL__PATH_CONNECTED;
    if (!race->connected_at)
        race->connected_at = ddl__now();
}

/* Handle the time limit of a path. It may have connected while this process did not run. */
static void expire_path(ddl__race *race, unsigned i)
{
    struct pollfd polled = {.fd = race->tries[i].fd, .events = POLLOUT};
    if (poll(&polled, 1, 0) > 0)
        settle_path(race, i);
    else
        fail_path(race, i, ETIMEDOUT);
}

static void try_next_path(ddl_endpoint *endpoint, ddl__race *race, int64_t deadline)
{
    unsigned i = race->n_tried++;
    ddl__path path = race->paths.path[i];
    struct sockaddr_storage from, to;
    socklen_t length = ddl__address_ip(race->peer, (unsigned)path.theirs, &to);
    if (path.ours >= 0)
        ddl__address_of(&ddl__endpoint_address(endpoint)->ips[path.ours], 0, &from);
    int64_t now = ddl__now(), end = now + DDL__ADDRESS_LIMIT;
    race->tried_at = now;
    race->tries[i].deadline = end < deadline ? end : deadline;
    race->tries[i].state = DDL__PATH_DIALED;
    race->tries[i].fd = ddl__dial_begin(path.ours >= 0 ? (struct sockaddr *)&from : NULL,
                                        (struct sockaddr *)&to, length);
    if (race->tries[i].fd < 0)
        fail_path(race, i, errno);
}

static unsigned count_dialed(const ddl__race *race, unsigned n)
{
    unsigned count = 0;
    for (unsigned i = 0; i < n; i++)
        count += race->tries[i].state == DDL__PATH_DIALED;
    return count;
}

/* Start the attempts that are due. The chosen paths are tried at once. Until one answers, another
 * path is tried when all previous ones have failed, or when the head start of the last one is over.
 * Sets `ended`. */
static void advance(ddl_endpoint *endpoint, ddl__race *race, int64_t deadline)
{
    int64_t now = ddl__now();
    for (unsigned i = 0; i < race->n_tried; i++)
        if (race->tries[i].state == DDL__PATH_DIALED && now >= race->tries[i].deadline)
            expire_path(race, i);
    while (race->n_tried < race->paths.n && !race->connected_at && now < deadline &&
           (race->n_tried < race->paths.at_once || !count_dialed(race, race->n_tried) ||
            now >= race->tried_at + DDL__PATH_HEAD_START))
        try_next_path(endpoint, race, deadline);
    bool chosen_wait = count_dialed(race, race->paths.at_once);
    race->ended = race->connected_at ? !chosen_wait || now >= race->connected_at + DDL__PATH_LEAD ||
                                           now >= deadline
                                     : (race->n_tried == race->paths.n || now >= deadline) &&
                                           !count_dialed(race, race->n_tried);
}

static void warn_unused(const ddl_endpoint *endpoint, const ddl__race *race, unsigned i)
{
    const ddl__interface *own = &ddl__endpoint_address(endpoint)->ips[race->paths.path[i].ours];
    char ip[DDL__IP_TEXT];
    ddl__interface_ip(&race->peer->ips[race->paths.path[i].theirs], ip);
    ddl__log(DDL__WARN,
             "interface %s is not used: host %s does not answer at %s over it (%s); DDL_INTERFACES "
             "selects the interfaces to use",
             own->name, race->peer->host, ip, strerror(race->tries[i].error));
}

/* Record which paths answer. If none does, record nothing: the peer is at fault, not the paths. */
static void record(ddl_endpoint *endpoint, ddl__race *race)
{
    for (unsigned i = 0; i < race->n_tried && race->connected_at; i++) {
        bool answers = race->tries[i].state == DDL__PATH_CONNECTED;
        if (race->tries[i].state == DDL__PATH_DIALED && i < race->paths.at_once)
            fail_path(race, i, ETIMEDOUT);
        bool is_known = race->tries[i].state != DDL__PATH_DIALED &&
                        (answers || !ddl__dial_is_own_error(race->tries[i].error));
        if (is_known &&
            ddl__endpoint_record_path(endpoint, race->peer, race->paths.path[i], answers))
            warn_unused(endpoint, race, i);
    }
}

/* Keep the connection over the first path that has one, and sort the paths: first those that
 * answered, then those without a result, then the failed ones. */
static void conclude(ddl_endpoint *endpoint, ddl__race *race)
{
    static const ddl__path_state order[] = {DDL__PATH_CONNECTED, DDL__PATH_UNTRIED,
                                            DDL__PATH_DIALED, DDL__PATH_FAILED};
    ddl__paths sorted = {.n = 0};
    record(endpoint, race);
    for (unsigned k = 0; k < sizeof order / sizeof *order; k++)
        for (unsigned i = 0; i < race->paths.n; i++) {
            if (race->tries[i].state != order[k])
                continue;
            sorted.at_once += order[k] == DDL__PATH_CONNECTED && i < race->paths.at_once;
            if (order[k] == DDL__PATH_CONNECTED && race->fd < 0) {
                race->fd = race->tries[i].fd;
                race->tries[i].fd = -1;
            }
            hang_up(race, i);
            sorted.path[sorted.n++] = race->paths.path[i];
        }
    if (race->paths.at_once && !sorted.at_once)
        sorted.at_once = 1;
    race->paths = sorted;
}

/* Wait for events of the connecting sockets, at most until the next check is due. */
static void await_events(ddl__race *races, int n, struct pollfd *polled)
{
    nfds_t n_polled = 0;
    for (int r = 0; r < n; r++)
        for (unsigned i = 0; i < races[r].n_tried && !races[r].ended; i++)
            if (races[r].tries[i].state == DDL__PATH_DIALED)
                polled[n_polled++] = (struct pollfd){.fd = races[r].tries[i].fd, .events = POLLOUT};
    if (!n_polled || poll(polled, n_polled, (int)(DDL__MEMBERS_POLL / DDL__MS)) <= 0)
        return;
    const struct pollfd *at = polled;
    for (int r = 0; r < n; r++)
        for (unsigned i = 0; i < races[r].n_tried && !races[r].ended; i++)
            if (races[r].tries[i].state == DDL__PATH_DIALED && at++->revents)
                settle_path(&races[r], i);
}

static void begin(ddl__race *race, const ddl__address *peer, const ddl__paths *paths)
{
    memset(race, 0, sizeof *race);
    race->peer = peer;
    race->paths = *paths;
    race->fd = -1;
    for (unsigned i = 0; i < race->paths.n; i++)
        race->tries[i].fd = -1;
}

void ddl__race_begin(ddl_endpoint *endpoint, const ddl__address *peer, ddl__race *race)
{
    ddl__paths paths = ddl__endpoint_paths(endpoint, peer);
    begin(race, peer, &paths);
}

void ddl__race_again(ddl__race *race)
{
    ddl__paths left = {.n = race->paths.n - 1, .at_once = race->paths.n > 1};
    memcpy(left.path, race->paths.path + 1, left.n * sizeof *left.path);
    begin(race, race->peer, &left);
}

ddl_status ddl__race_run(ddl_endpoint *endpoint, ddl__race *races, int n, const ddl__until *until)
{
    size_t n_paths = 0;
    for (int r = 0; r < n; r++)
        n_paths += races[r].paths.n;
    struct pollfd *polled = calloc(n_paths + 1, sizeof *polled);
    ddl_status status =
        polled ? DDL_OK
               : ddl__fail(DDL_ENOMEM, "out of memory: cannot dial over %zu paths", n_paths);
    int64_t check_at = ddl__now() + DDL__MEMBERS_POLL;
    for (int left = n; status == DDL_OK && left;) {
        left = 0;
        for (int r = 0; r < n; r++) {
            if (!races[r].ended)
                advance(endpoint, &races[r], until->deadline);
            left += !races[r].ended;
        }
        await_events(races, n, polled);
        if (ddl__now() >= check_at) {
            status = ddl__until_check(until);
            check_at = ddl__now() + DDL__MEMBERS_POLL;
        }
    }
    free(polled);
    for (int r = 0; r < n && status == DDL_OK; r++)
        conclude(endpoint, &races[r]);
    for (int r = 0; r < n && status != DDL_OK; r++)
        for (unsigned i = 0; i < races[r].n_tried; i++)
            hang_up(&races[r], i);
    return status;
}
