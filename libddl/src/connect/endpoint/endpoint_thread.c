/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoint's thread: it runs the tasks of comms and polls the listeners. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "connect/endpoint/endpoint_state.h"

enum { EVENTS = 64 };

void ddl__endpoint_wake(ddl_endpoint *endpoint)
{
    uint64_t one = 1;
    ssize_t n = write(endpoint->wake, &one, sizeof one);
    (void)n; /* a full counter wakes the thread, too */
}

static void run_task(ddl_endpoint *endpoint, ddl__comm_slot *slot)
{
    slot->ready = slot->asleep = false;
    slot->busy = true;
    pthread_mutex_unlock(&endpoint->lock);
    bool waits = slot->task.run(slot->task.context);
    pthread_mutex_lock(&endpoint->lock);
    slot->busy = false;
    slot->asleep = waits;
    if (slot->asleep) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = slot->serial};
        epoll_ctl(endpoint->epoll, EPOLL_CTL_MOD, slot->task.fd, &event);
    }
    pthread_cond_broadcast(&endpoint->changed);
}

static void run_ready_tasks(ddl_endpoint *endpoint, bool tick)
{
    for (ddl__comm_slot *s = endpoint->slots; s; s = s->next)
        s->ready = s->ready || (tick && s->asleep);
    for (ddl__comm_slot *s = endpoint->slots; s;) {
        if (s->ready && s->task.run) {
            run_task(endpoint, s);
            s = endpoint->slots; /* the list may have changed meanwhile */
        } else {
            s = s->next;
        }
    }
}

static int wait_ms(const ddl_endpoint *endpoint)
{
    if (endpoint->overloaded)
        return DDL__OVERLOAD_POLL / DDL__MS;
    if (endpoint->accept_retry_at)
        return DDL__ACCEPT_RETRY / DDL__MS;
    for (const ddl__comm_slot *s = endpoint->slots; s; s = s->next)
        if (s->asleep)
            return DDL__PROGRESS_TICK / DDL__MS;
    return endpoint->pending ? 1000 : -1;
}

void ddl__endpoint_start_timer(ddl_endpoint *endpoint)
{
    static const struct itimerspec soon = {.it_value.tv_nsec = DDL__PROGRESS_SOON};
    if (!endpoint->timer_armed)
        endpoint->timer_armed = !timerfd_settime(endpoint->timer, 0, &soon, NULL);
}

static void handle_timer(ddl_endpoint *endpoint)
{
    uint64_t count;
    ssize_t n = read(endpoint->timer, &count, sizeof count);
    (void)n; /* the timer has expired; the number of expirations does not matter */
    endpoint->timer_armed = false;
    for (ddl__comm_slot *s = endpoint->slots; s; s = s->next) {
        if (s->ready_on_timer && s->task.was_driven(s->task.context)) {
            endpoint->timer_runs = DDL__TIMER_RUNS;
            continue;
        }
        s->ready = s->ready || s->ready_on_timer;
        s->ready_on_timer = false;
    }
    if (endpoint->timer_runs-- > 0)
        ddl__endpoint_start_timer(endpoint);
}

static void handle_event(ddl_endpoint *endpoint, uint64_t id)
{
    uint64_t count;
    switch (id) {
    case DDL__TIMER: handle_timer(endpoint); return;
    case DDL__WAKE:
        if (read(endpoint->wake, &count, sizeof count) < 0 && errno != EAGAIN)
            ddl__log(DDL__WARN, "eventfd: %s", strerror(errno));
        return;
    case DDL__LISTEN_EVENT: ddl__pending_poll(endpoint); return;
    default: break;
    }
    for (ddl__comm_slot *s = endpoint->slots; s; s = s->next)
        if (s->serial == id) {
            s->ready = true;
            return;
        }
}

void *ddl__endpoint_thread(void *argument)
{
    ddl_endpoint *endpoint = argument;
    struct epoll_event events[EVENTS];
    int64_t next_tick = 0;
    pthread_mutex_lock(&endpoint->lock);
    while (!endpoint->stop) {
        int timeout = wait_ms(endpoint);
        pthread_mutex_unlock(&endpoint->lock);
        int n = epoll_wait(endpoint->epoll, events, EVENTS, timeout);
        pthread_mutex_lock(&endpoint->lock);
        for (int i = 0; i < n; i++)
            handle_event(endpoint, events[i].data.u64);
        ddl__pending_maintain(endpoint);
        bool tick = ddl__now() >= next_tick;
        if (tick)
            next_tick = ddl__now() + DDL__PROGRESS_TICK;
        run_ready_tasks(endpoint, tick);
    }
    pthread_mutex_unlock(&endpoint->lock);
    return NULL;
}
