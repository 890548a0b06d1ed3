/* SPDX-License-Identifier: Apache-2.0 */
/* Matches receives with the messages and offers that arrive. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/calls/describe.h"
#include "engine/messages/messages_state.h"

static void work_record_start(ddl__messages *m, ddl_work *work)
{
    if (!m->recorder)
        return;
    ddl__signature signature = ddl__signature_of(&work->call, 0);
    work->element = ddl__dtype_size(work->call.dtype);
    ddl__record_start(m->recorder, work, DDL__MATCH_MESSAGE, &signature, work->submitted);
}

static void work_record_end(ddl__messages *m, const ddl_work *work)
{
    if (m->recorder)
        ddl__record_end(m->recorder, work, DDL_OK, ddl__now());
}

/* Let the work wait for this peer. */
static void work_wait_for(ddl__messages *m, ddl_work *work, int rank)
{
    ddl__message_peer *p = &m->peers[rank];
    work->transfer.peer = rank;
    p->waiting++;
    ddl__messages_activate(m, rank);
}

void ddl__messages_finish(ddl__messages *m, ddl_work *work)
{
    if (work->call.kind == DDL__RECV && work->call.sender)
        *work->call.sender = work->transfer.peer;
    m->peers[work->transfer.peer].waiting--;
    if (work->transfer.before)
        work->transfer.before->transfer.after = work->transfer.after;
    else
        m->pending = work->transfer.after;
    if (work->transfer.after)
        work->transfer.after->transfer.before = work->transfer.before;
    work_record_end(m, work);
    ddl__queue_push(&m->finished, work);
}

static void fail_by_mismatch(ddl__messages *m, const ddl_work *receive, int source,
                             const ddl__frame *f)
{
    ddl__call sent = {.kind = DDL__SEND,
                      .dtype = (ddl_dtype)f->dtype,
                      .count = f->count,
                      .root = m->rank,
                      .tag = (int)f->tag};
    char theirs[DDL__CALL_MAX], ours[DDL__CALL_MAX];
    ddl__describe_call(theirs, sizeof theirs, &sent);
    ddl__describe_call(ours, sizeof ours, &receive->call);
    ddl__messages_fail(m, DDL_EMISMATCH, "%s called %s; %s called %s", m->names[source], theirs,
                       m->names[m->rank], ours);
}

/* Handle a match of a receive and a message. The payload is present unless the message is an
 * offer. */
static void work_match(ddl__messages *m, ddl_work *receive, int source, const ddl__frame *f,
                       const void *payload)
{
    ddl__message_peer *p = &m->peers[source];
    if (receive->call.count != f->count || receive->call.dtype != f->dtype) {
        fail_by_mismatch(m, receive, source, f);
        return;
    }
    if (receive->call.root == DDL_ANY_SOURCE) {
        m->n_anywhere--;
        work_wait_for(m, receive, source);
    }
    size_t bytes = ddl__message_bytes(receive);
    if (f->kind == DDL__EAGER) {
        p->owed += ddl__message_cost(bytes);
    } else if (p->link) {
        receive->transfer.partner = f->id;
        ddl__queue_push(&p->accepting, receive);
        return;
    } else {
        ddl_work *send = ddl__ids_get(&m->ids, f->id);
        ddl__ids_remove(&m->ids, f->id);
        payload = send->call.send;
        ddl__messages_finish(m, send);
    }
    if (bytes)
        memcpy(receive->call.recv, payload, bytes);
    ddl__messages_finish(m, receive);
}

static void message_keep(ddl__messages *m, int source, const ddl__frame *f, const void *payload,
                         size_t bytes)
{
    if (!ddl__mailbox_keep(m->mailbox, source, f, payload, bytes))
        ddl__messages_fail_for_memory(m);
}

void ddl__messages_arrive(ddl__messages *m, int source, const ddl__frame *f, const void *payload,
                          size_t bytes)
{
    ddl_work *receive = ddl__mailbox_take_receive(m->mailbox, source, f->tag);
    if (receive)
        work_match(m, receive, source, f, payload);
    else
        message_keep(m, source, f, payload, bytes);
}

static void receive_add(ddl__messages *m, ddl_work *work)
{
    if (work->call.root == DDL_ANY_SOURCE)
        m->n_anywhere++;
    else
        work_wait_for(m, work, work->call.root);
    ddl__arrival *a = ddl__mailbox_take_message(m->mailbox, work);
    if (a)
        work_match(m, work, a->source, &a->frame, a->payload);
    else
        ddl__mailbox_wait(m->mailbox, work);
    free(a);
}

/* Handle a send to this rank itself. It completes at once if its receive is posted, else by the
 * same rules as other sends. */
static void send_add_to_self(ddl__messages *m, ddl_work *work)
{
    ddl__message_peer *self = &m->peers[m->rank];
    size_t bytes = ddl__message_bytes(work);
    self->credit += self->owed;
    self->owed = 0;
    ddl__frame f = ddl__message_frame(work, DDL__EAGER);
    ddl_work *receive = ddl__mailbox_take_receive(m->mailbox, m->rank, f.tag);
    if (receive || ddl__message_is_eager(self, bytes)) {
        self->credit -= ddl__message_cost(bytes);
        if (receive)
            work_match(m, receive, m->rank, &f, work->call.send);
        else
            message_keep(m, m->rank, &f, work->call.send, bytes);
        ddl__messages_finish(m, work);
    } else {
        f.kind = DDL__OFFER;
        if (ddl__ids_add(&m->ids, work, &f.id))
            message_keep(m, m->rank, &f, NULL, 0);
        else
            ddl__messages_fail_for_memory(m);
    }
}

void ddl__messages_add(ddl__messages *m, ddl_work *work)
{
    work_record_start(m, work);
    work->transfer = (ddl__transfer){.after = m->pending, .peer = DDL_ANY_SOURCE};
    if (m->pending)
        m->pending->transfer.before = work;
    m->pending = work;
    if (work->deadline < m->deadline)
        m->deadline = work->deadline;
    if (work->call.kind == DDL__RECV) {
        receive_add(m, work);
        return;
    }
    work_wait_for(m, work, work->call.root);
    if (work->call.root == m->rank)
        send_add_to_self(m, work);
    else
        ddl__queue_push(&m->peers[work->call.root].sends, work);
}
