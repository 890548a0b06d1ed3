/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/messages/messages_state.h"

/* Return the work that a frame of this peer refers to, or NULL if it is not of this kind. */
static ddl_work *frame_find_work(const ddl__messages *m, uint32_t id, ddl__kind kind, int rank)
{
    ddl_work *work = ddl__ids_get(&m->ids, id);
    return work && work->call.kind == kind && work->transfer.peer == rank ? work : NULL;
}

/* Receive the next part of a message into the receive buffer. Return false until the part has
 * arrived completely. */
static bool work_take_part(ddl__messages *m, ddl__message_peer *p, ddl_work *work, uint32_t id,
                           size_t bytes, const ddl__signature *signature)
{
    unsigned char *to = (unsigned char *)work->call.recv + work->transfer.moved;
    if (!ddl__link_take(p->link, to, bytes, signature))
        return false;
    work->transfer.moved += bytes;
    if (work->transfer.moved == ddl__message_bytes(work)) {
        ddl__ids_remove(&m->ids, id);
        ddl__messages_finish(m, work);
    }
    return true;
}

static void work_accepted(ddl__messages *m, ddl__message_peer *p, ddl_work *work,
                          const ddl__frame *f)
{
    ddl__ids_remove(&m->ids, f->your);
    work->transfer.partner = f->id;
    if (work->call.count)
        ddl__queue_push(&p->accepted, work);
    else
        ddl__messages_finish(m, work);
}

/* Return true if the frame is valid; *work becomes the work that it refers to. A peer must not
 * spend credit that it does not have, nor return credit that was not spent. */
static bool frame_is_sound(const ddl__messages *m, int rank, const ddl__frame *f, size_t bytes,
                           ddl_work **work)
{
    const ddl__message_peer *p = &m->peers[rank];
    size_t element = ddl__dtype_size(f->dtype);
    bool announces = element && f->tag <= INT32_MAX;
    switch ((ddl__frame_kind)f->kind) {
    case DDL__EAGER:
        return announces && bytes <= DDL__EAGER_MAX && bytes == (size_t)f->count * element &&
               ddl__message_cost(bytes) <= DDL__CREDIT_MAX - p->spent;
    case DDL__OFFER: return announces && bytes == 0;
    case DDL__CREDIT: return bytes == 0 && f->count <= DDL__CREDIT_MAX - p->credit;
    case DDL__ANNOUNCE:
    case DDL__ORDER: return bytes && bytes <= DDL__NAME_MESSAGE_MAX;
    case DDL__ACCEPT:
        *work = frame_find_work(m, f->your, DDL__SEND, rank);
        return bytes == 0 && *work;
    case DDL__DATA:
        *work = frame_find_work(m, f->your, DDL__RECV, rank);
        return bytes && *work && bytes <= ddl__message_bytes(*work) - (*work)->transfer.moved;
    }
    return false;
}

/* Take the next frame. Return false if it is incomplete. */
static bool frame_receive(ddl__messages *m, int rank, const ddl__signature *signature, size_t bytes)
{
    ddl__message_peer *p = &m->peers[rank];
    ddl__frame f = ddl__frame_decode(signature);
    ddl_work *work = NULL;
    if (!frame_is_sound(m, rank, &f, bytes, &work)) {
        ddl__messages_fail(m, DDL_EINTERNAL, "%s sent an invalid frame of kind %u with %zu bytes",
                           m->names[rank], f.kind, bytes);
        return false;
    }
    if (f.kind == DDL__DATA)
        return work_take_part(m, p, work, f.your, bytes, signature);
    const void *payload = ddl__link_peek(p->link, bytes, signature);
    if (!payload)
        return false;
    switch ((ddl__frame_kind)f.kind) {
    case DDL__EAGER: p->spent += ddl__message_cost(bytes); /* fall through */
    case DDL__OFFER: ddl__messages_arrive(m, rank, &f, payload, bytes); break;
    case DDL__ACCEPT: work_accepted(m, p, work, &f); break;
    case DDL__CREDIT: p->credit += f.count; break;
    case DDL__ANNOUNCE:
    case DDL__ORDER:
        if (!ddl__name_messages_add(&m->name_messages, rank, f.kind, payload, bytes))
            ddl__messages_fail_for_memory(m);
        break;
    case DDL__DATA: break;
    }
    p->link->ops->release(p->link);
    return true;
}

/* Return true if the next span is a frame. Without named operations all spans are frames. */
static bool is_for_messages(const ddl__messages *m, const ddl__signature *signature)
{
    return ddl__is_frame(signature) || !m->named;
}

bool ddl__messages_receive(ddl__messages *m, int rank)
{
    ddl__link *link = m->peers[rank].link;
    ddl__signature signature;
    size_t bytes;
    unsigned n = 0;
    while (n < DDL__MESSAGE_SLICE && m->status == DDL_OK &&
           link->ops->next(link, &signature, &bytes) && is_for_messages(m, &signature) &&
           frame_receive(m, rank, &signature, bytes))
        n++;
    return n;
}
