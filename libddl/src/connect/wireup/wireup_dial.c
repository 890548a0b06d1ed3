/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a connection to a lower rank, and checks for failures that members report during the
 * creation. */
#include "connect/wireup/wireup_state.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/text.h"
#include "base/time_limits.h"
#include "membership/creation.h"
#include "net/close_reason.h"
#include "net/socket.h"

int64_t ddl__wireup_within(const ddl__wireup *w, int64_t limit)
{
    int64_t now = ddl__now();
    return limit < w->deadline - now ? now + limit : w->deadline;
}

static ddl_status check_and_answer(void *wireup)
{
    ddl__wireup_accept_waiting(wireup);
    return ddl__wireup_check_members(wireup);
}

ddl__until ddl__wireup_until(const ddl__wireup *w, int64_t limit)
{
    return (ddl__until){.deadline = ddl__wireup_within(w, limit),
                        .check = w->links ? check_and_answer : NULL,
                        .context = (ddl__wireup *)w};
}

ddl__hello ddl__wireup_hello(const ddl__wireup *w, int peer, uint8_t kind)
{
    ddl__hello hello = ddl__endpoint_begin_hello(w->endpoint, kind, w->rank, peer, w->size);
    hello.endpoint = w->addresses[peer].endpoint;
    hello.comm = w->id.comm;
    hello.family = w->id.family;
    hello.creation = w->id.number;
    return hello;
}

void ddl__dial_cancel(ddl__dial_attempt *d)
{
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
    ddl__session_end(&d->session);
}

ddl_status ddl__dial_start(const ddl__wireup *w, ddl__dial_attempt *d, int fd,
                           const ddl__hello *hello)
{
    bool inproc = hello->kind == DDL__CONN_INPROC;
    bool shares = hello->kind == DDL__CONN_SHM || hello->kind == DDL__CONN_FIRST_MEMORY;
    int passed = shares ? ddl__arena_fd(w->arena) : -1;
    d->fd = fd;
    d->hello = *hello;
    if (inproc)
        d->hello.arena = (uintptr_t)ddl__arena_share(w->arena);
    ddl_status status = DDL__TEST_POINT(DDL__AT_HELLO, hello);
    if (status == DDL_OK)
        status = ddl__handshake_start(ddl__endpoint_job(w->endpoint), fd, &d->hello, passed,
                                      ddl__wireup_within(w, DDL__ADDRESS_LIMIT), &d->session);
    if (status == DDL_OK) {
        (void)DDL__TEST_POINT(DDL__HELLO_SENT, hello);
        return DDL_OK;
    }
    if (inproc)
        ddl__arena_drop(w->arena); /* the peer did not get the reference */
    ddl__dial_cancel(d);
    return status;
}

ddl_status ddl__dial_await_admission(const ddl__wireup *w, ddl__dial_attempt *d)
{
    bool handed_over = true; /* assume so until the answer shows otherwise */
    ddl__until until = ddl__wireup_until(w, DDL__ADDRESS_LIMIT);
    ddl_status status;
    if (w->has_cores)
        ddl__await_awake(d->fd, POLLIN);
    d->error = ddl__await_until(d->fd, POLLIN, &until, &status) ? 0 : errno;
    if (status == DDL_OK)
        status = ddl__handshake_finish(ddl__endpoint_job(w->endpoint), d->fd, until.deadline,
                                       &d->session, &handed_over);
    if (status == DDL_OK)
        status = DDL__TEST_POINT(DDL__ADMITTED, &d->hello);
    if (status == DDL_OK)
        return status;
    if (d->hello.kind == DDL__CONN_INPROC && !handed_over)
        ddl__arena_drop(w->arena);
    ddl__dial_cancel(d);
    return status;
}

bool ddl__wireup_is_connected(const ddl__wireup *w, int peer)
{
    const ddl__link *link = w->links[peer], *messages = w->messages[peer];
    return link && messages &&
           (!ddl__link_is_tcp(link) || ddl__tcp_link_lanes(link) == ddl__tcp_link_lanes(messages));
}

int ddl__wireup_describe_missing(const ddl__wireup *w, char text[DDL__MISSING_TEXT])
{
    enum { LIST = 200 };
    char refusal[160];
    size_t n = 0;
    int named = 0;
    for (int i = 0; i < w->size && n + 80 < LIST && (!named || i > w->rank); i++) {
        if (i == w->rank || ddl__wireup_is_connected(w, i))
            continue;
        n += (size_t)snprintf(text + n, LIST - n, "%s%d on %s", named++ ? ", " : "", i,
                              w->addresses[i].host);
    }
    ddl__endpoint_last_refusal(w->endpoint, refusal, sizeof refusal);
    snprintf(text + n, DDL__MISSING_TEXT - n, "%s%s", refusal[0] ? "; it refused " : "", refusal);
    return named;
}

ddl_status ddl__wireup_fail_late(const ddl__wireup *w, ddl_status otherwise)
{
    char missing[DDL__MISSING_TEXT];
    int named = ddl__wireup_describe_missing(w, missing);
    if (!named && otherwise != DDL_OK)
        return otherwise;
    return ddl__fail(DDL_ETIMEDOUT, "rank %d waited for ranks that did not connect in time: %s",
                     w->rank, missing);
}

/* Warn, once, about missing ranks. */
static void warn_missing(const ddl__wireup *w)
{
    char missing[DDL__MISSING_TEXT];
    int64_t now = ddl__now();
    if (now < *w->warn_at)
        return;
    *w->warn_at = DDL__NEVER;
    int named = ddl__wireup_describe_missing(w, missing);
    ddl__log(
        DDL__WARN,
        "rank %d on %s: the creation of a comm of %d ranks has waited for %.1f s; not connected "
        "yet: rank%s %s",
        w->rank, ddl__endpoint_address(w->endpoint)->host, w->size, (double)(now - w->begun) * 1e-9,
        named > 1 ? "s" : "", missing);
}

/* Return true if a member has closed its control connection. If the member's link cannot detect the
 * end of the process, report it to the link. */
static bool pair_has_ended(const ddl__wireup *w, int peer)
{
    const ddl__control_dial *control = &w->controls[peer];
    ddl__link *link = w->links[peer];
    if (!control->open || !ddl__has_ended(control->fd))
        return false;
    if (link->ops->peer_ended) {
        link->ops->peer_ended(link);
        link->ops->poll(link);
    }
    return true;
}

/* Record a fact in the creation's state. It ends the attempt, unless it is the loss of a member. */
static void handle_fact(const ddl__wireup *w, ddl__creation_cause cause, ddl_status status,
                        int from, uint32_t number)
{
    const ddl__creation_end fact = {status, from, number};
    unsigned actions = ddl__creation_handle(w->creation, cause, &fact, ddl__now());
    if (actions & DDL__CREATION_RAISE)
        ddl__endpoint_raise_creation(w->endpoint, w->id.family, number);
    if (actions & DDL__CREATION_IGNORE)
        ddl__endpoint_ignore_create_failure(w->endpoint, &w->id, from, number);
}

static ddl_status fail_superseded(const ddl__wireup *w, int member, uint32_t later)
{
    return ddl__fail(DDL__SUPERSEDED,
                     "rank %d on %s is at creation %u of this comm, but rank %d is at creation %u",
                     member, w->addresses[member].host, later, w->rank, w->id.number);
}

/* Fail if waiting is pointless: see until.h. */
static ddl_status check_vain(const ddl__wireup *w)
{
    ddl_status status = ddl__until_check(w->until);
    if (status != DDL_OK)
        handle_fact(w, DDL__CREATION_IN_VAIN, status, -1, 0);
    return status;
}

/* Fail if a member has sent a create-failure notice. */
static ddl_status check_notices(const ddl__wireup *w)
{
    ddl__create_failure failure;
    if (!ddl__endpoint_take_create_failure(w->endpoint, &w->id, &failure) ||
        (unsigned)failure.from >= (unsigned)w->size)
        return DDL_OK;
    handle_fact(w, DDL__CREATION_NOTICED, failure.status, failure.from, failure.attempt);
    return ddl__fail(failure.status, "rank %d on %s could not create the comm: %s", failure.from,
                     w->addresses[failure.from].host, failure.text);
}

/* Return true if this rank has no open link to the member. If an engine already owns the links, all
 * members had connected, and only w->lost counts as missing: any other member may have completed
 * this creation and started the next one. */
static bool is_missing(const void *context, int rank)
{
    const ddl__wireup *w = context;
    if (rank < 0 || rank >= w->size || rank == w->rank)
        return false;
    if (!w->links)
        return rank == w->lost;
    return !w->links[rank] || w->links[rank]->state != DDL__LINK_OPEN;
}

/* Fail if a member without a link to this rank has connected for a later creation, because it will
 * not join this one. */
static ddl_status check_superseded(const ddl__wireup *w)
{
    int member;
    uint32_t later =
        w->id.number ? ddl__endpoint_find_later(w->endpoint, w->slot, is_missing, w, &member) : 0;
    if (!later)
        return DDL_OK;
    handle_fact(w, DDL__CREATION_OUTDATED, DDL__SUPERSEDED, -1, later);
    return fail_superseded(w, member, later);
}

/* Fail if a member has closed its link with a reason. */
static ddl_status check_aborted(const ddl__wireup *w)
{
    ddl__reason reason;
    for (int i = 0; w->links && i < w->size; i++) {
        ddl__link *link = w->links[i];
        if (link && link->fd >= 0) /* an unopened link receives nothing */
            link->ops->poll(link);
        if (!link || link->state != DDL__LINK_ABORTED || !ddl__reason_read(link->reason, &reason))
            continue;
        handle_fact(w, DDL__CREATION_ABORTED, reason.status, reason.from, reason.attempt);
        return ddl__fail(reason.status, "%s", reason.text);
    }
    return DDL_OK;
}

/* Fail if a member has closed its link, with or without a reason. */
static ddl_status check_lost(const ddl__wireup *w)
{
    ddl_status status = DDL_OK;
    for (int i = 0; i < w->size && status == DDL_OK; i++) {
        const ddl__link *link = w->links[i];
        bool ended = link && (link->state != DDL__LINK_OPEN || pair_has_ended(w, i));
        if (ended) /* the member may have sent the reason before it closed the link */
            status = check_aborted(w);
        if (ended && status == DDL_OK)
            return ddl__fail(
                DDL_EPEER, "rank %d on %s closed its connection while the comm was created: %s", i,
                w->addresses[i].host, link->reason[0] ? link->reason : "it has failed");
    }
    return status;
}

static ddl_status check_cause(const ddl__wireup *w, ddl__creation_cause cause)
{
    switch (cause) {
    case DDL__CREATION_IN_VAIN: return check_vain(w);
    case DDL__CREATION_NOTICED: return check_notices(w);
    case DDL__CREATION_ABORTED: return check_aborted(w);
    case DDL__CREATION_OUTDATED: return check_superseded(w);
    case DDL__CREATION_LOST: return check_lost(w);
    case DDL__CREATION_CAUSES: break;
    }
    return DDL_OK;
}

/* Check for the causes of failure in the order of their priority, up to and including `last`. */
static ddl_status check_causes(const ddl__wireup *w, ddl__creation_cause last)
{
    ddl_status status = DDL_OK;
    for (ddl__creation_cause cause = 0; cause <= last && status == DDL_OK; cause++)
        status = check_cause(w, cause);
    return status;
}

ddl_status ddl__wireup_check_reasons(const ddl__wireup *w)
{
    return check_causes(w, DDL__CREATION_OUTDATED);
}

ddl_status ddl__wireup_check_members(const ddl__wireup *w)
{
    warn_missing(w);
    return check_causes(w, DDL__CREATION_LOST);
}

/* Wait for the answer of the peer's comm while no member fails. Meanwhile, answer the higher ranks,
 * which would otherwise report this rank as missing. */
static ddl_status await_member_answer(const ddl__wireup *w, int fd)
{
    ddl__until until = ddl__wireup_until(w, DDL__NEVER);
    ddl_status status;
    if (w->has_cores)
        ddl__await_awake(fd, POLLIN);
    if (!ddl__await_until(fd, POLLIN, &until, &status) && status == DDL_OK)
        status = check_and_answer(until.context); /* the deadline has passed */
    return status;
}

static unsigned handle_answer(const ddl__wireup *w, const ddl__hello *answer)
{
    unsigned actions = ddl__creation_handle_answer(w->creation, answer->status, answer->creation);
    if (actions & DDL__CREATION_RAISE)
        ddl__endpoint_raise_creation(w->endpoint, w->id.family, answer->creation);
    return actions;
}

/* Receive the answer of the peer's comm. The caller owns the descriptor, even on failure. */
static ddl_status receive_member_answer(const ddl__wireup *w, int peer, int fd,
                                        const ddl__session *session, ddl__hello *answer,
                                        int *passed)
{
    const char *host = w->addresses[peer].host;
    ddl_status status = await_member_answer(w, fd);
    if (status != DDL_OK)
        return status;
    if (!ddl__recv_with_fd(fd, answer, sizeof *answer, passed, w->deadline)) {
        int error = errno;
        status = ddl__wireup_check_members(w); /* check whether the peer has sent the reason */
        if (status != DDL_OK)
            return status;
        errno = error;
        if (errno == ETIMEDOUT)
            return ddl__fail(DDL_ETIMEDOUT,
                             "rank %d on %s is running, but did not create this comm in time", peer,
                             host);
        return ddl__fail(DDL_EPEER,
                         "rank %d on %s closed its connection while the comm was created: %s", peer,
                         host, strerror(errno));
    }
    bool proven =
        ddl__answer_is_proven(ddl__endpoint_job(w->endpoint), session, DDL__AUTH_MEMBER, answer);
    ddl__sanitize_text(answer->text, sizeof answer->text);
    if (ddl__hello_check(answer) != DDL_OK)
        snprintf(answer->text, sizeof answer->text, "%s", ddl__message());
    else if (!proven)
        snprintf(answer->text, sizeof answer->text, "its answer was altered in transit");
    else if (handle_answer(w, answer) == DDL__CREATION_CONTINUE)
        return DDL_OK;
    else if (ddl__creation_is_told(w->creation))
        return fail_superseded(w, peer, answer->creation);
    return ddl__fail(DDL_EREFUSED, "rank %d on %s refused the connection: %s", peer, host,
                     answer->text);
}

ddl_status ddl__dial_join(const ddl__wireup *w, int peer, ddl__dial_attempt *d)
{
    ddl__hello answer;
    int arena = -1;
    ddl_status status = receive_member_answer(w, peer, d->fd, &d->session, &answer, &arena);
    if (status == DDL_OK) {
        if (!ddl__wireup_make_links(w, peer, &d->hello, &d->session, DDL__DIALER, d->fd, arena,
                                    answer.arena))
            status = DDL_ESYSTEM;
        arena = -1;
    }
    if (status == DDL_OK)
        d->fd = -1; /* owned by the link, or the control connection */
    if (arena >= 0)
        close(arena);
    ddl__dial_cancel(d);
    return status;
}
