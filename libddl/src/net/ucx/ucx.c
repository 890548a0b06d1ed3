/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ucx/ucx.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "net/ucx/ucx_link.h"

/* ------------------------------------------------------------------------------------- endpoints
 */

static void endpoint_failed(void *argument, ddl__ucp_ep *ep, ddl__ucs_status status)
{
    ddl__ucx_link *pair = argument;
    (void)ep;
    pair->connected = true;
    ddl__ucx_fail(&pair[0], status);
    ddl__ucx_fail(&pair[1], status);
}

ddl__ucp_ep *ddl__ucx_endpoint(ddl__ucx_link *l)
{
    ddl__ucx *ucx = l->ucx;
    ddl__ucp_ep **endpoint = &ucx->endpoints[l->peer];
    if (*endpoint)
        return *endpoint;
    const ddl__ucp_ep_params params = {.fields = DDL__UCP_EP_ADDRESS | DDL__UCP_EP_ERROR_MODE |
                                                 DDL__UCP_EP_ERROR_HANDLER,
                                       .address = ucx->rows + (size_t)l->peer * ucx->row_bytes,
                                       .error_mode = DDL__UCP_ERROR_MODE_PEER,
                                       .on_error = endpoint_failed,
                                       .error_argument = &ucx->links[2 * l->peer]};
    ucx->armed = false; /* the endpoint may be the first on its device */
    ddl__ucs_status status = ucx->ucp.ep_create(ucx->worker, &params, endpoint);
    if (status == DDL__UCS_OK)
        return *endpoint;
    *endpoint = NULL;
    ddl__ucx_fail(l, status);
    return NULL;
}

void ddl__ucx_fail(ddl__ucx_link *l, ddl__ucs_status status)
{
    if (l->lost_at || l->closed)
        return;
    l->failure = status;
    l->lost_at = ddl__now() + DDL__LANE_REASON_LIMIT;
}

/* Closing an endpoint by force ends its requests. */
static const ddl__ucp_request_param by_force = {.fields = DDL__UCP_OP_FLAGS,
                                                .flags = DDL__UCP_CLOSE_FORCE};

/* Close an endpoint by force once it is connected. ucx_settle waits for the end of its requests. */
static void endpoint_abandon(ddl__ucx *ucx, int peer)
{
    ucx->links[2 * peer].abandoned = true;
    if (!ucx->endpoints[peer] || !ucx->links[2 * peer].connected)
        return;
    ddl__ucs_result close = ucx->ucp.ep_close(ucx->endpoints[peer], &by_force);
    ucx->endpoints[peer] = NULL;
    if (close && !ddl__ucs_is_error(close))
        ucx->ucp.request_free(close);
}

/* Close the abandoned endpoints that have connected by now. Return the number of abandoned
 * endpoints that are still open. */
static unsigned abandon_connected(ddl__ucx *ucx)
{
    unsigned n = 0;
    for (int i = 0; i < ucx->size; i++) {
        if (ucx->links[2 * i].abandoned)
            endpoint_abandon(ucx, i);
        n += ucx->links[2 * i].abandoned && ucx->endpoints[i];
    }
    return n;
}

static unsigned count_pending(const ddl__ucx *ucx)
{
    unsigned n = 0;
    for (int i = 0; i < 2 * ucx->size; i++)
        n += ucx->links[i].pending;
    return n;
}

static void ucx_settle(ddl__link *link)
{
    ddl__ucx *ucx = ddl__ucx_of(link)->ucx;
    pthread_mutex_lock(&ucx->lock);
    int64_t limit = ddl__now() + DDL__UCX_FLUSH_LIMIT;
    unsigned connecting, pending;
    do {
        ddl__ucx_progress(ucx);
        connecting = abandon_connected(ucx);
        pending = count_pending(ucx);
    } while (connecting + pending && ddl__now() < limit);
    ucx->unusable = connecting > 0;
    if (pending)
        ddl__log(DDL__WARN, "UCX has not finished %u requests after the end of a comm", pending);
    pthread_mutex_unlock(&ucx->lock);
}

/* ---------------------------------------------------------------------------------------- events
 */

/* Receive the numbers of sent spans that the peer announces over the TCP link. The link itself
 * handles leave messages and aborts. */
static void tcp_receive(ddl__ucx_link *l)
{
    static const ddl__signature none;
    ddl__link *tcp = &l->tcp->base;
    ddl__signature signature;
    size_t bytes;
    l->tcp_ops->poll(tcp);
    while (l->tcp_ops->next(tcp, &signature, &bytes) &&
           l->tcp_ops->peek(tcp, 0, &l->announced, sizeof l->announced, &none))
        l->tcp_ops->release(tcp);
    tcp->quiet = false; /* TCP events do not report spans over UCX, so poll even without an event */
}

void ddl__ucx_check(ddl__ucx_link *l)
{
    ddl__link *tcp = &l->tcp->base;
    if (!l->leaving && tcp->state == DDL__LINK_OPEN)
        tcp_receive(l);
    bool unfinished = l->arrived < l->announced || l->pending;
    if (tcp->state == DDL__LINK_LEFT && unfinished && !l->leaving) {
        l->leaving = true;
        l->leaves_at = ddl__now() + DDL__UCX_LEAVE_LIMIT;
        tcp->state = DDL__LINK_OPEN;
    }
    if (tcp->state != DDL__LINK_OPEN)
        return;
    int64_t now = ddl__now();
    if (l->leaving && !unfinished)
        tcp->state = DDL__LINK_LEFT;
    else if (l->lost_at && now > l->lost_at)
        ddl__tcp_lose(l->tcp, "UCX", l->ucx->ucp.status_text(l->failure));
    else if (l->leaving && now > l->leaves_at)
        ddl__tcp_lose(l->tcp, "UCX", "the peer left before its last spans arrived");
}

void ddl__ucx_arm(ddl__ucx *ucx)
{
    do {
        while (ddl__ucx_progress(ucx))
            ;
    } while (!ucx->unusable && ucx->ucp.worker_arm(ucx->worker) == DDL__UCS_BUSY);
    ucx->armed = true;
}

static void ucx_poll(ddl__link *link)
{
    ddl__ucx_link *l = ddl__ucx_of(link);
    pthread_mutex_lock(&l->ucx->lock);
    ddl__ucx_arm(l->ucx);
    ddl__ucx_check(l);
    pthread_mutex_unlock(&l->ucx->lock);
}

static void ucx_sleeping(ddl__link *link, bool asleep)
{
    ddl__ucx_link *l = ddl__ucx_of(link);
    l->tcp_ops->sleeping(link, asleep);
    pthread_mutex_lock(&l->ucx->lock);
    if (!asleep)
        l->ucx->armed = false;
    else if (!l->ucx->armed)
        ddl__ucx_arm(l->ucx);
    if (asleep && (l->lost_at || l->leaving))
        ddl__ucx_check(l);
    pthread_mutex_unlock(&l->ucx->lock);
}

static void ucx_want(ddl__link *link)
{
    ddl__ucx_of(link)->tcp_ops->want(link);
}

/* ----------------------------------------------------------------------------------- life and end
 */

static void link_close(ddl__ucx_link *l, const char *reason)
{
    static const ddl__signature none;
    ddl__link *tcp = &l->tcp->base;
    if (l->closed)
        return;
    l->closed = true;
    l->farewell = l->sent;
    if (!reason && l->sent)
        l->tcp_ops->send_user(&tcp, 1, &l->farewell, sizeof l->farewell, &none);
    l->tcp_ops->close(tcp, reason);
    if (reason)
        endpoint_abandon(l->ucx, l->peer);
}

static void ucx_close(ddl__link *link, const char *reason)
{
    ddl__ucx_link *l = ddl__ucx_of(link);
    pthread_mutex_lock(&l->ucx->lock);
    link_close(l, reason);
    pthread_mutex_unlock(&l->ucx->lock);
}

static void ucx_destroy(ddl__link *link)
{
    ddl__ucx_link *l = ddl__ucx_of(link);
    pthread_mutex_lock(&l->ucx->lock);
    link_close(l, NULL);
    ddl__ucx_drop_arrivals(l);
    l->tcp = NULL;
    free(l->buffer);
    pthread_mutex_unlock(&l->ucx->lock);
    l->tcp_ops->destroy(link);
}

static const ddl__link_ops ucx_ops = {
    .kind = "ucx",
    .zero_copy = true,
    .reserve = ddl__ucx_reserve,
    .publish = ddl__ucx_publish,
    .send_user = ddl__ucx_send_user,
    .next = ddl__ucx_next,
    .want = ucx_want,
    .peek = ddl__ucx_peek,
    .release = ddl__ucx_release,
    .flush = ddl__ucx_flush,
    .sleeping = ucx_sleeping,
    .poll = ucx_poll,
    .close = ucx_close,
    .settle = ucx_settle,
    .destroy = ucx_destroy,
};

void ddl__ucx_carry(ddl__ucx *ucx, ddl__link *link, int peer, bool second)
{
    ddl__ucx_link *l = &ucx->links[2 * peer + second];
    l->tcp = ddl__tcp_of(link);
    l->tcp_ops = link->ops;
    l->tcp->carrier = l;
    link->ops = &ucx_ops;
    link->quiet = false;
}

/* -------------------------------------------------------------------------------------- creation
 */

static ddl_status fail_by_status(const ddl__ucx *ucx, const char *what, ddl__ucs_status status)
{
    return ddl__fail(DDL_EUNSUPPORTED, "UCX %s cannot %s: %s", ucx->version, what,
                     ucx->ucp.status_text(status));
}

/* The settings whose defaults libddl changes. libddl has its own links over shared memory. By
 * default, UCX's TCP moves a span in segments of 8 KiB, each with a system call. In older versions,
 * the names of TCP's settings do not have the prefix TCP_. */
static const struct {
    const char *variable, *name, *old_name, *value;
} defaults[] = {{"UCX_TLS", "TLS", "TLS", "^sm"},
                {"UCX_TCP_RX_SEG_SIZE", "TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "512k"},
                {"UCX_TCP_TX_SEG_SIZE", "TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "256k"}};
enum { OLD_NAMES = 14 }; /* the last minor version with the old names */

static ddl_status context_create(ddl__ucx *ucx, ddl__ucx_lookup_fn *lookup)
{
    static const ddl__ucp_params params = {.fields = DDL__UCP_PARAM_FEATURES,
                                           .features =
                                               DDL__UCP_FEATURE_AM | DDL__UCP_FEATURE_WAKEUP};
    ddl__ucp_config *config;
    unsigned major, minor, release;
    ucx->ucp.get_version(&major, &minor, &release);
    ddl__ucs_status status = ucx->ucp.config_read(NULL, NULL, &config);
    if (status != DDL__UCS_OK)
        return fail_by_status(ucx, "read its settings", status);
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (!lookup(defaults[i].variable))
            ucx->ucp.config_modify(config,
                                   minor > OLD_NAMES ? defaults[i].name : defaults[i].old_name,
                                   defaults[i].value);
    status = ucx->ucp.init(DDL__UCP_API_MAJOR, DDL__UCP_API_MINOR, &params, config, &ucx->context);
    ucx->ucp.config_release(config);
    return status == DDL__UCS_OK ? DDL_OK : fail_by_status(ucx, "open its devices", status);
}

static ddl_status worker_create(ddl__ucx *ucx)
{
    static const ddl__ucp_worker_params params = {.fields = DDL__UCP_WORKER_THREAD_MODE |
                                                            DDL__UCP_WORKER_ALIGNMENT,
                                                  .thread_mode = DDL__UCS_THREAD_SERIALIZED,
                                                  .alignment = 64};
    ddl__ucs_status status = ucx->ucp.worker_create(ucx->context, &params, &ucx->worker);
    if (status != DDL__UCS_OK)
        return fail_by_status(ucx, "create a worker", status);
    if (!ddl__ucx_handle_messages(ucx))
        return ddl__fail(DDL_EUNSUPPORTED, "UCX %s does not support active messages", ucx->version);
    if ((status = ucx->ucp.worker_get_efd(ucx->worker, &ucx->fd)) != DDL__UCS_OK)
        return fail_by_status(ucx, "report events", status);
    status = ucx->ucp.worker_get_address(ucx->worker, &ucx->address, &ucx->address_bytes);
    return status == DDL__UCS_OK ? DDL_OK : fail_by_status(ucx, "find its address", status);
}

ddl__ucx *ddl__ucx_create(ddl__slots *slots, int rank, int size, ddl__ucx_lookup_fn *lookup)
{
    ddl__ucx *ucx = calloc(1, sizeof *ucx + 2 * (size_t)size * sizeof *ucx->links);
    if (!ucx || !(ucx->endpoints = calloc((size_t)size, sizeof *ucx->endpoints))) {
        free(ucx);
        ddl__fail(DDL_ENOMEM, "out of memory for UCX");
        return NULL;
    }
    pthread_mutex_init(&ucx->lock, NULL);
    ucx->slots = slots;
    ucx->rank = rank;
    ucx->size = size;
    for (int i = 0; i < 2 * size; i++) {
        ucx->links[i].ucx = ucx;
        ucx->links[i].peer = i / 2;
    }
    /* A thread that UCX starts inherits the signal mask: signals are for the program's threads. */
    sigset_t signals, before;
    sigfillset(&signals);
    pthread_sigmask(SIG_SETMASK, &signals, &before);
    ddl_status status = ddl__ucp_load(&ucx->ucp, ucx->version, sizeof ucx->version);
    if (status == DDL_OK)
        status = context_create(ucx, lookup);
    if (status == DDL_OK)
        status = worker_create(ucx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status == DDL_OK)
        return ucx;
    ddl__ucx_destroy(ucx);
    return NULL;
}

const void *ddl__ucx_address(const ddl__ucx *ucx, size_t *bytes)
{
    *bytes = ucx->address_bytes;
    return ucx->address;
}

const char *ddl__ucx_version(const ddl__ucx *ucx)
{
    return ucx->version;
}

int ddl__ucx_fd(const ddl__ucx *ucx)
{
    return ucx->fd;
}

void ddl__ucx_set_addresses(ddl__ucx *ucx, void *rows, size_t row_bytes)
{
    ucx->rows = rows;
    ucx->row_bytes = row_bytes;
}

/* Close all endpoints at the same time. Wait, for a bounded time, until their data is sent and they
 * are closed. */
static void endpoints_close(ddl__ucx *ucx)
{
    static const ddl__ucp_request_param flush;
    int64_t limit = ddl__now() + DDL__UCX_FLUSH_LIMIT;
    for (int i = 0; i < ucx->size; i++) {
        ddl__ucs_result close =
            ucx->endpoints[i] ? ucx->ucp.ep_close(ucx->endpoints[i], &flush) : NULL;
        ucx->endpoints[i] = ddl__ucs_is_error(close) ? NULL : close;
    }
    for (int i = 0; i < ucx->size; i++) {
        void *request = ucx->endpoints[i];
        ddl__ucs_status status = DDL__UCS_OK;
        while (request && (status = ucx->ucp.request_check(request)) == DDL__UCS_INPROGRESS &&
               ddl__now() < limit)
            ddl__ucx_progress(ucx);
        if (status == DDL__UCS_INPROGRESS && !ucx->links[2 * i].connected)
            ucx->unusable = true;
        if (request)
            ucx->ucp.request_free(request);
    }
}

void ddl__ucx_destroy(ddl__ucx *ucx)
{
    if (!ucx || ucx->unusable || ddl__ucx_is_probing(ucx)) /* a thread of UCX may still use it */
        return;
    if (ucx->worker) {
        endpoints_close(ucx);
        if (ucx->unusable)
            return;
        if (ucx->address)
            ucx->ucp.worker_release_address(ucx->worker, ucx->address);
        ucx->ucp.worker_destroy(ucx->worker);
    }
    if (ucx->context)
        ucx->ucp.cleanup(ucx->context);
    pthread_mutex_destroy(&ucx->lock);
    free(ucx->rows);
    free(ucx->endpoints);
    free(ucx);
}
