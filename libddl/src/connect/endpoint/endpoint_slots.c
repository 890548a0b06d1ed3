/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of an endpoint's comms: their accepted connections, create-failure notices and tasks.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/test_points.h"
#include "base/thread.h"
#include "connect/endpoint/endpoint_state.h"
#include "membership/creation.h"

static ddl__counter *find_counter(const ddl_endpoint *endpoint, ddl__digest family)
{
    ddl__counter *c = endpoint->counters;
    while (c && !ddl__digest_equal(c->family, family))
        c = c->next;
    return c;
}

uint32_t ddl__endpoint_propose_creation(ddl_endpoint *endpoint, ddl__digest family,
                                        ddl__digest parent)
{
    pthread_mutex_lock(&endpoint->lock);
    ddl__counter *c = find_counter(endpoint, family);
    if (!c && (c = calloc(1, sizeof *c))) {
        c->family = family;
        c->parent = parent;
        c->next = endpoint->counters;
        endpoint->counters = c;
    }
    if (c) {
        uint32_t seen = ddl__pending_find_creation(endpoint, family, c->used);
        c->used = ddl__creation_propose(c->used, seen);
    }
    uint32_t number = c ? c->used : 0;
    pthread_mutex_unlock(&endpoint->lock);
    return number;
}

void ddl__endpoint_raise_creation(ddl_endpoint *endpoint, ddl__digest family, uint32_t number)
{
    (void)DDL__TEST_POINT(DDL__AT_SUPERSEDED, endpoint);
    pthread_mutex_lock(&endpoint->lock);
    ddl__counter *c = find_counter(endpoint, family);
    if (c)
        c->used = ddl__creation_raise(c->used, number);
    pthread_mutex_unlock(&endpoint->lock);
}

void ddl__endpoint_forget_children(ddl_endpoint *endpoint, ddl__digest parent)
{
    pthread_mutex_lock(&endpoint->lock);
    for (ddl__counter **at = &endpoint->counters, *c; (c = *at);)
        if (ddl__digest_equal(c->parent, parent)) {
            *at = c->next;
            ddl__pending_drop_family(endpoint, c->family);
            free(c);
        } else {
            at = &c->next;
        }
    pthread_mutex_unlock(&endpoint->lock);
}

ddl_status ddl__endpoint_open_slot(ddl_endpoint *endpoint, const ddl__comm_id *id,
                                   ddl__comm_slot **out)
{
    ddl__comm_slot *slot = calloc(1, sizeof *slot);
    if (!slot)
        return ddl__fail(DDL_ENOMEM, "out of memory for a comm");
    pthread_mutex_lock(&endpoint->lock);
    for (ddl__comm_slot *s = endpoint->slots; s; s = s->next)
        if (ddl__digest_equal(s->id.comm, id->comm)) {
            pthread_mutex_unlock(&endpoint->lock);
            free(slot);
            return ddl__fail(DDL_ESTATE,
                             "a comm of these members with this tag and epoch already exists in "
                             "this process: destroy it or choose another tag");
        }
    slot->serial = endpoint->serial++;
    slot->id = *id;
    slot->next = endpoint->slots;
    endpoint->slots = slot;
    pthread_mutex_unlock(&endpoint->lock);
    *out = slot;
    return DDL_OK;
}

void ddl__endpoint_grant_cores(ddl_endpoint *endpoint, ddl__comm_slot *slot)
{
    pthread_mutex_lock(&endpoint->lock);
    slot->has_cores = true;
    pthread_mutex_unlock(&endpoint->lock);
}

bool ddl__endpoint_accept(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool control,
                          int64_t deadline, ddl__accepted *accepted)
{
    pthread_mutex_lock(&endpoint->lock);
    bool found;
    endpoint->n_accepting++;
    while (!(found = ddl__pending_take(endpoint, slot, control, accepted)) &&
           ddl__now() < deadline) {
        if (endpoint->polled)
            ddl__cond_wait_until(&endpoint->changed, &endpoint->lock, deadline);
        else
            ddl__pending_await(endpoint, slot->has_cores, deadline);
    }
    endpoint->n_accepting--;
    pthread_mutex_unlock(&endpoint->lock);
    return found;
}

void ddl__endpoint_divert(ddl_endpoint *endpoint, ddl__comm_slot *slot, uint8_t kind,
                          ddl__take_fn *take, void *context)
{
    pthread_mutex_lock(&endpoint->lock);
    *ddl__slot_taker(slot, kind) = (ddl__taker){take, context};
    ddl__pending_divert(endpoint, slot);
    pthread_mutex_unlock(&endpoint->lock);
}

bool ddl__endpoint_take_create_failure(ddl_endpoint *endpoint, const ddl__comm_id *id,
                                       ddl__create_failure *failure)
{
    pthread_mutex_lock(&endpoint->lock);
    const ddl__create_failure *found =
        ddl__create_failures_find(&endpoint->failures, id->family, id->number);
    if (found) {
        *failure = *found;
        ddl__create_failures_forget(&endpoint->failures, found->family, found->creation,
                                    found->from);
    }
    pthread_mutex_unlock(&endpoint->lock);
    return found;
}

void ddl__endpoint_ignore_create_failure(ddl_endpoint *endpoint, const ddl__comm_id *id, int from,
                                         uint32_t attempt)
{
    ddl__create_failure notice = {.family = id->family,
                                  .creation = id->number,
                                  .from = from,
                                  .attempt = attempt,
                                  .status = DDL_OK};
    pthread_mutex_lock(&endpoint->lock);
    ddl__create_failures_add(&endpoint->failures, &notice);
    pthread_mutex_unlock(&endpoint->lock);
}

uint32_t ddl__endpoint_fail_attempt(ddl_endpoint *endpoint, ddl__comm_slot *slot,
                                    bool keeps_waiting)
{
    pthread_mutex_lock(&endpoint->lock);
    uint64_t attempt = endpoint->serial++;
    if (slot && keeps_waiting)
        slot->keeps_waiting = true;
    else if (slot)
        slot->failed_serial = attempt;
    pthread_mutex_unlock(&endpoint->lock);
    return (uint32_t)attempt;
}

void ddl__endpoint_forget_create_failures(ddl_endpoint *endpoint, const ddl__comm_id *id)
{
    pthread_mutex_lock(&endpoint->lock);
    ddl__create_failures_forget(&endpoint->failures, id->family, id->number, -1);
    pthread_mutex_unlock(&endpoint->lock);
}

ddl_status ddl__endpoint_set_task(ddl_endpoint *endpoint, ddl__comm_slot *slot,
                                  const ddl__background_task *task)
{
    struct epoll_event event = {.events = 0, .data.u64 = slot->serial};
    if (epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, task->fd, &event))
        return ddl__fail(DDL_ESYSTEM, "cannot add a comm to epoll: %s", strerror(errno));
    pthread_mutex_lock(&endpoint->lock);
    slot->task = *task;
    pthread_mutex_unlock(&endpoint->lock);
    return DDL_OK;
}

void ddl__endpoint_need_progress(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool now)
{
    pthread_mutex_lock(&endpoint->lock);
    if (now) {
        slot->ready = true;
        ddl__endpoint_wake(endpoint);
    } else {
        slot->ready_on_timer = true;
        endpoint->timer_runs = DDL__TIMER_RUNS;
        ddl__endpoint_start_timer(endpoint);
    }
    pthread_mutex_unlock(&endpoint->lock);
}

void ddl__endpoint_close_slot(ddl_endpoint *endpoint, ddl__comm_slot *slot)
{
    pthread_mutex_lock(&endpoint->lock);
    while (slot->busy)
        pthread_cond_wait(&endpoint->changed, &endpoint->lock);
    for (ddl__comm_slot **at = &endpoint->slots; *at; at = &(*at)->next)
        if (*at == slot) {
            *at = slot->next;
            break;
        }
    ddl__create_failures_forget(&endpoint->failures, slot->id.family, slot->id.number, -1);
    ddl__pending_drop_slot(endpoint, slot);
    if (slot->task.run)
        epoll_ctl(endpoint->epoll, EPOLL_CTL_DEL, slot->task.fd, NULL);
    pthread_mutex_unlock(&endpoint->lock);
    free(slot);
}
