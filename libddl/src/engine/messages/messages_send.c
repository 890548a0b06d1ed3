/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "engine/messages/messages_state.h"

enum {
    SEGMENT = 256 * 1024, /* bytes of a part of a long message */
    SEGMENT_SHARED = 64 * 1024,

    /* Limits for the frames that are in flight on a link that a stream shares. The stream's plans
     * rely on the remaining space of the link. */
    FLIGHT_FRAMES = 16,
    FLIGHT_BYTES = 64 * 1024 /* the last frame may exceed it */
};

static void peer_count_flight(ddl__message_peer *p, size_t bytes)
{
    p->unsent = p->link->ops->zero_copy;
    p->flight_bytes += bytes;
    p->flight_frames++;
}

/* Return true if enough room is left for the stream that shares the link. */
static bool peer_leaves_room(const ddl__messages *m, ddl__message_peer *p)
{
    if (!m->named || p->link->ops->flush(p->link) == DDL__LINK_DRAINED) {
        p->flight_bytes = 0;
        p->flight_frames = 0;
    }
    return p->flight_bytes < FLIGHT_BYTES && p->flight_frames < FLIGHT_FRAMES;
}

static bool peer_send_frame(ddl__message_peer *p, const ddl__frame *f, const void *memory,
                            size_t bytes)
{
    ddl__signature signature = ddl__frame_encode(f);
    if (!p->link->ops->send_user(&p->link, 1, bytes ? memory : "", bytes, &signature))
        return false;
    peer_count_flight(p, bytes);
    return true;
}

/* Return true if the link still has frames to send, for example because it is unopened. */
static bool peer_is_sending(ddl__messages *m, ddl__message_peer *p)
{
    p->unsent = p->unsent && p->link->ops->flush(p->link) == DDL__LINK_SENDING;
    if (!p->unsent && p->names_leaving) {
        atomic_fetch_sub_explicit(m->names_unsent, p->names_leaving, memory_order_relaxed);
        p->names_leaving = 0;
    }
    return p->unsent;
}

static bool peer_send_name(ddl__messages *m, ddl__message_peer *p)
{
    const ddl__name_message *message = p->name_messages.first;
    void *span = message ? p->link->ops->reserve(&p->link, 1, message->bytes) : NULL;
    if (!span)
        return false;
    ddl__frame f = {.kind = message->kind};
    ddl__signature signature = ddl__frame_encode(&f);
    memcpy(span, message->payload, message->bytes);
    p->link->ops->publish(&p->link, 1, span, message->bytes, &signature);
    peer_count_flight(p, message->bytes);
    free(ddl__name_messages_take(&p->name_messages));
    p->names_leaving++;
    peer_is_sending(m, p);
    return true;
}

/* Accept an offer, or return credit. */
static bool peer_send_answer(ddl__messages *m, ddl__message_peer *p)
{
    ddl_work *work = p->accepting.head;
    if (work) {
        ddl__frame f = {.kind = DDL__ACCEPT, .your = work->transfer.partner};
        if (!ddl__ids_add(&m->ids, work, &f.id)) {
            ddl__messages_fail_for_memory(m);
            return false;
        }
        bool sent = peer_send_frame(p, &f, NULL, 0), empty = work->call.count == 0;
        if (!sent || empty) /* the peer will not use this id: the frame was not sent, or there is no
                               data to send */
            ddl__ids_remove(&m->ids, f.id);
        if (sent)
            ddl__queue_pop(&p->accepting);
        if (sent && empty)
            ddl__messages_finish(m, work);
        return sent;
    }
    ddl__frame f = {.kind = DDL__CREDIT, .count = p->owed};
    if (p->owed < DDL__CREDIT_BATCH || !peer_send_frame(p, &f, NULL, 0))
        return false;
    p->spent -= p->owed;
    p->owed = 0;
    return true;
}

/* Announce the oldest new send: the whole message, or an offer. */
static bool peer_send_announcement(ddl__messages *m, ddl__message_peer *p)
{
    ddl_work *work = p->sends.head;
    if (!work)
        return false;
    size_t bytes = ddl__message_bytes(work);
    if (ddl__message_is_eager(p, bytes)) {
        ddl__frame f = ddl__message_frame(work, DDL__EAGER);
        if (!peer_send_frame(p, &f, work->call.send, bytes))
            return false;
        p->credit -= ddl__message_cost(bytes);
        ddl__queue_push(&p->leaving, ddl__queue_pop(&p->sends));
        return true;
    }
    ddl__frame f = ddl__message_frame(work, DDL__OFFER);
    if (!ddl__ids_add(&m->ids, work, &f.id)) {
        ddl__messages_fail_for_memory(m);
        return false;
    }
    if (!peer_send_frame(p, &f, NULL, 0)) {
        ddl__ids_remove(&m->ids, f.id);
        return false;
    }
    ddl__queue_pop(&p->sends);
    return true;
}

static bool peer_send_part(ddl__message_peer *p)
{
    ddl_work *work = p->accepted.head;
    if (!work)
        return false;
    const unsigned char *memory = work->call.send;
    size_t left = ddl__message_bytes(work) - work->transfer.moved;
    size_t part = p->link->shared ? SEGMENT_SHARED : SEGMENT;
    if (part > left)
        part = left;
    ddl__frame f = {.kind = DDL__DATA, .your = work->transfer.partner};
    if (!peer_send_frame(p, &f, memory + work->transfer.moved, part))
        return false;
    work->transfer.moved += part;
    if (part == left)
        ddl__queue_push(&p->leaving, ddl__queue_pop(&p->accepted));
    return true;
}

bool ddl__messages_send(ddl__messages *m, ddl__message_peer *p)
{
    bool moved = false;
    for (unsigned n = 0; n < DDL__MESSAGE_SLICE && !peer_is_sending(m, p); n++) {
        for (ddl_work *work; (work = ddl__queue_pop(&p->leaving)); moved = true)
            ddl__messages_finish(m, work);
        if (!peer_leaves_room(m, p) || (!peer_send_name(m, p) && !peer_send_answer(m, p) &&
                                        !peer_send_announcement(m, p) && !peer_send_part(p)))
            break;
        moved = true;
    }
    return moved;
}
