/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/messages/messages.h"

#include <stdlib.h>

#include "base/clock.h"
#include "engine/messages/messages_state.h"

/* Up to this many peers, polling each one costs no more than a system call. */
enum { FEW = 8 };

void ddl__messages_post(ddl__messages *m, ddl_work *work)
{
    ddl__queue_push(&m->inbox, work);
    atomic_store_explicit(&m->posted, true, memory_order_relaxed);
}

/* Under the lock: remove and return all submitted works. */
static ddl_work *inbox_collect(ddl__messages *m)
{
    ddl_work *list = m->inbox.head;
    m->inbox = (ddl__queue){NULL, NULL};
    atomic_store_explicit(&m->posted, false, memory_order_relaxed);
    return list;
}

/* Add the submitted works. Return false if there are none. */
static bool inbox_add(ddl__messages *m)
{
    if (!atomic_load_explicit(&m->posted, memory_order_relaxed))
        return false;
    pthread_mutex_lock(m->lock);
    ddl_work *list = inbox_collect(m);
    pthread_mutex_unlock(m->lock);
    for (ddl_work *work = list, *next; work; work = next) {
        next = work->next;
        ddl__messages_add(m, work);
    }
    return true;
}

static bool peer_run(ddl__messages *m, int rank)
{
    if (!m->peers[rank].link)
        return false;
    bool moved = ddl__messages_receive(m, rank);
    return ddl__messages_send(m, &m->peers[rank]) || moved;
}

/* Run the active peers. Remove peers that have no more messages or credit to handle from the
 * list. */
static bool run_active(ddl__messages *m)
{
    bool moved = false;
    for (uint32_t k = 0; k < m->n_active;) {
        ddl__message_peer *p = &m->peers[m->active[k]];
        if (p->waiting || p->owed >= DDL__CREDIT_BATCH || p->name_messages.first || p->unsent) {
            moved = peer_run(m, (int)m->active[k]) || moved;
            k++;
        } else {
            p->listed = false;
            m->active[k] = m->active[--m->n_active];
        }
    }
    return moved;
}

/* Receive from all peers, and list those with an open link. */
static bool receive_from_all(ddl__messages *m)
{
    bool moved = false;
    m->n_reached = 0;
    for (int i = 0; i < m->size; i++) {
        const ddl__link *link = m->peers[i].link;
        moved = (link && ddl__messages_receive(m, i)) || moved;
        if (link && link->fd >= 0)
            m->reached[m->n_reached++] = (uint32_t)i;
    }
    return moved;
}

/* Receive from the peers that may have sent something. Active peers are run later. */
static bool receive_from_reached(ddl__messages *m)
{
    if (atomic_exchange_explicit(&m->links_changed, false, memory_order_acquire))
        return receive_from_all(m);
    bool moved = false;
    for (uint32_t k = 0; k < m->n_reached; k++) {
        const ddl__message_peer *p = &m->peers[m->reached[k]];
        if (!p->listed && !(m->by_events && p->link->quiet))
            moved = ddl__messages_receive(m, (int)m->reached[k]) || moved;
    }
    return moved;
}

static bool waits_for_names(const ddl__messages *m)
{
    return m->named || atomic_load_explicit(m->names_unsent, memory_order_relaxed);
}

/* Return true if all peers are awaited: by a receive from any rank, while a named operation runs,
 * and on rank 0 for names. Other ranks wait for names of rank 0 only. */
static bool waits_for_all(const ddl__messages *m)
{
    return m->n_anywhere || m->runs || (m->rank == 0 && waits_for_names(m));
}

bool ddl__messages_go_by_events(const ddl__messages *m)
{
    return m->by_events && waits_for_all(m);
}

void ddl__messages_links_changed(ddl__messages *m)
{
    atomic_store_explicit(&m->links_changed, true, memory_order_release);
}

bool ddl__messages_run(ddl__messages *m)
{
    bool moved = inbox_add(m);
    if (waits_for_all(m))
        moved = receive_from_reached(m) || moved;
    else if (waits_for_names(m))
        moved = peer_run(m, 0) || moved;
    return run_active(m) || moved;
}

ddl_work *ddl__messages_finished(ddl__messages *m)
{
    ddl_work *list = m->finished.head;
    m->finished = (ddl__queue){NULL, NULL};
    return list;
}

void ddl__messages_set_named(ddl__messages *m, bool named, bool runs)
{
    m->named = named;
    m->runs = runs;
}

bool ddl__messages_send_name(ddl__messages *m, int rank, unsigned kind, const void *payload,
                             size_t bytes)
{
    bool added =
        ddl__name_messages_add(&m->peers[rank].name_messages, m->rank, kind, payload, bytes);
    if (added)
        ddl__messages_activate(m, rank);
    atomic_fetch_add_explicit(m->names_unsent, added, memory_order_relaxed);
    return added;
}

ddl__name_message *ddl__messages_take_name(ddl__messages *m)
{
    return ddl__name_messages_take(&m->name_messages);
}

ddl_work *ddl__messages_drop(ddl__messages *m)
{
    ddl__queue all = m->inbox;
    inbox_collect(m);
    for (ddl_work *work = m->pending; work; work = work->transfer.after)
        ddl__queue_push(&all, work);
    m->pending = NULL;
    for (int i = 0; i < m->size; i++) {
        ddl__message_peer *p = &m->peers[i];
        ddl__name_messages_clear(&p->name_messages);
        p->names_leaving = 0;
        p->unsent = false;
        p->waiting = 0;
        p->listed = false;
        p->sends = p->accepted = p->leaving = p->accepting = (ddl__queue){NULL, NULL};
    }
    ddl__mailbox_drop_receives(m->mailbox);
    ddl__ids_clear(&m->ids);
    atomic_store_explicit(m->names_unsent, 0, memory_order_relaxed);
    m->n_active = m->n_anywhere = 0;
    m->named = m->runs = false;
    m->deadline = DDL__NEVER;
    m->status = DDL_OK;
    return all.head;
}

void ddl__messages_sleeping(ddl__messages *m, bool asleep)
{
    for (int i = 0; (m->pending || m->named) && i < m->size; i++) {
        ddl__message_peer *p = &m->peers[i];
        if (p->link && p->link->fd >= 0 && (p->waiting || m->n_anywhere || m->named))
            p->link->ops->sleeping(p->link, asleep);
    }
}

ddl__messages *ddl__messages_create(int rank, int size, ddl__link *const *links, char *const *names,
                                    pthread_mutex_t *lock, atomic_uint *names_unsent)
{
    ddl__messages *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->rank = rank;
    m->size = size;
    m->names = names;
    m->lock = lock;
    m->names_unsent = names_unsent;
    m->links_changed = true;
    m->deadline = DDL__NEVER;
    m->peers = calloc((size_t)size, sizeof *m->peers);
    m->active = calloc((size_t)size, sizeof *m->active);
    m->reached = calloc((size_t)size, sizeof *m->reached);
    m->mailbox = ddl__mailbox_create(size);
    if (!m->peers || !m->active || !m->reached || !m->mailbox) {
        ddl__messages_destroy(m);
        return NULL;
    }
    for (int i = 0; i < size; i++) {
        m->peers[i].link = links[i];
        m->peers[i].credit = DDL__CREDIT_MAX;
        m->by_events = m->by_events || (size > FEW + 1 && links[i] && !links[i]->shared);
    }
    return m;
}

void ddl__messages_record(ddl__messages *m, ddl__recorder *recorder)
{
    m->recorder = recorder;
}

void ddl__messages_destroy(ddl__messages *m)
{
    if (!m)
        return;
    for (int i = 0; m->peers && i < m->size; i++)
        ddl__name_messages_clear(&m->peers[i].name_messages);
    ddl__name_messages_clear(&m->name_messages);
    ddl__mailbox_destroy(m->mailbox);
    ddl__ids_clear(&m->ids);
    free(m->active);
    free(m->reached);
    free(m->peers);
    free(m);
}
