#include "connect/create_failures.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "net/socket.h"

/* -------------------------------------------------------------------------------- what was told
 */

static bool is_known(const ddl__create_failures *failures, ddl__digest comm, int from,
                     uint32_t attempt)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        const ddl__create_failure *entry = &failures->list[i];
        if (ddl__digest_equal(entry->comm, comm) && entry->from == from &&
            entry->attempt == attempt)
            return true;
    }
    return false;
}

static ddl__create_failure *add_entry(ddl__create_failures *failures, ddl__digest comm, int from,
                                      uint32_t attempt)
{
    unsigned i = 0; /* the oldest of those that nobody is to ask for, else the oldest */
    while (i < DDL__CREATE_FAILURES_MAX &&
           failures->list[(failures->next + i) % DDL__CREATE_FAILURES_MAX].status != DDL_OK)
        i++;
    ddl__create_failure *entry =
        &failures->list[(failures->next + i % DDL__CREATE_FAILURES_MAX) % DDL__CREATE_FAILURES_MAX];
    failures->next = (failures->next + 1) % DDL__CREATE_FAILURES_MAX;
    *entry =
        (ddl__create_failure){.comm = comm, .from = from, .attempt = attempt, .status = DDL_OK};
    return entry;
}

void ddl__create_failures_add(ddl__create_failures *failures, const ddl__hello *hello)
{
    int from = (int)hello->from;
    if (is_known(failures, hello->comm, from, hello->attempt))
        return;
    ddl__create_failure *entry = add_entry(failures, hello->comm, from, hello->attempt);
    entry->status = hello->status < 0 ? (ddl_status)hello->status : DDL_EPEER;
    _Static_assert(sizeof entry->text == sizeof hello->text, "all of it");
    memcpy(entry->text, hello->text, sizeof entry->text);
    ddl__sanitize_text(entry->text, sizeof entry->text);
}

void ddl__create_failures_ignore(ddl__create_failures *failures, ddl__digest comm, int from,
                                 uint32_t attempt)
{
    if (!is_known(failures, comm, from, attempt))
        add_entry(failures, comm, from, attempt);
}

void ddl__create_failures_forget(ddl__create_failures *failures, ddl__digest comm, int from)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        ddl__create_failure *entry = &failures->list[i];
        if (ddl__digest_equal(entry->comm, comm) && (from < 0 || entry->from == from))
            entry->status = DDL_OK;
    }
}

bool ddl__create_failures_find(const ddl__create_failures *failures, ddl__digest comm,
                               ddl__create_failure *failure)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++)
        if (failures->list[i].status != DDL_OK && ddl__digest_equal(failures->list[i].comm, comm)) {
            *failure = failures->list[i];
            return true;
        }
    return false;
}

/* -------------------------------------------------------------------------------------- telling
 */

static bool send_notice_to(const ddl__wireup *w, int peer, const struct sockaddr *to,
                           socklen_t length, const ddl__reason *why, int64_t end)
{
    const ddl__job *job = ddl__endpoint_job(w->endpoint);
    int64_t own = ddl__now() + DDL__CREATE_FAILURE_EACH, deadline = own < end ? own : end;
    ddl__hello hello = ddl__hello_begin(job, DDL__CONN_CREATE_FAILURE, w->rank, peer, w->size);
    ddl__session session;
    hello.endpoint = w->addresses[peer].endpoint;
    hello.comm = w->comm;
    hello.status = why->status;
    hello.attempt = why->attempt;
    snprintf(hello.text, sizeof hello.text, "%s", why->text);
    int fd = ddl__dial(to, length, deadline);
    if (fd < 0)
        return false;
    bool sent = ddl__handshake_initiate(job, fd, &hello, -1, deadline, &session, NULL) == DDL_OK;
    ddl__session_end(&session);
    close(fd);
    return sent;
}

/* Over the unix socket, if the peer is here. */
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
    const ddl__reason *peer_reason = w->peer_reason;
    bool own = peer_reason->status == DDL_OK;
    int64_t end = ddl__now() + DDL__CREATE_FAILURE_LIMIT;
    uint32_t number = ddl__endpoint_fail_attempt(w->endpoint, w->slot);
    uint32_t attempt = own ? number : peer_reason->attempt;
    snprintf(text, sizeof text, "%s", ddl__message());
    snprintf(whole, sizeof whole, "rank %d on %s could not create the comm: %s", w->rank,
             w->addresses[w->rank].host, text);
    ddl__reason to_unlinked = {status, w->rank, attempt, text},
                to_linked = {status, own ? w->rank : peer_reason->from, attempt,
                             own ? whole : text};
    ddl__reason_write(&to_linked, encoded);
    for (int peer = 0; peer < w->size; peer++) {
        ddl__link *link = w->links ? w->links[peer] : NULL;
        if (link)
            link->ops->close(link, encoded);
        else if (peer != w->rank && own && status != DDL_ETIMEDOUT && ddl__now() < end)
            send_notice(w, peer, &to_unlinked, end);
    }
    if (!w->slot)
        ddl__endpoint_forget_create_failures(w->endpoint, w->comm);
    ddl__fail(status, "%s", text);
}
