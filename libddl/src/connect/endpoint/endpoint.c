/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and destroys an endpoint: its listeners, descriptors and thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "base/forks.h"
#include "base/log.h"
#include "base/thread.h"
#include "connect/addresses/discover.h"
#include "connect/endpoint/endpoint_state.h"

enum { SOCKETS_MAX = 16 };

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

ddl__regions *ddl__endpoint_regions(const ddl_endpoint *endpoint)
{
    return endpoint->regions;
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

ddl_status ddl__endpoint_take_secret(ddl_endpoint *endpoint, const char *secret)
{
    ddl_status status = DDL_OK;
    pthread_mutex_lock(&endpoint->lock);
    if (endpoint->takes_secret)
        status = ddl__job_open(&endpoint->job, secret, false);
    endpoint->takes_secret = endpoint->takes_secret && status != DDL_OK;
    pthread_mutex_unlock(&endpoint->lock);
    return status;
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

ddl__paths ddl__endpoint_paths(ddl_endpoint *endpoint, const ddl__address *theirs)
{
    ddl__paths paths = ddl__discover_paths(&endpoint->address, theirs);
    pthread_mutex_lock(&endpoint->lock);
    ddl__path_memory_sort(&endpoint->path_memory, theirs->ips, &paths);
    pthread_mutex_unlock(&endpoint->lock);
    return paths;
}

bool ddl__endpoint_record_path(ddl_endpoint *endpoint, const ddl__address *theirs, ddl__path path,
                               bool answers)
{
    pthread_mutex_lock(&endpoint->lock);
    bool is_first = ddl__path_memory_add(&endpoint->path_memory, theirs->ips, path, answers);
    pthread_mutex_unlock(&endpoint->lock);
    return is_first;
}

void *ddl__endpoint_attach(ddl_endpoint *endpoint, ddl__attached kind,
                           void *(*create)(const ddl__digest *endpoint, const void *argument),
                           const void *argument, void (*destroy)(void *object))
{
    pthread_mutex_lock(&endpoint->lock);
    if (!endpoint->attached[kind])
        endpoint->attached[kind] = create(&endpoint->address.endpoint, argument);
    endpoint->destroy_attached[kind] = destroy;
    void *attached = endpoint->attached[kind];
    pthread_mutex_unlock(&endpoint->lock);
    return attached;
}

static bool epoll_add(int epoll, int fd, uint64_t id)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    return !epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static ddl_status listen_tcp(ddl_endpoint *endpoint, const ddl_endpoint_config *config)
{
    ddl__address *address = &endpoint->address;
    address->ips = endpoint->ips;
    if (config->host && config->interfaces)
        return ddl__fail(DDL_EINVAL,
                         "host is \"%s\" and interfaces is \"%s\": set only one of them",
                         config->host, config->interfaces);
    if (config->sockets > SOCKETS_MAX)
        return ddl__fail(DDL_EINVAL, "sockets is %u; must be at most %d", config->sockets,
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
        endpoint->address.n_ips = 0; /* no port is open */
        return status;
    }
    endpoint->local = ddl__guard(ddl__listen_local(id));
    if (endpoint->local < 0)
        ddl__log(DDL__WARN, "using TCP also between ranks of this host, which is slower: %s",
                 ddl__message());
    endpoint->epoll = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    endpoint->listeners = ddl__guard(epoll_create1(EPOLL_CLOEXEC));
    endpoint->wake = ddl__guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    endpoint->timer = ddl__guard(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    bool watched = endpoint->epoll >= 0 && endpoint->listeners >= 0 && endpoint->wake >= 0 &&
                   endpoint->timer >= 0 && epoll_add(endpoint->epoll, endpoint->wake, DDL__WAKE) &&
                   epoll_add(endpoint->epoll, endpoint->timer, DDL__TIMER) &&
                   epoll_add(endpoint->epoll, endpoint->listeners, DDL__LISTEN_EVENT) &&
                   (endpoint->local < 0 ||
                    epoll_add(endpoint->listeners, endpoint->local, DDL__UNIX_LISTENER));
    for (unsigned i = 0; watched && i < endpoint->address.n_ips; i++)
        watched = epoll_add(endpoint->listeners, endpoint->tcp[i], DDL__TCP_LISTENER + i);
    endpoint->watched = watched;
    return watched ? DDL_OK
                   : ddl__fail(DDL_ESYSTEM, "cannot open descriptors for an endpoint: %s",
                               strerror(errno));
}

ddl_status ddl__endpoint_create(const ddl_endpoint_config *config, uint32_t links,
                                ddl_endpoint **out)
{
    ddl_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint)
        return ddl__fail(DDL_ENOMEM, "out of memory for an endpoint");
    endpoint->epoll = endpoint->wake = endpoint->timer = endpoint->listeners = endpoint->local = -1;
    endpoint->serial = DDL__FIRST_SERIAL;
    endpoint->generation = ddl__generation();
    endpoint->closer = ddl__closer_create();
    endpoint->regions = ddl__regions_create();
    if (!endpoint->closer || !endpoint->regions) {
        if (endpoint->closer)
            ddl__closer_release(endpoint->closer);
        ddl__regions_release(endpoint->regions);
        free(endpoint);
        return ddl__fail(DDL_ENOMEM, "out of memory for an endpoint");
    }
    pthread_mutex_init(&endpoint->lock, NULL);
    ddl__cond_init(&endpoint->changed);

    endpoint->takes_secret = !config->secret;
    ddl_status status = ddl__job_open(&endpoint->job, config->secret, config->encrypt > 0);
    if (status == DDL_OK)
        status = open_ports(endpoint, config);
    endpoint->address.shares_memory =
        endpoint->local >= 0 && links & (DDL_LINK_SHM | DDL_LINK_INPROC);
    endpoint->address.several_sockets = endpoint->sockets > 1;
    if (status == DDL_OK && endpoint->local >= 0)
        ddl__fences_start(&endpoint->fences);
    if (status == DDL_OK) {
        int error = ddl__thread_start(&endpoint->thread, ddl__endpoint_thread, endpoint);
        endpoint->started = !error;
        if (error)
            status = ddl__fail(DDL_ESYSTEM, "cannot start the thread of an endpoint: %s",
                               strerror(error));
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
    for (int i = 0; i < DDL__N_ATTACHED; i++)
        if (endpoint->attached[i])
            endpoint->destroy_attached[i](endpoint->attached[i]);
    if (endpoint->started) {
        pthread_mutex_lock(&endpoint->lock);
        endpoint->stop = true;
        pthread_mutex_unlock(&endpoint->lock);
        ddl__endpoint_wake(endpoint);
        pthread_join(endpoint->thread, NULL);
    }
    ddl__fences_stop(&endpoint->fences);
    ddl__pending_drop_all(endpoint);
    for (ddl__counter *c; (c = endpoint->counters);) {
        endpoint->counters = c->next;
        free(c);
    }
    ddl__replay_guard_free(&endpoint->replay_guard);
    ddl__path_memory_free(&endpoint->path_memory);
    for (unsigned i = 0; i < endpoint->address.n_ips; i++)
        ddl__close_guarded(endpoint->tcp[i]);
    int fds[] = {endpoint->epoll, endpoint->wake, endpoint->timer, endpoint->listeners,
                 endpoint->local};
    for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++)
        ddl__close_guarded(fds[i]);
    ddl__closer_release(endpoint->closer);
    ddl__regions_release(endpoint->regions);
    ddl__job_close(&endpoint->job);
    pthread_cond_destroy(&endpoint->changed);
    pthread_mutex_destroy(&endpoint->lock);
    free(endpoint);
}
