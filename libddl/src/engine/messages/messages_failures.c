/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "engine/calls/describe.h"
#include "engine/messages/messages_state.h"

void ddl__messages_fail(ddl__messages *m, ddl_status status, const char *format, ...)
{
    va_list args;
    if (m->status != DDL_OK)
        return;
    va_start(args, format);
    vsnprintf(m->text, sizeof m->text, format, args);
    va_end(args);
    m->status = status;
}

void ddl__messages_fail_for_memory(ddl__messages *m)
{
    ddl__messages_fail(m, DDL_ENOMEM, "%s: out of memory for a message", m->names[m->rank]);
}

/* Return a work that waits for this peer; if `p` is NULL, a receive from any rank that waits. */
static const ddl_work *find_waiting(const ddl__messages *m, const ddl__message_peer *p)
{
    const ddl_work *work = m->pending;
    while (work && work->transfer.peer != (p ? (int)(p - m->peers) : DDL_ANY_SOURCE))
        work = work->transfer.after;
    return work;
}

static void fail_by_leaving(ddl__messages *m, const char *who, const ddl_work *work)
{
    char text[DDL__CALL_MAX];
    ddl__describe_call(text, sizeof text, &work->call);
    ddl__messages_fail(m, DDL_EPEER, "%s left the comm while %s called %s", who, m->names[m->rank],
                       text);
}

/* Return true if a span has arrived. A span of the named stream counts, since a message may follow
 * it. */
static bool peer_has_spans(const ddl__message_peer *p)
{
    ddl__signature signature;
    size_t bytes;
    return p->link->ops->next(p->link, &signature, &bytes);
}

void ddl__messages_check_peers(ddl__messages *m)
{
    int left = 0;
    for (int i = 0; (m->pending || m->named) && i < m->size; i++) {
        const ddl__message_peer *p = &m->peers[i];
        if (!p->link || (!p->waiting && !m->n_anywhere && !m->named))
            continue;
        switch (p->link->state) {
        case DDL__LINK_OPEN:
            if (p->waiting && p->link->ops->want)
                p->link->ops->want(p->link);
            break;
        case DDL__LINK_ABORTED: /* failures.c reports it */ break;
        case DDL__LINK_LEFT:
            left++;
            if (p->waiting && !peer_has_spans(p))
                fail_by_leaving(m, m->names[i], find_waiting(m, p));
            break;
        case DDL__LINK_MISMATCH: /* the signature has changed since ops->next read it */
            ddl__messages_fail(m, DDL_EPEER,
                               "%s is lost: its shared memory changed while it was read",
                               m->names[i]);
            break;
        case DDL__LINK_LOST:
            m->lost = m->status == DDL_OK ? i + 1 : m->lost;
            ddl__messages_fail(m, DDL_EPEER, "%s is lost: %s", m->names[i], p->link->reason);
            break;
        }
    }
    if (m->n_anywhere && left && left == m->size - 1)
        fail_by_leaving(m, "every other rank", find_waiting(m, NULL));
}

void ddl__messages_check_limits(ddl__messages *m)
{
    int64_t first = DDL__NEVER, now = m->pending ? ddl__now() : 0;
    if (now <= m->deadline)
        return;
    for (const ddl_work *work = m->pending; work; work = work->transfer.after) {
        if (work->deadline < first)
            first = work->deadline;
        if (now <= work->deadline)
            continue;
        char text[DDL__CALL_MAX];
        ddl__describe_call(text, sizeof text, &work->call);
        ddl__messages_fail(m, DDL_EEXPIRED, "%s: %s ran past its limit of %lld ms",
                           m->names[m->rank], text, (long long)work->call.timeout_ms);
    }
    m->deadline = first;
}

int64_t ddl__messages_deadline(const ddl__messages *m)
{
    return m->deadline;
}

ddl_status ddl__messages_failure(const ddl__messages *m, const char **text)
{
    *text = m->text;
    return m->status;
}

int ddl__messages_lost(const ddl__messages *m)
{
    return m->lost - 1;
}
