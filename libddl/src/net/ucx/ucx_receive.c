/* SPDX-License-Identifier: Apache-2.0 */
/* ucx_receive.c - the receiving half of a link over UCX. The handlers of active messages only
 * record the arrival. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "net/ucx/ucx_link.h"

enum { ALIGNMENT = 64 };

/* Read a header, and return its link if it is valid, else NULL. */
static ddl__ucx_link *head_read(ddl__ucx *ucx, const void *header, size_t header_bytes,
                                ddl__ucx_head *head)
{
    if (header_bytes != sizeof *head)
        return NULL;
    memcpy(head, header, sizeof *head);
    if (head->from >= (uint32_t)ucx->size || head->second > 1)
        return NULL;
    return &ucx->links[2 * head->from + head->second];
}

static ddl__ucs_status span_arrived(void *argument, const void *header, size_t header_bytes,
                                    void *data, size_t bytes, const ddl__ucp_am_param *param)
{
    ddl__ucx *ucx = argument;
    ddl__ucx_head head;
    ddl__ucx_link *l = head_read(ucx, header, header_bytes, &head);
    if (!l || l->closed)
        return DDL__UCS_OK;
    ddl__ucx_arrival *a = &l->arrivals[head.number % DDL__UCX_WINDOW];
    bool kept = param->attributes & (DDL__UCP_AM_DATA | DDL__UCP_AM_RENDEZVOUS);
    if (head.number - l->released >= DDL__UCX_WINDOW || a->here || head.bytes != bytes ||
        (bytes && !kept)) {
        ddl__ucx_fail(l, DDL__UCS_INVALID);
        return DDL__UCS_OK;
    }
    bool rendezvous = param->attributes & DDL__UCP_AM_RENDEZVOUS;
    *a = (ddl__ucx_arrival){.head = head,
                            .here = true,
                            .rendezvous = rendezvous,
                            .data = kept ? data : NULL,
                            .received = !rendezvous};
    l->arrived++;
    return kept ? DDL__UCS_INPROGRESS : DDL__UCS_OK;
}

static ddl__ucs_status credit_arrived(void *argument, const void *header, size_t header_bytes,
                                      void *data, size_t bytes, const ddl__ucp_am_param *param)
{
    ddl__ucx_head head;
    ddl__ucx_link *l = head_read(argument, header, header_bytes, &head);
    (void)data, (void)bytes, (void)param;
    if (l && head.number > l->released_there && head.number <= l->sent)
        l->released_there = head.number;
    return DDL__UCS_OK;
}

static ddl__ucs_status probe_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ddl__ucp_am_param *param)
{
    ddl__ucx_head head;
    ddl__ucx_link *l = head_read(argument, header, header_bytes, &head);
    (void)data, (void)bytes, (void)param;
    if (l)
        l->reached = true;
    return DDL__UCS_OK;
}

bool ddl__ucx_handle_messages(ddl__ucx *ucx)
{
    ddl__ucp_am_handler handler = {.fields = DDL__UCP_HANDLER_ID | DDL__UCP_HANDLER_FLAGS |
                                             DDL__UCP_HANDLER_ARRIVED | DDL__UCP_HANDLER_ARGUMENT,
                                   .id = DDL__UCX_SPAN,
                                   .flags = DDL__UCP_AM_WHOLE | DDL__UCP_AM_PERSISTENT,
                                   .arrived = span_arrived,
                                   .argument = ucx};
    if (ucx->ucp.am_handler(ucx->worker, &handler) != DDL__UCS_OK)
        return false;
    handler.id = DDL__UCX_CREDIT;
    handler.flags = DDL__UCP_AM_WHOLE;
    handler.arrived = credit_arrived;
    if (ucx->ucp.am_handler(ucx->worker, &handler) != DDL__UCS_OK)
        return false;
    handler.id = DDL__UCX_PROBE;
    handler.arrived = probe_arrived;
    return ucx->ucp.am_handler(ucx->worker, &handler) == DDL__UCS_OK;
}

static ddl__ucx_arrival *next_arrival(ddl__ucx_link *l)
{
    ddl__ucx_arrival *a = &l->arrivals[l->released % DDL__UCX_WINDOW];
    if (!a->here && l->tcp->base.state == DDL__LINK_OPEN) {
        ddl__ucx_progress(l->ucx);
        if (l->leaving || l->tcp->fd < 0) /* an unopened TCP link has no events */
            ddl__ucx_check(l);
    }
    return a->here ? a : NULL;
}

bool ddl__ucx_next(ddl__link *link, ddl__signature *signature, size_t *bytes)
{
    ddl__ucx_link *l = ddl__ucx_of(link);
    pthread_mutex_lock(&l->ucx->lock);
    const ddl__ucx_arrival *a = next_arrival(l);
    if (a) {
        *signature = a->head.signature;
        *bytes = a->head.bytes;
    }
    pthread_mutex_unlock(&l->ucx->lock);
    return a;
}

static void *buffer_of(ddl__ucx_link *l, size_t bytes)
{
    if (l->capacity < bytes) {
        free(l->buffer);
        l->capacity = (bytes + DDL__TCP_PAGE - 1) / DDL__TCP_PAGE * DDL__TCP_PAGE;
        l->buffer = aligned_alloc(DDL__TCP_PAGE, l->capacity);
        if (!l->buffer) {
            l->capacity = 0;
            ddl__tcp_lose(l->tcp, "", "out of memory for a receive buffer");
        }
    }
    return l->buffer;
}

/* Handle the end of fetching a payload. The request's user data is only the link, because at most
 * one span of a link, the next one, is being fetched. */
static void fetched(void *request, ddl__ucs_status status, size_t bytes, void *user_data)
{
    ddl__ucx_link *l = user_data;
    ddl__ucx_arrival *a = &l->arrivals[l->released % DDL__UCX_WINDOW];
    (void)bytes;
    a->receiving = false;
    a->received = status == DDL__UCS_OK;
    l->pending -= request != NULL;
    if (request)
        l->ucx->ucp.request_free(request);
    if (status != DDL__UCS_OK)
        ddl__ucx_fail(l, status);
    else
        l->ucx->links[2 * l->peer].connected = true;
}

static void fetch(ddl__ucx_link *l, ddl__ucx_arrival *a, void *place)
{
    const ddl__ucp_request_param param = {.fields = DDL__UCP_OP_CALLBACK | DDL__UCP_OP_USER_DATA,
                                          .callback.received = fetched,
                                          .user_data = l};
    /* An abort closes the endpoint, which ends the request. */
    if (l->lost_at || l->closed || !ddl__ucx_endpoint(l))
        return;
    a->place = place;
    a->receiving = true;
    ddl__ucs_result result =
        l->ucx->ucp.am_receive(l->ucx->worker, a->data, place, a->head.bytes, &param);
    a->data = NULL; /* UCX owns it now */
    if (!result || ddl__ucs_is_error(result))
        fetched(NULL, ddl__ucs_status_of(result), a->head.bytes, l);
    else
        l->pending++;
}

/* Return the payload if it has arrived completely, else NULL. */
static const void *obtain(ddl__ucx_link *l, ddl__ucx_arrival *a, void *into)
{
    if (!a->head.bytes)
        return into ? into : l;
    bool aligned = (uintptr_t)a->data % ALIGNMENT == 0;
    if (a->received && !a->rendezvous && !into && aligned)
        return a->data;
    if (!a->place) {
        void *place = into ? into : buffer_of(l, a->head.bytes);
        if (!place)
            return NULL;
        if (a->rendezvous)
            fetch(l, a, place);
        else
            memcpy(a->place = place, a->data, a->head.bytes);
    } else if (a->receiving) {
        ddl__ucx_progress(l->ucx);
    }
    return a->received ? a->place : NULL;
}

const void *ddl__ucx_peek(ddl__link *link, unsigned ahead, void *into, size_t bytes,
                          const ddl__signature *signature)
{
    ddl__ucx_link *l = ddl__ucx_of(link);
    const void *span = NULL;
    assert(!ahead);
    (void)ahead;
    pthread_mutex_lock(&l->ucx->lock);
    ddl__ucx_arrival *a = next_arrival(l);
    if (!a) {
        l->tcp_ops->want(link);
    } else if (a->head.bytes == bytes &&
               !memcmp(&a->head.signature, signature, sizeof *signature)) {
        span = obtain(l, a, into);
    } else if (link->state == DDL__LINK_OPEN) {
        link->state = DDL__LINK_MISMATCH;
        link->found = a->head.signature;
        link->found_bytes = a->head.bytes;
    }
    pthread_mutex_unlock(&l->ucx->lock);
    return span;
}

static void arrival_drop(const ddl__ucx *ucx, ddl__ucx_arrival *a)
{
    if (a->here && a->data)
        ucx->ucp.am_release(ucx->worker, a->data);
    a->here = false;
    a->data = NULL;
}

bool ddl__ucx_release(ddl__link *link)
{
    ddl__ucx_link *l = ddl__ucx_of(link);
    pthread_mutex_lock(&l->ucx->lock);
    arrival_drop(l->ucx, &l->arrivals[l->released % DDL__UCX_WINDOW]);
    l->released++;
    ddl__ucx_return_room(l);
    pthread_mutex_unlock(&l->ucx->lock);
    return true;
}

void ddl__ucx_drop_arrivals(ddl__ucx_link *l)
{
    for (unsigned i = 0; i < DDL__UCX_WINDOW; i++)
        arrival_drop(l->ucx, &l->arrivals[i]);
}
