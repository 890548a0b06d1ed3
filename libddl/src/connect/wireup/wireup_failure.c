/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the other members a create-failure notice after a failed wireup. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "connect/wireup/wireup.h"
#include "net/close_reason.h"
#include "net/socket.h"

static bool send_notice_to(const ddl__wireup *w, int peer, const struct sockaddr *to,
                           socklen_t length, const ddl__reason *why, int64_t end)
{
    const ddl__job *job = ddl__endpoint_job(w->endpoint);
    int64_t own = ddl__now() + DDL__CREATE_FAILURE_EACH, deadline = own < end ? own : end;
    ddl__hello hello = ddl__hello_begin(job, DDL__CONN_CREATE_FAILURE, w->rank, peer, w->size);
    ddl__session session;
    hello.endpoint = w->addresses[peer].endpoint;
    hello.comm = w->id.comm;
    hello.family = w->id.family;
    hello.creation = w->id.number;
    hello.status = why->status;
    hello.attempt = why->attempt;
    snprintf(hello.text, sizeof hello.text, "%s", why->text);
    int fd = ddl__dial(to, length, deadline);
    if (fd < 0)
        return false;
    bool sent = ddl__handshake_initiate(job, fd, &hello, deadline, &session) == DDL_OK;
    ddl__session_end(&session);
    close(fd);
    return sent;
}

/* Send a notice over the unix socket, which exists if the peer is on this host, else over TCP. */
static void send_notice(const ddl__wireup *w, int peer, const ddl__reason *why, int64_t end)
{
    const ddl__address *address = &w->addresses[peer];
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&address->endpoint, &to);
    bool sent = send_notice_to(w, peer, (struct sockaddr *)&to, length, why, end);
    for (unsigned i = 0; !sent && i < address->n_ips && ddl__now() < end; i++) {
        length = ddl__address_ip(address, i, &to);
        sent = send_notice_to(w, peer, (struct sockaddr *)&to, length, why, end);
    }
}

void ddl__wireup_announce_failure(const ddl__wireup *w, ddl_status status)
{
    char text[DDL__MESSAGE_MAX], whole[DDL__MESSAGE_MAX + 160], encoded[DDL__REASON_MAX];
    bool own = !ddl__creation_is_told(w->creation);
    int64_t end = ddl__now() + DDL__CREATE_FAILURE_LIMIT;
    uint32_t number = ddl__endpoint_fail_attempt(w->endpoint, w->slot,
                                                 ddl__creation_keeps_waiting(w->creation, status));
    ddl__creation_end why = ddl__creation_reason(w->creation, status, w->rank, number);
    snprintf(text, sizeof text, "%s", ddl__message());
    snprintf(whole, sizeof whole, "rank %d on %s could not create the comm: %s", w->rank,
             w->addresses[w->rank].host, text);
    ddl__reason to_unlinked = {status, w->rank, why.number, text},
                to_linked = {status, why.from, why.number, own ? whole : text};
    ddl__reason_write(&to_linked, encoded);
    for (int peer = 0; peer < w->size; peer++) {
        ddl__link *link = w->links && peer != w->rank ? w->links[peer] : NULL;
        ddl__creation_audience audience =
            ddl__creation_audience_of(w->creation, status, link && link->fd >= 0);
        if (audience == DDL__CREATION_CLOSE_LINK)
            link->ops->close(link, encoded);
        else if (audience == DDL__CREATION_SEND_NOTICE && peer != w->rank && ddl__now() < end)
            send_notice(w, peer, &to_unlinked, end);
    }
    if (!w->slot)
        ddl__endpoint_forget_create_failures(w->endpoint, &w->id);
    ddl__fail(status, "%s", text);
}
