/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/reach.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "net/socket.h"

static bool is_refused(int error)
{
    return error == ECONNREFUSED || error == ECONNRESET;
}

static void hang_up(ddl__reach *r)
{
    for (int i = 0; i < r->n_fds; i++)
        if (r->fds[i] >= 0)
            ddl__drop_connection(r->fds[i]);
    r->n_fds = 0;
}

/* False: there are no more descriptors. */
static bool begin(const ddl__wireup *w, ddl__reach *r)
{
    ddl__paths paths =
        ddl__discover_paths(ddl__endpoint_address(w->endpoint), &w->addresses[r->rank]);
    r->reached = DDL__REACH_UNKNOWN;
    r->n_fds = 0;
    for (unsigned i = 0; i < paths.n; i++) {
        ddl__path_ends ends = ddl__wireup_path_ends(w, r->rank, paths.path[i]);
        int fd = ddl__dial_begin(ends.is_bound ? (struct sockaddr *)&ends.from : NULL,
                                 (struct sockaddr *)&ends.to, ends.length);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            hang_up(r);
            return false;
        }
        if (fd < 0 && is_refused(errno))
            r->reached = DDL__REACH_ANSWERS;
        r->fds[r->n_fds++] = fd;
    }
    return true;
}

int ddl__reach_begin(const ddl__wireup *w, ddl__reach *reach, int n)
{
    int begun = 0;
    while (begun < n && begin(w, &reach[begun]))
        begun++;
    return begun;
}

/* Whether the member may still answer. */
static bool is_open(const ddl__reach *r)
{
    for (int i = 0; r->reached == DDL__REACH_UNKNOWN && i < r->n_fds; i++)
        if (r->fds[i] >= 0)
            return true;
    return false;
}

/* The connection has an event. */
static void note_outcome(ddl__reach *r, int which)
{
    int error = ddl__dial_error(r->fds[which]);
    if (error == 0 || is_refused(error))
        r->reached = DDL__REACH_ANSWERS;
    ddl__drop_connection(r->fds[which]);
    r->fds[which] = -1;
}

/* Wait for events until then. */
static void poll_all(ddl__reach *reach, int n, struct pollfd *polled, int64_t until)
{
    nfds_t n_polled = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; is_open(&reach[i]) && k < reach[i].n_fds; k++)
            if (reach[i].fds[k] >= 0)
                polled[n_polled++] = (struct pollfd){.fd = reach[i].fds[k], .events = POLLOUT};
    int64_t left = until - ddl__now();
    if (poll(polled, n_polled, left > 0 ? (int)(left / DDL__MS) + 1 : 0) <= 0)
        return;
    nfds_t at = 0; /* the same order, so that each is found again */
    for (int i = 0; i < n; i++)
        for (int k = 0; at < n_polled && k < reach[i].n_fds; k++)
            if (reach[i].fds[k] == polled[at].fd && polled[at++].revents)
                note_outcome(&reach[i], k);
}

void ddl__reach_end(ddl__reach *reach, int n, int64_t deadline, bool (*goes_on)(void *context),
                    void *context)
{
    size_t most = 0;
    for (int i = 0; i < n; i++)
        most += (size_t)reach[i].n_fds;
    struct pollfd *polled = calloc(most + 1, sizeof *polled);
    bool waits = polled, is_late = false;
    while (waits && !is_late) {
        int64_t next = ddl__now() + DDL__MEMBERS_POLL;
        is_late = next >= deadline;
        poll_all(reach, n, polled, is_late ? deadline : next);
        waits = false;
        for (int i = 0; i < n; i++)
            waits = waits || is_open(&reach[i]);
        if (waits && !is_late && !goes_on(context))
            break;
    }
    for (int i = 0; i < n; i++) {
        if (reach[i].reached == DDL__REACH_UNKNOWN && polled && (!is_open(&reach[i]) || is_late))
            reach[i].reached = DDL__REACH_SILENT;
        hang_up(&reach[i]);
    }
    free(polled);
}
