/* SPDX-License-Identifier: Apache-2.0 */
/* ucx_send.c - the sending half of a link over UCX. A link that is closed or has failed discards
 * spans, so that no caller waits for room on a dead link. */
#include <assert.h>

#include "net/ucx/ucx_link.h"

static void sent(void *request, ddl__ucs_status status, void *user_data)
{
    ddl__ucx_sent *s = user_data;
    ddl__ucx_link *l = s->link;
    s->pending = false;
    ddl__slot_leave(s->users);
    if (request) {
        l->pending--;
        l->ucx->ucp.request_free(request);
    }
    if (status != DDL__UCS_OK)
        ddl__ucx_fail(l, status);
    else
        l->ucx->links[2 * l->peer].connected = true;
    if (s == &l->credit && status == DDL__UCS_OK)
        ddl__ucx_return_room(l);
}

/* Send a message that consists of s->head and a payload. */
static void message_send(ddl__ucx_sent *s, unsigned id, const void *payload)
{
    ddl__ucx_link *l = s->link;
    const ddl__ucp_request_param param = {.fields = DDL__UCP_OP_CALLBACK | DDL__UCP_OP_USER_DATA,
                                          .callback.sent = sent,
                                          .user_data = s};
    ddl__ucp_ep *endpoint = l->closed || l->lost_at ? NULL : ddl__ucx_endpoint(l);
    if (!endpoint) {
        ddl__slot_leave(s->users);
        return;
    }
    s->head.from = (uint32_t)l->ucx->rank;
    s->head.second = (l - l->ucx->links) & 1;
    s->pending = true;
    ddl__ucs_result result =
        l->ucx->ucp.am_send(endpoint, id, &s->head, sizeof s->head, payload, s->head.bytes, &param);
    if (!result || ddl__ucs_is_error(result))
        sent(NULL, ddl__ucs_status_of(result), s);
    else
        l->pending++;
}

static void span_send(ddl__ucx_link *l, const void *payload, size_t bytes,
                      const ddl__signature *signature, atomic_uint *users)
{
    uint64_t number = l->sent++;
    if (l->closed || l->lost_at || l->tcp->fd < 0) { /* the entry may be pending */
        ddl__slot_leave(users);
        return;
    }
    ddl__ucx_sent *s = &l->spans[number % DDL__UCX_WINDOW];
    *s = (ddl__ucx_sent){.head = {.number = number, .signature = *signature, .bytes = bytes},
                         .link = l,
                         .users = users};
    message_send(s, DDL__UCX_SPAN, payload);
}

/* Return true if the TCP link is open, or will never open. Otherwise request its connection, and
 * return false. */
static bool is_opened(ddl__ucx_link *l)
{
    static const ddl__signature none;
    ddl__link *tcp = &l->tcp->base;
    if (l->tcp->fd >= 0)
        return true;
    if (!l->opening)
        l->tcp_ops->send_user(&tcp, 1, &l->farewell, sizeof l->farewell, &none);
    l->opening = true;
    l->tcp_ops->flush(tcp);
    tcp->quiet = false;
    return l->tcp->fd >= 0 || tcp->state != DDL__LINK_OPEN;
}

static bool has_room(ddl__ucx_link *l)
{
    return (is_opened(l) && l->sent - l->released_there < DDL__UCX_WINDOW &&
            !l->spans[l->sent % DDL__UCX_WINDOW].pending) ||
           l->closed || l->lost_at;
}

/* Return true if all of these links have room. If one has none, let UCX work once, and check
 * again. */
static bool all_have_room(ddl__link *const *to, unsigned n)
{
    bool worked = false;
    for (unsigned i = 0; i < n; i++) {
        ddl__ucx_link *l = ddl__ucx_of(to[i]);
        if (!worked && !has_room(l)) {
            ddl__ucx_progress(l->ucx);
            worked = true;
        }
        if (!has_room(l))
            return false;
    }
    return true;
}

void ddl__ucx_return_room(ddl__ucx_link *l)
{
    if (l->released - l->credited < DDL__UCX_WINDOW / 2 || l->credit.pending)
        return;
    l->credited = l->released;
    l->credit = (ddl__ucx_sent){.head.number = l->released, .link = l};
    message_send(&l->credit, DDL__UCX_CREDIT, NULL);
}

void ddl__ucx_send_probe(ddl__ucx_link *l)
{
    l->credit = (ddl__ucx_sent){.link = l};
    message_send(&l->credit, DDL__UCX_PROBE, NULL);
}

void *ddl__ucx_reserve(ddl__link *const *to, unsigned n, size_t bytes)
{
    ddl__ucx *ucx = ddl__ucx_of(to[0])->ucx;
    assert(bytes <= ddl__slots_bytes(ucx->slots));
    (void)bytes;
    pthread_mutex_lock(&ucx->lock);
    void *slot = all_have_room(to, n) ? ddl__slot_find(ucx->slots) : NULL;
    if (!slot)
        ddl__ucx_progress(ucx);
    pthread_mutex_unlock(&ucx->lock);
    return slot;
}

static void send_to_all(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                        const ddl__signature *signature, atomic_uint *users)
{
    for (unsigned i = 0; i < n; i++)
        span_send(ddl__ucx_of(to[i]), memory, bytes, signature, users);
}

void ddl__ucx_publish(ddl__link *const *to, unsigned n, void *span, size_t bytes,
                      const ddl__signature *signature)
{
    ddl__ucx *ucx = ddl__ucx_of(to[0])->ucx;
    atomic_uint *users = ddl__slot_users(ucx->slots, span);
    atomic_store_explicit(users, n, memory_order_relaxed);
    pthread_mutex_lock(&ucx->lock);
    send_to_all(to, n, span, bytes, signature, users);
    pthread_mutex_unlock(&ucx->lock);
}

bool ddl__ucx_send_user(ddl__link *const *to, unsigned n, const void *memory, size_t bytes,
                        const ddl__signature *signature)
{
    ddl__ucx *ucx = ddl__ucx_of(to[0])->ucx;
    pthread_mutex_lock(&ucx->lock);
    bool room = all_have_room(to, n);
    if (room)
        send_to_all(to, n, memory, bytes, signature, NULL);
    pthread_mutex_unlock(&ucx->lock);
    return room;
}

ddl__link_pending ddl__ucx_flush(ddl__link *link)
{
    ddl__ucx_link *l = ddl__ucx_of(link);
    pthread_mutex_lock(&l->ucx->lock);
    if (l->pending)
        ddl__ucx_progress(l->ucx);
    bool drained = !l->pending;
    pthread_mutex_unlock(&l->ucx->lock);
    return drained ? DDL__LINK_DRAINED : DDL__LINK_SENDING;
}
