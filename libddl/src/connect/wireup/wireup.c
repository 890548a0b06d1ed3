/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank dials all lower ranks, receives their answers, and then accepts the higher ranks. So a
 * rank waits only for lower ranks, and no cycle of waiting ranks can arise. While it waits for a
 * lower rank, it accepts higher ones. Locality is proven: only ranks on this host can connect to an
 * abstract unix socket (docs/ARCHITECTURE.md).
 *
 * In a large comm, a pair that does not share memory first has only its control connection, which
 * proves the secret and shows that both ranks exist. Its links are opened on first use
 * (first_use.h). In a sparse comm, most pairs do not have a control connection either
 * (neighbours.h).
 *
 * Other pairs have one connection for the link and one for messages, dialed together. If the links
 * have lanes, the dialer opens each connection after the previous one was accepted: the link's own
 * connection, its lanes, the connection for messages, and its lanes. So the dialed rank knows when
 * the pair is complete. */
#include "connect/wireup/wireup_state.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "connect/addresses/discover.h"
#include "connect/addresses/neighbours.h"
#include "net/socket.h"

/* Connect to the peer's unix socket. Returns -1 and sets *status on failure. Sets *here if the peer
 * is on this host: ECONNREFUSED means that it is not. If the socket's backlog is full, wait for
 * room. */
static int connect_local(const ddl__wireup *w, int peer, bool *here, ddl_status *status)
{
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&w->addresses[peer].endpoint, &to);
    for (;;) {
        int fd =
            ddl__dial((struct sockaddr *)&to, length, ddl__wireup_within(w, DDL__MEMBERS_POLL));
        *here = fd >= 0 || errno != ECONNREFUSED;
        if (fd >= 0)
            return fd;
        if (errno != ETIMEDOUT || ddl__now() >= w->deadline)
            break;
        if ((*status = ddl__wireup_check_members(w)) != DDL_OK)
            return -1;
    }
    *status = ddl__fail(DDL_EUNREACHABLE, "rank %d on %s cannot share memory with rank %d: %s",
                        peer, w->addresses[peer].host, w->rank, strerror(errno));
    return -1;
}

/* Start the handshake over the peer's unix socket. Return DDL_EUNREACHABLE if the peer has no unix
 * socket on this host, or if the comm may not share memory with it. */
static ddl_status dial_local(const ddl__wireup *w, int peer, ddl__peer_dial *a)
{
    ddl_status status = DDL_OK;
    int fd = connect_local(w, peer, &a->peer_is_local, &status);
    if (fd < 0)
        return status;
    bool ours = ddl__same_user(fd); /* memory is not shared with other users */
    uint8_t kind = w->kinds & DDL_LINK_INPROC && ddl__same_process(fd) ? DDL__CONN_INPROC
                   : w->kinds & DDL_LINK_SHM && ours                   ? DDL__CONN_SHM
                                                                       : 0;
    if (kind) {
        ddl__hello hello = ddl__wireup_hello(w, peer, kind);
        return ddl__dial_start(w, &a->attempt, fd, &hello);
    }
    close(fd);
    return ddl__fail(DDL_EUNREACHABLE, "rank %d on %s cannot share memory: %s", peer,
                     w->addresses[peer].host,
                     ours ? "the setting of links (DDL_LINKS) excludes shared memory"
                          : "its process belongs to another user");
}

/* Complete the handshake over the unix socket. */
static ddl_status peer_join_local(const ddl__wireup *w, int peer, ddl__dial_attempt *d)
{
    char why[DDL__MESSAGE_MAX - 128];
    ddl_status status = ddl__dial_await_admission(w, d);
    if (status == DDL_OK)
        return ddl__dial_join(w, peer, d);
    if (!ddl__is_path_failure(w, status))
        return status;
    snprintf(why, sizeof why, "%s", ddl__message());
    return ddl__fail(DDL_EUNREACHABLE, "rank %d on %s cannot share memory: %s", peer,
                     w->addresses[peer].host, why);
}

static bool may_share(const ddl__wireup *w)
{
    return w->kinds & (DDL_LINK_SHM | DDL_LINK_INPROC);
}

/* Use TCP instead of shared memory. Warn if shared memory was expected. */
static void fall_back_to_tcp(const ddl__wireup *w, int peer, ddl__peer_dial *a)
{
    if (a->peer_is_local)
        ddl__log(w->kinds & DDL_LINK_SHM ? DDL__WARN : DDL__INFO,
                 "rank %d uses TCP to rank %d of the same host: %s", w->rank, peer, ddl__message());
    a->tcp = true;
}

/* Start to dial a peer. Returns an error only if a member has failed. */
static ddl_status peer_dial_start(const ddl__wireup *w, int peer, ddl__peer_dial *a)
{
    ddl_status status = may_share(w) ? dial_local(w, peer, a) : DDL_EUNREACHABLE;
    if (ddl__creation_is_told(w->creation))
        return status;
    a->local = status == DDL_OK;
    if (!a->local && w->kinds & DDL_LINK_TCP)
        fall_back_to_tcp(w, peer, a);
    return DDL_OK;
}

static ddl_status fail_deadline(const ddl__wireup *w, int peer, ddl_status status)
{
    if (status != DDL_EUNREACHABLE || ddl__now() < w->deadline)
        return status;
    return ddl__fail(DDL_ETIMEDOUT,
                     "rank %d on %s did not answer within the time limit of the creation", peer,
                     w->addresses[peer].host);
}

/* Complete the first link with a peer that was dialed. */
static ddl_status peer_dial_join(const ddl__wireup *w, int peer, ddl__peer_dial *a)
{
    ddl_status status = DDL_EUNREACHABLE;
    if (may_share(w) && !a->tcp) {
        status = a->local ? DDL_OK : dial_local(w, peer, a);
        if (status == DDL_OK)
            status = peer_join_local(w, peer, &a->attempt);
    }
    /* After a member has failed, another transport does not help. But a connection that was dialed
     * is still completed, because the peer may have answered. */
    if (ddl__creation_is_told(w->creation) && a->attempt.fd < 0)
        return status;
    if ((status == DDL_EUNREACHABLE || status == DDL_EREFUSED) && w->kinds & DDL_LINK_TCP) {
        ddl_status started = DDL_OK;
        if (!a->tcp) {
            fall_back_to_tcp(w, peer, a);
            started = ddl__wireup_start_tcp(w, peer, 1, a);
        }
        status = started == DDL_OK ? ddl__wireup_join_tcp(w, peer, a) : started;
    }
    return fail_deadline(w, peer, status);
}

/* Return true if the creation opens no connection between this rank and the peer. */
static bool is_late(const ddl__wireup *w, int peer)
{
    return peer != w->rank && w->first_use &&
           !ddl__are_connected_early(w->addresses, w->size, w->kinds, w->rank, peer);
}

static bool add_late_pair(const ddl__wireup *w, int peer)
{
    ddl__link **link = &w->links[peer], **messages = &w->messages[peer];
    bool shares = w->kinds & DDL_LINK_SHM &&
                  ddl__may_share_memory(&w->addresses[w->rank], &w->addresses[peer]);
    return shares ? ddl__first_use_add_shared(w->first_use, peer, link, messages)
                  : ddl__first_use_add(w->first_use, peer, w->slots, link, messages);
}

static ddl_status make_late_pairs(const ddl__wireup *w)
{
    for (int peer = 0; peer < w->size; peer++) {
        if (!is_late(w, peer))
            continue;
        if (!add_late_pair(w, peer))
            return DDL_ENOMEM;
        w->controls[peer].late = true;
    }
    return DDL_OK;
}

/* After this rank has failed while waiting for a lower rank, complete the other connections that
 * have been answered meanwhile, so that the reason can be sent over them. */
static ddl_status join_rest(const ddl__wireup *w, ddl__peer_dial *all, int first, ddl_status status)
{
    char why[DDL__MESSAGE_MAX];
    ddl__wireup later = *w;
    ddl__creation ignored = *w->creation;
    later.deadline = ddl__now() + DDL__CREATE_FAILURE_EACH;
    later.until = NULL; /* do not report members as unreachable */
    later.creation = &ignored;
    snprintf(why, sizeof why, "%s", ddl__message());
    for (int peer = first; peer < w->rank; peer++)
        if (!is_late(w, peer))
            peer_dial_join(&later, peer, &all[peer]);
    return ddl__fail(status, "%s", why);
}

/* Dial all lower ranks, and then complete the connections one by one. */
static ddl_status dial_all_lower(const ddl__wireup *w, ddl__peer_dial *all)
{
    ddl_status status = ddl__wireup_check_members(w);
    for (int peer = 0; peer < w->rank && status == DDL_OK; peer++)
        if (!is_late(w, peer))
            status = peer_dial_start(w, peer, &all[peer]);
    if (status == DDL_OK)
        status = ddl__wireup_start_tcp(w, 0, w->rank, all);
    for (int peer = 0; peer < w->rank && status == DDL_OK; peer++)
        if (!is_late(w, peer) && (status = peer_dial_join(w, peer, &all[peer])) != DDL_OK)
            status = join_rest(w, all, peer + 1, status);
    bool checked = false;
    for (int peer = 0; peer < w->rank && status == DDL_OK; peer++) {
        if (!all[peer].tcp || all[peer].first_use)
            continue;
        if (!checked)
            status = ddl__wireup_check_members(w);
        checked = true;
        all[peer].attempt = all[peer].messages;
        all[peer].messages.fd = -1;
        if (status == DDL_OK)
            status = ddl__wireup_dial_path(w, peer, &all[peer], DDL__CONN_MESSAGES);
    }
    for (int peer = 0; peer < w->rank && status == DDL_OK; peer++)
        if (all[peer].tcp && !all[peer].first_use)
            status = fail_deadline(w, peer, ddl__wireup_join_messages(w, peer, &all[peer]));
    return status;
}

static ddl_status dial_lower(const ddl__wireup *w)
{
    ddl__peer_dial *all = w->rank ? calloc((size_t)w->rank, sizeof *all) : NULL;
    if (w->rank && !all)
        return ddl__fail(DDL_ENOMEM, "out of memory: cannot dial %d members", w->rank);
    for (int peer = 0; peer < w->rank; peer++)
        all[peer].attempt.fd = all[peer].messages.fd = -1;
    ddl_status status = dial_all_lower(w, all);
    for (int peer = 0; peer < w->rank; peer++) {
        ddl__dial_cancel(&all[peer].attempt); /* a passed arena is the peer's */
        ddl__dial_cancel(&all[peer].messages);
    }
    free(all);
    return status;
}

ddl_status ddl__wireup_look_for_reason(const ddl__wireup *w, bool *is_over)
{
    const ddl__creation_end fact = {.status = DDL_EPEER};
    *is_over = ddl__creation_handle(w->creation, DDL__CREATION_LOST, &fact, ddl__now()) !=
               DDL__CREATION_LOOK;
    (void)DDL__TEST_POINT(DDL__AT_REASON, w);
    return ddl__wireup_check_reasons(w);
}

ddl_status ddl__wireup_find_reason(const ddl__wireup *w, ddl_status lost)
{
    if (!ddl__creation_is_doubtful(w->creation, lost))
        return lost;
    for (bool is_over = false; !is_over; poll(NULL, 0, is_over ? 0 : 1)) {
        ddl_status status = ddl__wireup_look_for_reason(w, &is_over);
        if (status != DDL_OK)
            return status;
    }
    /* The lost member has only reached its own time limit shortly before this rank, so it is not
     * the missing member. */
    bool is_late = w->links && ddl__creation_is_late(w->creation, ddl__now());
    return is_late ? ddl__wireup_fail_late(w, lost) : lost;
}

ddl_status ddl__wireup_run(const ddl__wireup *w)
{
    ddl_status status = make_late_pairs(w);
    if (status == DDL_OK)
        status = dial_lower(w);
    if (status == DDL_OK)
        status = ddl__wireup_accept_higher(w);
    return ddl__wireup_find_reason(w, status);
}
