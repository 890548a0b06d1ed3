/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/wireup/late_dial.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "base/time_limits.h"
#include "connect/wireup/reach.h"
#include "net/socket.h"

/* Return true if neither another path nor a retry can change this answer. */
static bool is_final(ddl_status status)
{
    return status == DDL_OK || status == DDL_INPROGRESS || status == DDL_EPEER ||
           status == DDL_EMINORITY || status == DDL_ESTATE;
}

/* Wait for an answer. Return false at the deadline, or when target->goes_on returns false. */
static bool await_answer(const ddl__late_target *target, int fd, int64_t deadline)
{
    while (target->goes_on(target->context) && ddl__now() < deadline) {
        int64_t next = ddl__now() + DDL__MEMBERS_POLL;
        if (ddl__await(fd, POLLIN, next < deadline ? next : deadline))
            return true;
    }
    ddl__fail(DDL_ETIMEDOUT, "it does not answer");
    return false;
}

/* Receive the answer of the peer's comm, after the peer's endpoint has admitted this rank. */
static ddl_status receive_answer(const ddl__late_target *target, const ddl__dial_attempt *d)
{
    const ddl__job *job = ddl__endpoint_job(target->wireup->endpoint);
    ddl__hello answer;
    if (!await_answer(target, d->fd, DDL__NEVER))
        return DDL_ETIMEDOUT;
    if (target->passed) { /* free a descriptor number for the received descriptor */
        close(*target->passed);
        *target->passed = -1;
    }
    if (!ddl__recv_with_fds(d->fd, &answer, sizeof answer, target->passed, target->passed ? 1 : 0,
                            ddl__now() + DDL__ADDRESS_LIMIT))
        return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    if (ddl__hello_check(&answer) != DDL_OK)
        return DDL_EREFUSED;
    if (!ddl__answer_is_proven(job, &d->session, DDL__AUTH_MEMBER, &answer))
        return ddl__fail(DDL_EREFUSED, "its answer was altered in transit");
    ddl__sanitize_text(answer.text, sizeof answer.text);
    ddl_status status = (ddl_status)answer.status;
    if (status == DDL_OK || status == DDL_INPROGRESS)
        return status;
    return ddl__fail(is_final(status) ? status : DDL_EREFUSED, "%s", answer.text);
}

static ddl_status start_local(const ddl__wireup *w, const ddl__late_target *target,
                              ddl__dial_attempt *d)
{
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&w->addresses[target->peer].endpoint, &to);
    int fd = ddl__dial((struct sockaddr *)&to, length, w->deadline);
    if (fd < 0) {
        d->error = errno;
        return ddl__fail(errno == ETIMEDOUT ? DDL_ETIMEDOUT : DDL_EUNREACHABLE, "%s",
                         strerror(errno));
    }
    if (!ddl__same_user(fd)) { /* any process may take the name after its owner has exited */
        close(fd);
        return ddl__fail(DDL_EUNREACHABLE, "another user listens at its unix socket");
    }
    ddl__hello hello = ddl__wireup_hello(w, target->peer, target->kind);
    return ddl__dial_start(w, d, fd, &hello);
}

/* Dial over one path, or over the unix socket if `path` is NULL. */
static ddl_status dial_on_path(const ddl__late_target *target, const ddl__path *path,
                               ddl__dial_attempt *d)
{
    ddl__wireup within = *target->wireup;
    within.deadline = ddl__now() + DDL__LATE_DIAL_LIMIT;
    ddl_status status = path ? ddl__wireup_start_on_path(&within, target->peer, d, target->kind,
                                                         target->lane, *path)
                             : start_local(&within, target, d);
    if (status != DDL_OK)
        return status;
    if (!await_answer(target, d->fd, ddl__now() + DDL__ADDRESS_LIMIT))
        return DDL_ETIMEDOUT;
    within.deadline = ddl__now() + DDL__ADDRESS_LIMIT;
    status = ddl__dial_await_admission(&within, d);
    return status == DDL_OK ? receive_answer(target, d) : status;
}

/* Record that the peer was reached over path i, and that the paths in `no_way` fail, so that later
 * dials try them last. */
static void record_paths(const ddl__wireup *w, int peer, const ddl__paths *paths, unsigned i,
                         const bool *no_way)
{
    const ddl__address *address = &w->addresses[peer];
    ddl__endpoint_record_path(w->endpoint, address, paths->path[i], true);
    for (unsigned k = 0; k < i; k++)
        if (no_way[k])
            ddl__endpoint_record_path(w->endpoint, address, paths->path[k], false);
}

ddl_status ddl__late_dial(const ddl__late_target *target, ddl__dial_attempt *d)
{
    const ddl__wireup *w = target->wireup;
    if (target->local) {
        ddl_status local = dial_on_path(target, NULL, d);
        bool is_needed = target->passed || d->error == ECONNREFUSED;
        if (is_needed || is_final(local) || local == DDL_ETIMEDOUT)
            return local;
        /* use TCP, because a unix socket may not work, for example between containers of different
         * users on one host */
        ddl__dial_cancel(d);
    }
    ddl__paths paths = ddl__endpoint_paths(w->endpoint, &w->addresses[target->peer]);
    ddl_status status = ddl__fail(DDL_EUNREACHABLE, "it has no address that this rank can reach");
    if (paths.n && !target->goes_on(target->context))
        return ddl__fail(DDL_ETIMEDOUT, "the time limit has passed");
    bool refused = paths.n, answers = false, silent = true;
    bool no_way[2 * DDL__INTERFACES_MAX] = {false};
    for (unsigned i = 0; i < paths.n && !is_final(status); i++) {
        if (i > 0 && !target->goes_on(target->context))
            break;
        ddl__dial_cancel(d);
        d->error = 0;
        status = dial_on_path(target, &paths.path[i], d);
        refused = refused && d->error == ECONNREFUSED;
        no_way[i] = !ddl__dial_is_answer(d->error) && !ddl__dial_is_own_error(d->error);
        silent = silent && no_way[i];
        if (status == DDL_OK)
            record_paths(w, target->peer, &paths, i, no_way);
        answers = answers || status == DDL_ETIMEDOUT;
    }
    d->error = refused ? ECONNREFUSED : silent ? EHOSTUNREACH : 0;
    return answers && !is_final(status) ? DDL_ETIMEDOUT : status;
}
