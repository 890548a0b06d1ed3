/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts the connections that higher ranks dial. */
#include "connect/wireup/wireup_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "connect/endpoint/race.h"
#include "net/socket.h"

/* Return the reason to refuse a lane, or NULL. Lanes arrive in order after their link. The second
 * link has as many lanes as the first. */
static const char *find_lane_refusal(const ddl__hello *hello, const ddl__link *link,
                                     const ddl__link *messages)
{
    bool second = hello->kind == DDL__CONN_MESSAGES;
    const ddl__link *to = second ? messages : link;
    if (!ddl__is_over_tcp(hello->kind) || !link || !to || !ddl__link_is_tcp(to))
        return "a lane without its link";
    if (hello->lane != ddl__tcp_link_lanes(to) + 1 ||
        (second ? hello->lane > ddl__tcp_link_lanes(link) : messages != NULL))
        return "a lane out of order";
    return NULL;
}

/* Return the reason to refuse an accepted connection, or NULL. */
static const char *find_member_refusal(const ddl__wireup *w, const ddl__hello *hello)
{
    if (hello->to != (uint32_t)w->rank || hello->size != (uint32_t)w->size ||
        hello->from <= (uint32_t)w->rank || hello->from >= (uint32_t)w->size)
        return "its rank or size does not fit this comm";
    bool second = hello->kind == DDL__CONN_MESSAGES;
    if (hello->kind == DDL__CONN_CONTROL)
        return "control connections come later";
    if (hello->kind == DDL__CONN_PAIR && !w->first_use)
        return "the links of this comm are opened at once";
    const ddl__link *link = w->links[hello->from], *messages = w->messages[hello->from];
    if (hello->lane)
        return find_lane_refusal(hello, link, messages);
    if (second ? messages : link)
        return "this rank is here already";
    uint32_t link_kind = ddl__is_over_tcp(hello->kind)  ? DDL_LINK_TCP
                         : hello->kind == DDL__CONN_SHM ? DDL_LINK_SHM
                                                        : DDL_LINK_INPROC;
    return w->kinds & link_kind ? NULL : "this kind of link is not allowed here";
}

/* Send the member its answer, with this rank's arena. */
static bool send_member_answer(const ddl__wireup *w, const ddl__accepted *accepted,
                               const char *refusal, ddl__hello *answer)
{
    uint8_t kind = accepted->hello.kind;
    int passed = !refusal && kind == DDL__CONN_SHM ? ddl__arena_fd(w->arena) : -1;
    *answer = ddl__hello_answer(&accepted->hello, refusal ? DDL_EREFUSED : DDL_OK, refusal);
    if (!refusal && kind == DDL__CONN_INPROC)
        answer->arena = (uintptr_t)ddl__arena_share(w->arena);
    ddl__answer_prove(ddl__endpoint_job(w->endpoint), &accepted->session, DDL__AUTH_MEMBER, answer);
    return ddl__send_with_fd(accepted->fd, answer, sizeof *answer, passed,
                             ddl__wireup_within(w, DDL__ADDRESS_LIMIT));
}

/* Create the member's link, or refuse the connection. Returns true if the member now has both
 * links. */
static bool accept_member(const ddl__wireup *w, ddl__accepted *accepted)
{
    const ddl__hello *hello = &accepted->hello;
    const char *why = find_member_refusal(w, hello);
    int peer = (int)hello->from;
    if (!why) {
        bool made = ddl__wireup_make_links(w, peer, hello, &accepted->session, DDL__DIALED,
                                           accepted->fd, accepted->passed, hello->arena);
        why = made ? NULL : ddl__message();
    } else {
        if (hello->kind == DDL__CONN_INPROC)
            ddl__arena_drop((ddl__arena *)(uintptr_t)hello->arena);
        if (accepted->passed >= 0)
            close(accepted->passed);
    }
    ddl__hello answer;
    bool sent = send_member_answer(w, accepted, why, &answer);
    if (why) {
        close(accepted->fd);
        ddl__log(DDL__INFO, "refused the connection of rank %u: %s", hello->from, answer.text);
        return false;
    }
    if (hello->kind == DDL__CONN_TCP)
        w->controls[peer].after = hello->number;
    if (sent)
        return ddl__wireup_is_connected(w, peer);
    if (hello->kind == DDL__CONN_INPROC)
        ddl__arena_drop(w->arena);
    ddl__wireup_unmake_links(w, peer, hello->kind);
    return false;
}

/* Accept the next connection. Returns false if none arrives in time. Sets *pair if it was the last
 * one of its pair. */
static bool accept_next(const ddl__wireup *w, int64_t deadline, bool *pair)
{
    ddl__accepted accepted;
    (void)DDL__TEST_POINT(DDL__AT_ACCEPT, w);
    if (!ddl__endpoint_accept(w->endpoint, w->slot, false, deadline, &accepted))
        return false;
    *pair = accept_member(w, &accepted);
    ddl__session_end(&accepted.session);
    return true;
}

void ddl__wireup_accept_waiting(const ddl__wireup *w)
{
    bool pair;
    while (accept_next(w, 0, &pair))
        ;
}

/* The state of the search for a higher rank that exited before it connected. No other rank dials
 * such a rank. */
typedef struct search {
    int peer; /* the rank that was probed last */
    int64_t at, interval;
} search;

/* Return true if no higher rank has connected, so that this rank must search. A higher rank that
 * has connected to this rank dials the missing ranks, or searches for them itself. */
static bool is_first_to_search(const ddl__wireup *w)
{
    for (int peer = w->rank + 1; peer < w->size; peer++)
        if (w->links[peer] && w->links[peer]->fd >= 0)
            return false;
    return true;
}

/* Return true if all addresses of the peer refuse connections, and its unix socket, too, if it is
 * on this host. Accepts members meanwhile. *status is not DDL_OK if the creation has failed. */
static bool refuses_all(const ddl__wireup *w, int peer, ddl_status *status)
{
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&w->addresses[peer].endpoint, &to);
    int fd = ddl__dial((struct sockaddr *)&to, length, ddl__now());
    if (fd >= 0)
        close(fd);
    if (fd >= 0 || errno != ECONNREFUSED)
        return false;
    ddl__race race;
    ddl__until until = ddl__wireup_until(w, DDL__SEARCH_LIMIT);
    ddl__race_begin(w->endpoint, &w->addresses[peer], &race);
    *status = ddl__race_run(w->endpoint, &race, 1, &until);
    if (*status == DDL_OK && race.fd >= 0)
        close(race.fd);
    bool refused = *status == DDL_OK && race.fd < 0 && race.paths.n && race.n_tried == race.paths.n;
    for (unsigned i = 0; refused && i < race.n_tried; i++)
        refused = race.tries[i].error == ECONNREFUSED;
    return refused;
}

/* Probe one of the missing higher ranks from time to time. Fail if it has exited, because in a
 * creation without a parent no other rank reports that. */
static ddl_status search_dead(const ddl__wireup *w, search *s)
{
    if (w->creation->is_witnessed || ddl__now() < s->at || !is_first_to_search(w))
        return DDL_OK;
    do
        s->peer = s->peer > w->rank + 1 ? s->peer - 1 : w->size - 1;
    while (ddl__wireup_is_connected(w, s->peer));
    ddl_status status = DDL_OK;
    bool refused = refuses_all(w, s->peer, &status);
    s->interval = s->interval < DDL__SEARCH_MOST / 2 ? 2 * s->interval : DDL__SEARCH_MOST;
    s->at = ddl__now() + s->interval;
    if (status != DDL_OK || !refused || w->links[s->peer])
        return status;
    return ddl__fail(DDL_EUNREACHABLE, "rank %d on %s, port %u: %s", s->peer,
                     w->addresses[s->peer].host, w->addresses[s->peer].port,
                     strerror(ECONNREFUSED));
}

static int count_missing(const ddl__wireup *w)
{
    int missing = 0;
    for (int peer = w->rank + 1; peer < w->size; peer++)
        missing += !ddl__wireup_is_connected(w, peer);
    return missing;
}

ddl_status ddl__wireup_accept_higher(const ddl__wireup *w)
{
    search s = {.interval = DDL__MEMBERS_POLL, .at = ddl__now() + DDL__MEMBERS_POLL};
    int left = count_missing(w);
    bool pair;
    while (left > 0) {
        if (accept_next(w, ddl__wireup_within(w, DDL__MEMBERS_POLL), &pair)) {
            left -= pair;
            continue;
        }
        ddl_status status = ddl__wireup_check_members(w);
        if (status == DDL_OK)
            status = search_dead(w, &s);
        if (status != DDL_OK)
            return status;
        left = count_missing(w); /* the search accepts members, too */
        if (left > 0 && ddl__now() >= w->deadline)
            return ddl__wireup_fail_late(w, DDL_OK);
    }
    return DDL_OK;
}
