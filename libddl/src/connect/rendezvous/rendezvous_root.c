/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "connect/rendezvous/rendezvous.h"
#include "net/socket.h"

enum {
    CLIENTS_MAX = 256,        /* largest number of clients without a complete record */
    STATE_MAX = 600,          /* bytes of the text that lists the present and the missing ranks */
    REFUSALS_LOGGED_MAX = 16, /* largest number of different refusals that are logged */
    NO_ROOM_US = 10000        /* pause before the next accept if no descriptor is free */
};

/* A connection to a client, whose record may not be complete yet. */
typedef struct client {
    ddl__inbound inbound;
    bool proven;
    ddl__seal *seal;
    size_t have; /* number of bytes received of `piece` */
    int64_t deadline;
    struct {
        ddl__rendezvous_record record;
        unsigned char proof[DDL__KEY];
    } piece;
} client;
_Static_assert(sizeof(((client *)0)->piece) == sizeof(ddl__rendezvous_record) + DDL__KEY, "no gap");

typedef struct rendezvous_root {
    ddl__rendezvous_plan *plan;
    int size;
    client **ranks; /* clients with a complete record, by rank; NULL if the rank has not joined */
    client *clients[CLIENTS_MAX];            /* other clients; NULL: the slot is free */
    char refusal[160];                       /* the last refusal, or the last rank that left */
    ddl__digest logged[REFUSALS_LOGGED_MAX]; /* digests of the logged refusals */
    unsigned n_logged;
    bool short_of_descriptors; /* a warning about the lack of descriptors was logged */
} rendezvous_root;

/* Close the connection, and free its entry in the table. */
static void client_close(client **place)
{
    client *peer = *place;
    if (!peer)
        return;
    close(peer->inbound.fd);
    ddl__session_end(&peer->inbound.session);
    ddl__seal_destroy(peer->seal);
    free(peer);
    *place = NULL;
}

static const char *root_host(const rendezvous_root *root)
{
    return ddl__endpoint_address(root->plan->endpoint)->host;
}

/* If this rank has closed its connection, drop it and return true. */
static bool root_drop_if_left(rendezvous_root *root, int rank)
{
    char byte;
    ssize_t n = recv(root->ranks[rank]->inbound.fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return false;
    client_close(&root->ranks[rank]);
    snprintf(root->refusal, sizeof root->refusal, "; rank %d joined and left", rank);
    return true;
}

/* Log each combination of rank and reason once, and a limited number in all, because any client
 * that finds the port can cause refusals. */
static void root_note_refusal(rendezvous_root *root, const client *peer, int rank, const char *why)
{
    char ip[INET6_ADDRSTRLEN];
    ddl__digest digest = {{0, 0}};
    snprintf(root->refusal, sizeof root->refusal, "; it refused rank %d: %s", rank, why);
    ddl__digest_add(&digest, root->refusal, strlen(root->refusal));
    for (unsigned i = 0; i < root->n_logged; i++)
        if (ddl__digest_equal(root->logged[i], digest))
            return;
    if (root->n_logged == REFUSALS_LOGGED_MAX)
        return;
    root->logged[root->n_logged++] = digest;
    ddl__socket_ip(peer->inbound.fd, true, ip);
    ddl__log(DDL__WARN, "rank 0 on %s: the rendezvous refused rank %d from %s: %s%s",
             root_host(root), rank, ip, why,
             root->n_logged == REFUSALS_LOGGED_MAX ? "; further refusals are not logged" : "");
}

bool ddl__rendezvous_record_check(ddl__rendezvous_record *record, int size)
{
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    char why[sizeof record->text] = "";
    if (record->protocol != DDL__PROTOCOL)
        snprintf(why, sizeof why, "rank 0 speaks protocol %d, this one %u", DDL__PROTOCOL,
                 record->protocol);
    else if (record->size != size)
        snprintf(why, sizeof why, "size is %d here and %d at rank 0", record->size, size);
    else if (record->rank < 1 || record->rank >= size)
        snprintf(why, sizeof why, "rank %d is outside 0 to %d", record->rank, size - 1);
    else if (record->length > DDL_ADDRESS_MAX)
        snprintf(why, sizeof why, "an address of %u bytes", record->length);
    else if (ddl__address_decode(&address, ips, record->address, record->length) != DDL_OK)
        snprintf(why, sizeof why, "%s", ddl__message());
    memcpy(record->text, why, sizeof why);
    record->status = why[0] ? DDL_EREFUSED : DDL_OK;
    return !why[0];
}

/* Admit a client with a complete record as its rank, or refuse it with the reason. */
static void root_admit_client(rendezvous_root *root, client **place)
{
    client *peer = *place;
    ddl__rendezvous_record *record = &peer->piece.record;
    const ddl__job *job = ddl__endpoint_job(root->plan->endpoint);
    if (record->magic != DDL__RECORD_MAGIC ||
        !ddl__is_proven(job, &peer->inbound.session, DDL__AUTH_RECORD, record, sizeof *record,
                        peer->piece.proof)) {
        client_close(place);
        return;
    }
    bool fits = ddl__rendezvous_record_check(record, root->size);
    if (fits && root->ranks[record->rank] && !root_drop_if_left(root, record->rank)) {
        fits = false;
        record->status = DDL_EREFUSED;
        snprintf(record->text, sizeof record->text, "rank %d is here already", record->rank);
    }
    if (fits) {
        root->ranks[record->rank] = peer;
        *place = NULL;
    } else {
        ddl__seal_send_all(peer->seal, peer->inbound.fd, record, sizeof *record, peer->deadline);
        root_note_refusal(root, peer, record->rank, record->text);
        client_close(place);
    }
}

/* Return the reason to refuse a hello, or NULL. */
static const char *kind_refusal_reason(const ddl__inbound *inbound, const void *context)
{
    (void)context;
    return inbound->received.hello.kind == DDL__CONN_RENDEZVOUS ? NULL : "this is a rendezvous";
}

/* Continue the client's handshake. */
static void client_read_handshake(rendezvous_root *root, client **place)
{
    client *peer = *place;
    const ddl__job *job = ddl__endpoint_job(root->plan->endpoint);
    const ddl__hello *hello = &peer->inbound.received.hello;
    switch (ddl__inbound_read(job, &peer->inbound, kind_refusal_reason, NULL)) {
    case DDL__INBOUND_NONE: return;
    case DDL__INBOUND_PROVEN:
        peer->proven = ddl__session_seal(job, &peer->inbound.session, peer->inbound.fd, DDL__DIALED,
                                         &peer->seal) == DDL_OK;
        if (peer->proven)
            return;
        break;
    case DDL__INBOUND_REFUSED:
        if (peer->inbound.have >= sizeof *hello)
            root_note_refusal(root, peer, (int)hello->from, ddl__message());
        break;
    case DDL__INBOUND_CLOSED: break;
    }
    client_close(place);
}

/* Read the data that has arrived. This never blocks, so a silent client does not delay others. */
static void client_read(rendezvous_root *root, client **place)
{
    client *peer = *place;
    if (!peer->proven) {
        client_read_handshake(root, place);
        return;
    }
    ssize_t n =
        ddl__seal_recv_bytes(peer->seal, peer->inbound.fd, (char *)&peer->piece + peer->have,
                             sizeof peer->piece - peer->have);
    if (n > 0)
        peer->have += (size_t)n;
    if (peer->have == sizeof peer->piece)
        root_admit_client(root, place);
    else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        client_close(place);
}

/* Return the place of the client to drop when there is no room: the oldest unauthenticated client,
 * else the oldest one. NULL if there are no clients. */
static client **oldest_client(rendezvous_root *root)
{
    client **oldest = NULL;
    for (int i = 0; i < CLIENTS_MAX; i++) {
        const client *c = root->clients[i];
        if (c && (!oldest || (c->proven == (*oldest)->proven ? c->deadline < (*oldest)->deadline
                                                             : (*oldest)->proven)))
            oldest = &root->clients[i];
    }
    return oldest;
}

/* Return a free place for a new connection. If there is none, drop the oldest client. */
static client **client_take_free(rendezvous_root *root)
{
    for (int i = 0; i < CLIENTS_MAX; i++)
        if (!root->clients[i])
            return &root->clients[i];
    client **oldest = oldest_client(root);
    client_close(oldest);
    return oldest;
}

/* Handle a failed accept. Usually the client has closed its connection already. If no descriptor is
 * free, drop an unauthenticated client to free one. */
static ddl_status root_handle_accept_error(rendezvous_root *root)
{
    int error = errno;
    client **oldest = oldest_client(root);
    if (error == EBADF || error == EINVAL || error == ENOTSOCK)
        return ddl__fail(DDL_ESYSTEM, "the rendezvous cannot accept connections: %s",
                         strerror(error));
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM)
        return DDL_OK;
    if (!root->short_of_descriptors)
        ddl__log(DDL__WARN,
                 "rank 0 on %s: the rendezvous has no free descriptor for another rank: %s; "
                 "raise ulimit -n",
                 root_host(root), strerror(error));
    root->short_of_descriptors = true;
    if (oldest && !(*oldest)->proven)
        client_close(oldest);
    usleep(NO_ROOM_US);
    return DDL_OK;
}

static ddl_status root_accept_client(rendezvous_root *root, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return root_handle_accept_error(root);
    client *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return ddl__fail(DDL_ENOMEM, "out of memory for clients");
    }
    c->inbound.fd = fd;
    c->inbound.passed = -1;
    c->deadline = ddl__now() + DDL__HANDSHAKE_LIMIT;
    *client_take_free(root) = c;
    return DDL_OK;
}

/* Wait for connections and data, at most until the next deadline. Only used slots are polled,
 * because poll() accepts no more entries than the process may have descriptors. */
static ddl_status root_poll(rendezvous_root *root, int listener)
{
    struct pollfd polls[CLIENTS_MAX + 1] = {{.fd = listener, .events = POLLIN}};
    client **polled[CLIENTS_MAX + 1];
    nfds_t n = 1;
    int64_t now = ddl__now();
    int64_t until =
        root->plan->deadline < root->plan->warn_at ? root->plan->deadline : root->plan->warn_at;
    for (int i = 0; i < CLIENTS_MAX; i++) {
        client *c = root->clients[i];
        if (c && c->deadline <= now)
            client_close(&root->clients[i]);
        if (!root->clients[i])
            continue;
        polled[n] = &root->clients[i];
        polls[n++] = (struct pollfd){.fd = c->inbound.fd, .events = POLLIN};
        if (c->deadline < until)
            until = c->deadline;
    }
    int64_t left = until - now < 1000000000 ? (until - now) / 1000000 + 1 : 1000;
    int ready = poll(polls, n, left < 0 ? 0 : (int)left);
    if (ready < 0 && errno != EINTR)
        return ddl__fail(DDL_ESYSTEM, "the rendezvous cannot poll %u connections: %s", (unsigned)n,
                         strerror(errno));
    if (ready <= 0)
        return DDL_OK;
    for (nfds_t i = 1; i < n; i++)
        if (polls[i].revents)
            client_read(root, polled[i]);
    return polls[0].revents ? root_accept_client(root, listener) : DDL_OK;
}

/* Write a text like "have ranks 0-2 of 4, waiting for 3; it refused rank 3: ...". */
static void root_describe_state(const rendezvous_root *root, char *text, size_t size)
{
    char lists[2][160] = {"", ""};
    size_t n[2] = {0, 0};
    for (int first = 0; first < root->size; first++) {
        bool here = first == 0 || root->ranks[first];
        int last = first;
        while (last + 1 < root->size && !!root->ranks[last + 1] == here)
            last++;
        if (n[here] + 24 < sizeof *lists)
            n[here] += (size_t)snprintf(lists[here] + n[here], sizeof *lists - n[here],
                                        last > first ? "%s%d-%d" : "%s%d", n[here] ? ", " : "",
                                        first, last);
        first = last;
    }
    snprintf(text, size, "have rank%s %s of %d, waiting for %s%s",
             strpbrk(lists[1], ",-") ? "s" : "", lists[1], root->size, lists[0], root->refusal);
}

/* Send a status and a text to all ranks that have joined. */
static void root_send_to_all(const rendezvous_root *root, ddl_status status, const char *text,
                             int64_t limit)
{
    ddl__rendezvous_record record = {
        .magic = DDL__RECORD_MAGIC, .protocol = DDL__PROTOCOL, .status = status};
    snprintf(record.text, sizeof record.text, "%s", text);
    for (int i = 1; i < root->size; i++)
        if (root->ranks[i])
            ddl__seal_send_all(root->ranks[i]->seal, root->ranks[i]->inbound.fd, &record,
                               sizeof record, ddl__now() + limit);
}

/* Drop all ranks that have left. Returns true if there were any. */
static bool root_drop_left(rendezvous_root *root)
{
    bool any = false;
    for (int i = 1; i < root->size; i++)
        any = (root->ranks[i] && root_drop_if_left(root, i)) || any;
    return any;
}

/* Warn, once, about the missing ranks, here and at the clients. */
static void root_warn(rendezvous_root *root)
{
    char state[STATE_MAX];
    int64_t now = ddl__now();
    if (now < root->plan->warn_at)
        return;
    root->plan->warn_at = DDL__NEVER;
    root_drop_left(root);
    root_describe_state(root, state, sizeof state);
    ddl__log(DDL__WARN, "rank 0 on %s: the rendezvous has waited for %.1f s: %s", root_host(root),
             (double)(now - root->plan->begun) * 1e-9, state);
    root_send_to_all(root, DDL_INPROGRESS, state, 0);
}

static bool root_has_all(const rendezvous_root *root)
{
    for (int i = 1; i < root->size; i++)
        if (!root->ranks[i])
            return false;
    return true;
}

static ddl_status root_make_list(const rendezvous_root *root)
{
    ddl__rendezvous_plan *plan = root->plan;
    unsigned char *at = plan->list = malloc(ddl__rendezvous_list_most(root->size));
    if (!at)
        return ddl__fail(DDL_ENOMEM, "out of memory for %d addresses", root->size);
    if (!ddl__random(&plan->own.rendezvous, sizeof plan->own.rendezvous))
        return DDL_ESYSTEM;
    for (int i = 0; i < root->size; i++)
        at = ddl__rendezvous_list_put(at, i ? &root->ranks[i]->piece.record : &plan->own);
    plan->list_bytes = (size_t)(at - plan->list);
    return DDL_OK;
}

/* Send the rank the list, or the record of the rank that gives it. */
static bool root_answer(const rendezvous_root *root, int rank, int giver)
{
    const client *c = root->ranks[rank];
    int64_t deadline = root->plan->deadline;
    if (giver == 0)
        return ddl__rendezvous_send_list(root->plan, &c->inbound.session, c->seal, c->inbound.fd,
                                         deadline);
    ddl__rendezvous_record record = root->ranks[giver]->piece.record;
    record.list_bytes = 0;
    record.rendezvous = root->plan->own.rendezvous;
    return ddl__seal_send_all(c->seal, c->inbound.fd, &record, sizeof record, deadline);
}

/* Answer all ranks, from the highest to rank 1. */
static ddl_status root_hand_out(const rendezvous_root *root)
{
    ddl_status status = root_make_list(root);
    for (int i = root->size - 1; status == DDL_OK && i > 0; i--)
        if (!root_answer(root, i, ddl__rendezvous_giver(i, root->size)))
            status =
                ddl__fail(DDL_EUNREACHABLE, "rank %d left the rendezvous: %s", i, strerror(errno));
    return status;
}

static ddl_status root_collect_records(rendezvous_root *root, int listener)
{
    char state[STATE_MAX];
    ddl_status status = DDL_OK;
    while (status == DDL_OK && (!root_has_all(root) || root_drop_left(root)) &&
           ddl__now() < root->plan->deadline) {
        status = root_poll(root, listener);
        root_warn(root);
    }
    for (int i = 0; i < CLIENTS_MAX; i++)
        client_close(&root->clients[i]);
    if (status == DDL_OK && !root_drop_left(root) && root_has_all(root))
        return root_hand_out(root);
    if (status == DDL_OK) {
        root_describe_state(root, state, sizeof state);
        status = ddl__fail(DDL_ETIMEDOUT, "the rendezvous timed out: %s", state);
    }
    root_send_to_all(root, status, ddl__message(), DDL__RENDEZVOUS_FAILURE_LIMIT);
    return status;
}

ddl_status ddl__rendezvous_root(ddl__rendezvous_plan *plan)
{
    uint16_t port = (uint16_t)atoi(plan->port);
    int listener = ddl__listen(plan->host, &port);
    if (listener < 0) /* host is a name, or an IP that this host does not have */
        listener = ddl__listen(NULL, &port);
    if (listener < 0)
        return DDL_ESYSTEM;
    ddl__descriptors_provide_clients(plan->size);
    rendezvous_root root = {
        .plan = plan, .size = plan->size, .ranks = calloc((size_t)plan->size, sizeof(client *))};
    ddl_status status = root.ranks
                            ? root_collect_records(&root, listener)
                            : ddl__fail(DDL_ENOMEM, "out of memory for %d ranks", plan->size);
    for (int i = 0; root.ranks && i < plan->size; i++)
        client_close(&root.ranks[i]);
    free(root.ranks);
    close(listener);
    return status;
}
