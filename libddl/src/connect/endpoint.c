#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time_limits.h"
#include "connect/counters.h"
#include "connect/create_failures.h"
#include "connect/discover.h"
#include "connect/endpoint_state.h"
#include "connect/listen.h"
#include "net/socket.h"

enum {
    EVENTS = 64,
    SOCKETS_MAX = 16,
    /* Setting a timer takes a virtual machine as long as a short operation. So the timer goes on
     * for some turns after it was last needed, as callers come in bursts. */
    TURNS = 16
};

/* ----------------------------------------------------------------------------------- the thread */

static void notify(ddl_endpoint *endpoint)
{
    uint64_t one = 1;
    ssize_t n = write(endpoint->wake, &one, sizeof one);
    (void)n; /* a full counter wakes as well */
}

static void drive(ddl_endpoint *endpoint, ddl__comm_slot *slot)
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

static void drive_all(ddl_endpoint *endpoint, bool tick)
{
    for (ddl__comm_slot *s = endpoint->slots; s; s = s->next)
        s->ready = s->ready || (tick && s->asleep);
    for (ddl__comm_slot *s = endpoint->slots; s;) {
        if (s->ready && s->task.run) {
            drive(endpoint, s);
            s = endpoint->slots; /* the list may have changed meanwhile */
        } else {
            s = s->next;
        }
    }
}

static int tick_ms(const ddl_endpoint *endpoint)
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

static void start_timer(ddl_endpoint *endpoint)
{
    static const struct itimerspec soon = {.it_value.tv_nsec = DDL__PROGRESS_SOON};
    if (!endpoint->timer_armed)
        endpoint->timer_armed = !timerfd_settime(endpoint->timer, 0, &soon, NULL);
}

static void attend_timer(ddl_endpoint *endpoint)
{
    uint64_t count;
    ssize_t n = read(endpoint->timer, &count, sizeof count);
    (void)n; /* it has run out, whatever it says */
    endpoint->timer_armed = false;
    for (ddl__comm_slot *s = endpoint->slots; s; s = s->next) {
        if (s->ready_on_timer && s->task.was_driven(s->task.context)) {
            endpoint->timer_runs = TURNS;
            continue;
        }
        s->ready = s->ready || s->ready_on_timer;
        s->ready_on_timer = false;
    }
    if (endpoint->timer_runs-- > 0)
        start_timer(endpoint);
}

static void attend_event(ddl_endpoint *endpoint, uint64_t id)
{
    uint64_t count;
    switch (id) {
    case DDL__TIMER: attend_timer(endpoint); return;
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

static void *serve(void *argument)
{
    ddl_endpoint *endpoint = argument;
    struct epoll_event events[EVENTS];
    int64_t next_tick = 0;
    pthread_mutex_lock(&endpoint->lock);
    while (!endpoint->stop) {
        int timeout = tick_ms(endpoint);
        pthread_mutex_unlock(&endpoint->lock);
        int n = epoll_wait(endpoint->epoll, events, EVENTS, timeout);
        pthread_mutex_lock(&endpoint->lock);
        for (int i = 0; i < n; i++)
            attend_event(endpoint, events[i].data.u64);
        ddl__pending_maintain(endpoint);
        bool tick = ddl__now() >= next_tick;
        if (tick)
            next_tick = ddl__now() + DDL__PROGRESS_TICK;
        drive_all(endpoint, tick);
    }
    pthread_mutex_unlock(&endpoint->lock);
    return NULL;
}

/* ---------------------------------------------------------------------------------------- slots */

uint64_t ddl__endpoint_count_creation(ddl_endpoint *endpoint, ddl__digest list)
{
    pthread_mutex_lock(&endpoint->lock);
    uint64_t count = ddl__counters_add(&endpoint->counters, list, 1);
    pthread_mutex_unlock(&endpoint->lock);
    return count;
}

void ddl__endpoint_uncount_creation(ddl_endpoint *endpoint, ddl__digest list)
{
    pthread_mutex_lock(&endpoint->lock);
    ddl__counters_add(&endpoint->counters, list, -1);
    pthread_mutex_unlock(&endpoint->lock);
}

ddl_status ddl__endpoint_open_slot(ddl_endpoint *endpoint, ddl__digest comm, ddl__comm_slot **out)
{
    ddl__comm_slot *slot = calloc(1, sizeof *slot);
    if (!slot)
        return ddl__fail(DDL_ENOMEM, "no memory for a comm");
    pthread_mutex_lock(&endpoint->lock);
    for (ddl__comm_slot *s = endpoint->slots; s; s = s->next)
        if (ddl__digest_equal(s->comm, comm)) {
            pthread_mutex_unlock(&endpoint->lock);
            free(slot);
            return ddl__fail(DDL_ESTATE, "a comm of these members with this tag and epoch is alive "
                                         "here already: destroy it or choose another tag");
        }
    slot->serial = endpoint->serial++;
    slot->comm = comm;
    slot->next = endpoint->slots;
    endpoint->slots = slot;
    pthread_mutex_unlock(&endpoint->lock);
    *out = slot;
    return DDL_OK;
}

bool ddl__endpoint_accept(ddl_endpoint *endpoint, ddl__comm_slot *slot, bool control,
                          int64_t deadline, ddl__accepted *accepted)
{
    struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    pthread_mutex_lock(&endpoint->lock);
    bool found;
    endpoint->n_accepting++;
    while (!(found = ddl__pending_take(endpoint, slot, control, accepted)) &&
           ddl__now() < deadline) {
        if (endpoint->overloaded)
            notify(endpoint);
        pthread_cond_timedwait(&endpoint->changed, &endpoint->lock, &until);
    }
    endpoint->n_accepting--;
    pthread_mutex_unlock(&endpoint->lock);
    return found;
}

bool ddl__endpoint_find_create_failure(ddl_endpoint *endpoint, ddl__digest comm,
                                       ddl__create_failure *failure)
{
    pthread_mutex_lock(&endpoint->lock);
    bool found = ddl__create_failures_find(&endpoint->failures, comm, failure);
    pthread_mutex_unlock(&endpoint->lock);
    return found;
}

void ddl__endpoint_ignore_create_failure(ddl_endpoint *endpoint, ddl__digest comm, int from,
                                         uint32_t attempt)
{
    pthread_mutex_lock(&endpoint->lock);
    ddl__create_failures_ignore(&endpoint->failures, comm, from, attempt);
    pthread_mutex_unlock(&endpoint->lock);
}

uint32_t ddl__endpoint_fail_attempt(ddl_endpoint *endpoint, ddl__comm_slot *slot)
{
    pthread_mutex_lock(&endpoint->lock);
    uint64_t attempt = endpoint->serial++;
    if (slot)
        slot->failed_serial = attempt;
    pthread_mutex_unlock(&endpoint->lock);
    return (uint32_t)attempt;
}

void ddl__endpoint_forget_create_failures(ddl_endpoint *endpoint, ddl__digest comm)
{
    pthread_mutex_lock(&endpoint->lock);
    ddl__create_failures_forget(&endpoint->failures, comm, -1);
    pthread_mutex_unlock(&endpoint->lock);
}

ddl_status ddl__endpoint_set_task(ddl_endpoint *endpoint, ddl__comm_slot *slot,
                                  const ddl__background_task *task)
{
    struct epoll_event event = {.events = 0, .data.u64 = slot->serial};
    if (epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, task->fd, &event))
        return ddl__fail(DDL_ESYSTEM, "epoll refuses a comm: %s", strerror(errno));
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
        notify(endpoint);
    } else {
        slot->ready_on_timer = true;
        endpoint->timer_runs = TURNS;
        start_timer(endpoint);
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
    ddl__create_failures_forget(&endpoint->failures, slot->comm, -1);
    ddl__pending_drop_slot(endpoint, slot);
    if (slot->task.run)
        epoll_ctl(endpoint->epoll, EPOLL_CTL_DEL, slot->task.fd, NULL);
    pthread_mutex_unlock(&endpoint->lock);
    free(slot);
}

/* ------------------------------------------------------------------------------------ lifecycle */

const ddl__address *ddl__endpoint_address(const ddl_endpoint *endpoint)
{
    return &endpoint->address;
}

unsigned ddl__endpoint_sockets(const ddl_endpoint *endpoint)
{
    return endpoint->sockets;
}

const ddl__fences *ddl__endpoint_fences(const ddl_endpoint *endpoint)
{
    return &endpoint->fences;
}

bool ddl__endpoint_is_local(const ddl_endpoint *endpoint)
{
    return endpoint->local >= 0;
}

bool ddl__endpoint_inherited(const ddl_endpoint *endpoint)
{
    return endpoint->generation != ddl__generation();
}

const ddl__job *ddl__endpoint_job(const ddl_endpoint *endpoint)
{
    return &endpoint->job;
}

ddl__hello ddl__endpoint_begin_hello(ddl_endpoint *endpoint, uint8_t kind, int from, int to,
                                     int size)
{
    ddl__hello hello = ddl__hello_begin(&endpoint->job, kind, from, to, size);
    hello.dialer = endpoint->address.endpoint;
    pthread_mutex_lock(&endpoint->lock);
    hello.number = ++endpoint->n_hellos;
    pthread_mutex_unlock(&endpoint->lock);
    return hello;
}

void ddl__endpoint_last_refusal(ddl_endpoint *endpoint, char *text, size_t size)
{
    pthread_mutex_lock(&endpoint->lock);
    snprintf(text, size, "%s", endpoint->refusal);
    pthread_mutex_unlock(&endpoint->lock);
}

void *ddl__endpoint_attach(ddl_endpoint *endpoint,
                           void *(*create)(const ddl__digest *endpoint, const void *argument),
                           const void *argument, void (*destroy)(void *object))
{
    pthread_mutex_lock(&endpoint->lock);
    if (!endpoint->attached)
        endpoint->attached = create(&endpoint->address.endpoint, argument);
    endpoint->destroy_attached = destroy;
    void *attached = endpoint->attached;
    pthread_mutex_unlock(&endpoint->lock);
    return attached;
}

static bool epoll_watch(int epoll, int fd, uint64_t id)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    return !epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static ddl_status listen_tcp(ddl_endpoint *endpoint, const ddl_endpoint_config *config)
{
    ddl__address *address = &endpoint->address;
    if (config->host && config->interfaces)
        return ddl__fail(DDL_EINVAL, "host \"%s\" and interfaces \"%s\": give one of them",
                         config->host, config->interfaces);
    if (config->sockets > SOCKETS_MAX)
        return ddl__fail(DDL_EINVAL, "sockets is %u, at most %d can be had", config->sockets,
                         SOCKETS_MAX);
    endpoint->sockets = config->sockets ? config->sockets : 1;
    ddl_status status = ddl__discover(address, config->host, config->interfaces);
    if (status == DDL_OK)
        status = ddl__listen_all(address, config->ports ? config->ports : "", endpoint->tcp);
    for (unsigned i = 0; status == DDL_OK && i < address->n_ips; i++)
        ddl__guard(endpoint->tcp[i]);
    return status;
}

static ddl_status open_ports(ddl_endpoint *endpoint, const ddl_endpoint_config *config)
{
    ddl__digest *id = &endpoint->address.endpoint;
    if (!ddl__random(id, sizeof *id))
        return DDL_ESYSTEM;
    ddl_status status = listen_tcp(endpoint, config);
    if (status != DDL_OK) {
        endpoint->address.n_ips = 0; /* none is open */
        return status;
    }
    endpoint->local = ddl__guard(ddl__listen_local(id));
    if (endpoint->local < 0)
        ddl__log(DDL__WARN, "TCP is used to ranks of the same host as well, which is slower: %s",
                 ddl__message());
    endpoint->epoll = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    endpoint->listeners = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    endpoint->wake = ddl__guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    endpoint->timer = ddl__guard(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    bool watched = endpoint->epoll >= 0 && endpoint->listeners >= 0 && endpoint->wake >= 0 &&
                   endpoint->timer >= 0 &&
                   epoll_watch(endpoint->epoll, endpoint->wake, DDL__WAKE) &&
                   epoll_watch(endpoint->epoll, endpoint->timer, DDL__TIMER) &&
                   epoll_watch(endpoint->epoll, endpoint->listeners, DDL__LISTEN_EVENT) &&
                   (endpoint->local < 0 ||
                    epoll_watch(endpoint->listeners, endpoint->local, DDL__UNIX_LISTENER));
    for (unsigned i = 0; watched && i < endpoint->address.n_ips; i++)
        watched = epoll_watch(endpoint->listeners, endpoint->tcp[i], DDL__TCP_LISTENER + i);
    return watched ? DDL_OK
                   : ddl__fail(DDL_ESYSTEM, "no descriptors for an endpoint: %s", strerror(errno));
}

ddl_status ddl__endpoint_create(const ddl_endpoint_config *config, ddl_endpoint **out)
{
    ddl_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint)
        return ddl__fail(DDL_ENOMEM, "no memory for an endpoint");
    endpoint->epoll = endpoint->wake = endpoint->timer = endpoint->listeners = endpoint->local = -1;
    endpoint->serial = DDL__FIRST_SERIAL;
    endpoint->generation = ddl__generation();
    endpoint->closer = ddl__closer_create();
    if (!endpoint->closer) {
        free(endpoint);
        return ddl__fail(DDL_ENOMEM, "no memory for an endpoint");
    }
    pthread_mutex_init(&endpoint->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&endpoint->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);

    ddl_status status = ddl__job_open(&endpoint->job, config->secret, config->encrypt > 0);
    if (status == DDL_OK)
        status = open_ports(endpoint, config);
    if (status == DDL_OK && endpoint->local >= 0)
        ddl__fences_start(&endpoint->fences);
    if (status == DDL_OK) {
        int error = ddl__thread_start(&endpoint->thread, serve, endpoint);
        endpoint->started = !error;
        if (error)
            status = ddl__fail(DDL_ESYSTEM, "no thread for an endpoint: %s", strerror(error));
    }
    if (status == DDL_OK)
        *out = endpoint;
    else
        ddl__endpoint_destroy(endpoint);
    return status;
}

void ddl__endpoint_destroy(ddl_endpoint *endpoint)
{
    if (!endpoint)
        return;
    if (endpoint->attached)
        endpoint->destroy_attached(endpoint->attached);
    if (endpoint->started) {
        pthread_mutex_lock(&endpoint->lock);
        endpoint->stop = true;
        pthread_mutex_unlock(&endpoint->lock);
        notify(endpoint);
        pthread_join(endpoint->thread, NULL);
    }
    ddl__fences_stop(&endpoint->fences);
    ddl__pending_drop_all(endpoint);
    ddl__counters_free(&endpoint->counters);
    ddl__replay_guard_free(&endpoint->replay_guard);
    for (unsigned i = 0; i < endpoint->address.n_ips; i++)
        ddl__close_guarded(endpoint->tcp[i]);
    int fds[] = {endpoint->epoll, endpoint->wake, endpoint->timer, endpoint->listeners,
                 endpoint->local};
    for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++)
        ddl__close_guarded(fds[i]);
    ddl__closer_release(endpoint->closer);
    ddl__job_close(&endpoint->job);
    pthread_cond_destroy(&endpoint->changed);
    pthread_mutex_destroy(&endpoint->lock);
    free(endpoint);
}
