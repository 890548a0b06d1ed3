/* SPDX-License-Identifier: Apache-2.0 */
/* Distributes the list of addresses along a binomial tree, in log2(n) rounds. Rank 0 gives it to
 * the ranks 1, 2, 4, 8, ..., and rank r gives it to r + 1, r + 2, r + 4, ... below the next
 * multiple of r's lowest bit. Rank 0 names each rank's giver. The rank requests the list at the
 * giver's endpoint.
 *
 * A giver does not wait for a rank whose endpoint has been closed, because the creation of the
 * comm, which follows, reports this. It logs a warning about a rank that exists but does not
 * request the list. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/time_limits.h"
#include "connect/endpoint/race.h"
#include "connect/rendezvous/rendezvous.h"
#include "net/shm/shm.h"
#include "net/socket.h"

/* ------------------------------------------------------------------------------------ the giver */

/* The ranks that have not requested the list yet. */
typedef struct askers {
    ddl__rendezvous_plan *plan;
    ddl_status status; /* the result of this rank's own request for the list */
    char why[DDL__MESSAGE_MAX];
    bool *missing; /* by rank */
    int n;
} askers;

/* Return true if a connection fails at once: no process listens there, or no route leads there. */
static bool fails_at_once(const struct sockaddr *to, socklen_t length)
{
    int fd = ddl__dial(to, length, ddl__now() + DDL__S);
    if (fd < 0)
        return errno != ETIMEDOUT;
    close(fd);
    return false;
}

/* Return true if no process listens at the address any more. On this host, check only the unix
 * socket. */
static bool is_gone(const ddl__address *own, const ddl__address *address)
{
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&address->endpoint, &to);
    bool gone = fails_at_once((struct sockaddr *)&to, length);
    bool is_here = own->network == address->network && !strcmp(own->host, address->host);
    for (unsigned i = 0; gone && !is_here && i < address->n_ips; i++) {
        length = ddl__address_ip(address, i, &to);
        gone = fails_at_once((struct sockaddr *)&to, length);
    }
    return gone;
}

static void drop_gone(askers *a)
{
    const unsigned char *at = a->plan->list, *bytes;
    size_t left = a->plan->list_bytes, length;
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    for (int i = 0; i < a->plan->size; i++) {
        bytes = ddl__rendezvous_list_next(&at, &left, &length);
        if (!bytes || !a->missing[i] ||
            ddl__address_decode(&address, ips, bytes, length) != DDL_OK ||
            !is_gone(ddl__endpoint_address(a->plan->endpoint), &address))
            continue;
        a->missing[i] = false;
        a->n--;
    }
}

static bool is_asker(const askers *a, const ddl__hello *hello)
{
    return hello->kind == DDL__CONN_LIST && hello->to == (uint32_t)a->plan->rank &&
           hello->from < (uint32_t)a->plan->size && a->missing[hello->from];
}

/* Answer a request. If sending fails, do nothing: the rank has exited or tries again. */
static void give_to(askers *a, const ddl__accepted *accepted)
{
    const ddl__job *job = ddl__endpoint_job(a->plan->endpoint);
    ddl__seal *seal = NULL;
    int64_t deadline = ddl__now() + DDL__ADDRESS_LIMIT;
    if (ddl__session_seal(job, &accepted->session, accepted->fd, DDL__DIALED, &seal) != DDL_OK)
        return;
    bool sent;
    if (a->status == DDL_OK) {
        sent = ddl__rendezvous_send_list(a->plan, &accepted->session, seal, accepted->fd, deadline);
    } else {
        ddl__rendezvous_record reason = a->plan->own;
        reason.status = a->status;
        snprintf(reason.text, sizeof reason.text, "%.127s", a->why);
        sent = ddl__seal_send_all(seal, accepted->fd, &reason, sizeof reason, deadline);
    }
    ddl__seal_destroy(seal);
    if (!sent)
        return;
    a->missing[accepted->hello.from] = false;
    a->n--;
}

static void answer(askers *a, ddl__accepted *accepted)
{
    if (is_asker(a, &accepted->hello))
        give_to(a, accepted);
    if (accepted->hello.kind == DDL__CONN_INPROC)
        ddl__arena_drop((ddl__arena *)(uintptr_t)accepted->hello.arena);
    if (accepted->passed >= 0)
        close(accepted->passed);
    close(accepted->fd);
    ddl__session_end(&accepted->session);
}

static ddl_status askers_find(askers *a)
{
    const ddl__rendezvous_plan *plan = a->plan;
    if (!(a->missing = calloc((size_t)plan->size, 1)))
        return ddl__fail(DDL_ENOMEM, "out of memory for %d ranks", plan->size);
    for (int i = plan->rank + 1; i < plan->size; i++)
        a->n += a->missing[i] = ddl__rendezvous_giver(i, plan->size) == plan->rank;
    return DDL_OK;
}

/* Warn, once, about the ranks that have not requested the list. */
static void give_warn(const askers *a)
{
    ddl__rendezvous_plan *p = a->plan;
    int64_t now = ddl__now();
    if (now < p->warn_at)
        return;
    p->warn_at = DDL__NEVER;
    int first = 0;
    while (!a->missing[first])
        first++;
    ddl__log(DDL__WARN,
             "rank %d on %s: the rendezvous has waited for %.1f s: rank %d and %d others have "
             "not fetched the list of addresses from here; check that they are running, and that "
             "their hosts can reach this one",
             p->rank, ddl__endpoint_address(p->endpoint)->host, (double)(now - p->begun) * 1e-9,
             first, a->n - 1);
}

/* Give the list to the ranks that request it at the slot. If this rank has not received the list,
 * send them the reason instead, which the caller has stored as this thread's error message. */
static void give(askers *a, ddl__comm_slot *slot)
{
    snprintf(a->why, sizeof a->why, "%s", ddl__message());
    bool has_list = a->status == DDL_OK;
    int64_t limit = ddl__now() + DDL__RENDEZVOUS_FAILURE_LIMIT;
    int64_t deadline = has_list ? a->plan->deadline : limit;
    int64_t look_at = ddl__now() + DDL__ATTEMPT_LEAST;
    while (a->n && ddl__now() < deadline) {
        ddl__accepted accepted;
        int64_t until = look_at < deadline ? look_at : deadline;
        if (ddl__endpoint_accept(a->plan->endpoint, slot, false, until, &accepted)) {
            answer(a, &accepted);
        } else if (ddl__now() >= look_at) {
            if (has_list)
                drop_gone(a);
            if (has_list && a->n)
                give_warn(a);
            look_at = ddl__now() + DDL__ATTEMPT_LEAST;
        }
    }
    if (!has_list)
        ddl__fail(a->status, "%s", a->why);
}

/* ------------------------------------------------------------------------------------ the asker */

/* Request the list over a connection to the giver; fd may be -1, with errno set. Sets *there if the
 * giver has answered. Takes over fd. */
static ddl_status ask_over(ddl__rendezvous_plan *plan, const ddl__rendezvous_record *giver,
                           const ddl__address *address, int fd, bool *there)
{
    const ddl__job *job = ddl__endpoint_job(plan->endpoint);
    int64_t own = ddl__now() + DDL__ADDRESS_LIMIT;
    int64_t limit = own < plan->deadline ? own : plan->deadline;
    if (fd < 0)
        return ddl__fail(DDL_EUNREACHABLE, "%s", strerror(errno));
    ddl__hello hello = ddl__endpoint_begin_hello(plan->endpoint, DDL__CONN_LIST, plan->rank,
                                                 giver->rank, plan->size);
    hello.endpoint = address->endpoint;
    hello.comm = giver->rendezvous;
    ddl__session session;
    ddl__seal *seal = NULL;
    bool handed;
    ddl_status status = ddl__handshake_start(job, fd, &hello, -1, limit, &session);
    if (status == DDL_OK)
        status = ddl__handshake_finish(job, fd, limit, &session, &handed);
    if (status == DDL_OK)
        status = ddl__session_seal(job, &session, fd, DDL__DIALER, &seal);
    *there = status == DDL_OK;
    if (status == DDL_OK) {
        ddl__rendezvous_record first;
        status = ddl__rendezvous_receive_list(plan, &session, seal, fd, &first);
        if (status == DDL_EUNREACHABLE)
            ddl__fail(status, "%s", strerror(errno));
        else if (status == DDL_OK && !plan->list)
            status = ddl__fail(DDL_EREFUSED,
                               "it redirected to another rank instead of sending the list");
    }
    ddl__session_end(&session);
    ddl__seal_destroy(seal);
    close(fd);
    return status;
}

/* Request the list over the giver's unix socket, or over the first path on which it answers. */
static ddl_status ask(ddl__rendezvous_plan *plan, const ddl__rendezvous_record *giver,
                      const ddl__address *address)
{
    bool there = false;
    struct sockaddr_storage to;
    socklen_t length = ddl__address_unix(&address->endpoint, &to);
    int64_t limit = ddl__now() + DDL__ADDRESS_LIMIT;
    int fd =
        ddl__dial((struct sockaddr *)&to, length, limit < plan->deadline ? limit : plan->deadline);
    ddl_status status = ask_over(plan, giver, address, fd, &there);
    ddl__until until = {.deadline = plan->deadline};
    ddl__race race;
    ddl__race_begin(plan->endpoint, address, &race);
    while (status != DDL_OK && !there && race.paths.n) {
        status = ddl__race_run(plan->endpoint, &race, 1, &until);
        if (status != DDL_OK)
            return status;
        errno = race.error;
        status = ask_over(plan, giver, address, race.fd, &there);
        if (race.fd < 0)
            break;
        ddl__race_again(&race);
    }
    return status;
}

static ddl_status get_list(ddl__rendezvous_plan *plan, const ddl__rendezvous_record *giver)
{
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    char why[DDL__MESSAGE_MAX / 2];
    ddl_status status = ddl__address_decode(&address, ips, giver->address, giver->length);
    if (status != DDL_OK || (status = ask(plan, giver, &address)) == DDL_OK)
        return status;
    snprintf(why, sizeof why, "%s", ddl__message());
    return ddl__fail(status, "rank %d did not get the addresses from rank %d on %s: %s", plan->rank,
                     giver->rank, address.host, why);
}

/* Open the slot before requesting the list, so that early requests of other ranks wait. */
ddl_status ddl__rendezvous_follow(ddl__rendezvous_plan *plan, const ddl__rendezvous_record *first)
{
    askers a = {.plan = plan};
    ddl__comm_slot *slot;
    (void)DDL__TEST_POINT(DDL__AT_ASKING, first);
    ddl_status status = askers_find(&a);
    bool alone = status == DDL_OK && plan->list && !a.n;
    if (status == DDL_OK && !alone)
        status = ddl__endpoint_open_slot(plan->endpoint, &(ddl__comm_id){.comm = first->rendezvous},
                                         &slot);
    if (status == DDL_OK && !alone) {
        plan->own.rendezvous = first->rendezvous;
        a.status = status = plan->list ? DDL_OK : get_list(plan, first);
        give(&a, slot);
        ddl__endpoint_close_slot(plan->endpoint, slot);
    }
    free(a.missing);
    return status;
}
