/* SPDX-License-Identifier: Apache-2.0 */
/* ucx_probe.c - probes: the first message to and from each peer, which shows whether the two ranks
 * can reach each other. The probe connects their endpoints while both ranks let UCX work. */
#include <poll.h>

#include "net/ucx/ucx_link.h"

void ddl__ucx_probe(ddl__ucx *ucx, int peer)
{
    ddl__ucx_link *l = &ucx->links[2 * peer];
    pthread_mutex_lock(&ucx->lock);
    l->probed = true;
    ddl__ucx_send_probe(l);
    pthread_mutex_unlock(&ucx->lock);
}

static bool is_undecided(const ddl__ucx_link *l)
{
    return l->probed && !l->lost_at && (!l->reached || l->pending);
}

bool ddl__ucx_is_probing(ddl__ucx *ucx)
{
    bool undecided = false;
    pthread_mutex_lock(&ucx->lock);
    for (int i = 0; i < ucx->size && !undecided; i++)
        undecided = is_undecided(&ucx->links[2 * i]);
    pthread_mutex_unlock(&ucx->lock);
    return undecided;
}

bool ddl__ucx_await_probes(ddl__ucx *ucx, int timeout_ms)
{
    pthread_mutex_lock(&ucx->lock);
    ddl__ucx_arm(ucx);
    pthread_mutex_unlock(&ucx->lock);
    if (!ddl__ucx_is_probing(ucx))
        return true;
    struct pollfd event = {.fd = ucx->fd, .events = POLLIN};
    poll(&event, 1, timeout_ms);
    return false;
}

int ddl__ucx_find_unreached(ddl__ucx *ucx, const char **why)
{
    int peer = -1;
    pthread_mutex_lock(&ucx->lock);
    for (int i = 0; i < ucx->size && peer < 0; i++) {
        ddl__ucx_link *l = &ucx->links[2 * i];
        if (!l->lost_at && !is_undecided(l))
            continue;
        peer = i;
        *why = l->lost_at ? ucx->ucp.status_text(l->failure) : NULL;
    }
    pthread_mutex_unlock(&ucx->lock);
    return peer;
}
