#include "connect/create_failures.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/time_limits.h"
#include "net/socket.h"

/* -------------------------------------------------------------------------------- what was told
 */

static bool knows(const ddl__create_failures *failures, ddl__digest comm, int from,
                  uint32_t attempt)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        const ddl__create_failure *r = &failures->list[i];
        if (ddl__digest_equal(r->comm, comm) && r->from == from && r->attempt == attempt)
            return true;
    }
    return false;
}

static ddl__create_failure *add(ddl__create_failures *failures, ddl__digest comm, int from,
                                uint32_t attempt)
{
    unsigned i = 0; /* the oldest of those that nobody is to ask for, else the oldest */
    while (i < DDL__CREATE_FAILURES_MAX &&
           failures->list[(failures->next + i) % DDL__CREATE_FAILURES_MAX].status != DDL_OK)
        i++;
    ddl__create_failure *r =
        &failures->list[(failures->next + i % DDL__CREATE_FAILURES_MAX) % DDL__CREATE_FAILURES_MAX];
    failures->next = (failures->next + 1) % DDL__CREATE_FAILURES_MAX;
    *r = (ddl__create_failure){.comm = comm, .from = from, .attempt = attempt, .status = DDL_OK};
    return r;
}

void ddl__create_failures_add(ddl__create_failures *failures, const ddl__hello *hello)
{
    int from = (int)hello->from;
    if (knows(failures, hello->comm, from, hello->attempt))
        return;
    ddl__create_failure *r = add(failures, hello->comm, from, hello->attempt);
    r->status = hello->status < 0 ? (ddl_status)hello->status : DDL_EPEER;
    _Static_assert(sizeof r->text == sizeof hello->text, "all of it");
    memcpy(r->text, hello->text, sizeof r->text);
    ddl__clean(r->text, sizeof r->text);
}

void ddl__create_failures_ignore(ddl__create_failures *failures, ddl__digest comm, int from,
                                 uint32_t attempt)
{
    if (!knows(failures, comm, from, attempt))
        add(failures, comm, from, attempt);
}

void ddl__create_failures_forget(ddl__create_failures *failures, ddl__digest comm, int from)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        ddl__create_failure *r = &failures->list[i];
        if (ddl__digest_equal(r->comm, comm) && (from < 0 || r->from == from))
            r->status = DDL_OK;
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

static bool tell_at(const ddl__wireup *m, int peer, const struct sockaddr *to, socklen_t length,
                    const ddl__reason *why, int64_t end)
{
    const ddl__job *job = ddl__endpoint_job(m->endpoint);
    int64_t own = ddl__now() + DDL__CREATE_FAILURE_EACH, deadline = own < end ? own : end;
    ddl__hello hello = ddl__hello_begin(job, DDL__CONN_CREATE_FAILURE, m->rank, peer, m->size);
    ddl__session session;
    hello.endpoint = m->addresses[peer].endpoint;
    hello.comm = m->comm;
    hello.status = why->status;
    hello.attempt = why->attempt;
    snprintf(hello.text, sizeof hello.text, "%s", why->text);
    int fd = ddl__dial(to, length, deadline);
    if (fd < 0)
        return false;
    bool told = ddl__handshake_initiate(job, fd, &hello, -1, deadline, &session, NULL) == DDL_OK;
    ddl__session_end(&session);
    close(fd);
    return told;
}

/* Over the unix socket, if the peer is here. */
static void tell(const ddl__wireup *m, int peer, const ddl__reason *why, int64_t end)
{
    const ddl__address *address = &m->addresses[peer];
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&address->endpoint, &to);
    bool told = tell_at(m, peer, (struct sockaddr *)&to, length, why, end);
    for (unsigned i = 0; !told && i < address->n_ips && ddl__now() < end; i++) {
        length = ddl__address_ip(address, i, &to);
        told = tell_at(m, peer, (struct sockaddr *)&to, length, why, end);
    }
}

void ddl__wireup_failed(const ddl__wireup *m, ddl_status status)
{
    char text[DDL__MESSAGE_MAX], whole[DDL__MESSAGE_MAX + 160], said[DDL__REASON_MAX];
    const ddl__reason *told = m->told;
    bool own = told->status == DDL_OK;
    int64_t end = ddl__now() + DDL__CREATE_FAILURE_LIMIT;
    uint32_t number = ddl__endpoint_failed(m->endpoint, m->slot);
    uint32_t attempt = own ? number : told->attempt;
    snprintf(text, sizeof text, "%s", ddl__message());
    snprintf(whole, sizeof whole, "rank %d on %s could not create the comm: %s", m->rank,
             m->addresses[m->rank].host, text);
    ddl__reason to_strangers = {status, m->rank, attempt, text},
                to_linked = {status, own ? m->rank : told->from, attempt, own ? whole : text};
    ddl__reason_write(&to_linked, said);
    for (int peer = 0; peer < m->size; peer++) {
        ddl__link *link = m->links ? m->links[peer] : NULL;
        if (link)
            link->ops->close(link, said);
        else if (peer != m->rank && own && status != DDL_ETIMEDOUT && ddl__now() < end)
            tell(m, peer, &to_strangers, end);
    }
    if (!m->slot)
        ddl__endpoint_forget(m->endpoint, m->comm);
    ddl__fail(status, "%s", text);
}
