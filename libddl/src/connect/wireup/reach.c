/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/wireup/reach.h"

#include <errno.h>
#include <poll.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/forks.h"
#include "net/socket.h"

enum { SPARED = 64 }; /* descriptors to leave to the program and to other connections */

static void hang_up(int *fd)
{
    if (*fd < 0)
        return;
    ddl__skip_time_wait(*fd);
    ddl__close_guarded(*fd);
    *fd = -1;
}

void ddl__reach_end(ddl__reach *reach)
{
    for (unsigned i = 0; i < reach->paths.n; i++)
        hang_up(&reach->fds[i]);
}

/* Start to connect over path i. Return EINPROGRESS, or another errno on failure. */
static int dial(const ddl__wireup *w, ddl__reach *reach, unsigned i)
{
    struct rlimit limit;
    ddl__path_ends ends = ddl__wireup_path_ends(w, reach->rank, reach->paths.path[i]);
    reach->fds[i] = ddl__guard(ddl__dial_begin(ends.is_bound ? (struct sockaddr *)&ends.from : NULL,
                                               (struct sockaddr *)&ends.to, ends.length));
    if (reach->fds[i] < 0)
        return errno;
    if (getrlimit(RLIMIT_NOFILE, &limit) || (rlim_t)reach->fds[i] + SPARED < limit.rlim_cur)
        return EINPROGRESS;
    hang_up(&reach->fds[i]);
    return EMFILE;
}

static void try_path(const ddl__wireup *w, ddl__reach *reach, unsigned i)
{
    int error = EINPROGRESS;
    struct pollfd polled = {.fd = reach->fds[i], .events = POLLOUT};
    if (reach->fds[i] >= 0 && poll(&polled, 1, 0) > 0) {
        error = ddl__dial_error(reach->fds[i]);
        hang_up(&reach->fds[i]);
    }
    if (reach->fds[i] < 0 && !ddl__dial_is_answer(error))
        error = dial(w, reach, i);
    if (ddl__dial_is_answer(error))
        reach->answers = true;
    else if (ddl__dial_is_own_error(error))
        reach->since = ddl__now();
}

void ddl__reach_begin(const ddl__wireup *w, ddl__reach *reach)
{
    reach->since = ddl__now();
    reach->paths =
        ddl__discover_paths(ddl__endpoint_address(w->endpoint), &w->addresses[reach->rank]);
    for (unsigned i = 0; i < reach->paths.n; i++)
        reach->fds[i] = -1;
    ddl__reach_poll(w, reach);
}

void ddl__reach_poll(const ddl__wireup *w, ddl__reach *reach)
{
    for (unsigned i = 0; i < reach->paths.n && !reach->answers; i++)
        try_path(w, reach, i);
    if (reach->answers)
        ddl__reach_end(reach);
}
