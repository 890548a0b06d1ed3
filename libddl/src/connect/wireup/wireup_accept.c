/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts the connections that higher ranks dial. */
#include "connect/wireup/wireup_state.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "net/socket.h"

/* The reason to refuse a lane, or NULL. Lanes arrive in order after their link. The second link has
 * as many lanes as the first. */
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

/* The reason to refuse an accepted connection, or NULL. */
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

/* Send the member its answer, with our arena. */
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

/* Create the member's link, or refuse the connection. True if the member now has both links. */
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
        ddl__log(DDL__INFO, "rank %u was refused: %s", hello->from, answer.text);
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

/* Accept the next connection; false if none arrives in time. Sets *pair if it was the last one of
 * its pair. */
static bool accept_next(const ddl__wireup *w, int64_t deadline, bool *pair)
{
    ddl__accepted accepted;
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

ddl_status ddl__wireup_accept_higher(const ddl__wireup *w)
{
    int left = 0;
    bool pair;
    for (int peer = w->rank + 1; peer < w->size; peer++)
        left += !ddl__wireup_is_connected(w, peer);
    while (left > 0) {
        if (accept_next(w, ddl__wireup_within(w, DDL__MEMBERS_POLL), &pair)) {
            left -= pair;
            continue;
        }
        ddl_status status = ddl__wireup_check_members(w);
        if (status != DDL_OK)
            return status;
        if (ddl__now() >= w->deadline)
            return ddl__wireup_fail_late(w, DDL_OK);
    }
    return DDL_OK;
}
