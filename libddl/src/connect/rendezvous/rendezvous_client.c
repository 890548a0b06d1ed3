/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "connect/rendezvous/rendezvous.h"
#include "net/socket.h"

enum {
    RETRY_US = 20000,
    RETRIES = 20 /* maximum number of attempts while rank 0 closes connections because it has too
                    many clients */
};

/* Warn, once, that rank 0 has not answered yet. */
static void client_warn(ddl__rendezvous_plan *p, const char *why)
{
    int64_t now = ddl__now();
    if (now < p->warn_at)
        return;
    p->warn_at = DDL__NEVER;
    ddl__log(DDL__WARN,
             "rank %d on %s has waited %.1f s for rank 0 at the rendezvous tcp://%s:%s: %s; "
             "check that rank 0 is running",
             p->rank, ddl__endpoint_address(p->endpoint)->host, (double)(now - p->begun) * 1e-9,
             p->host, p->port, why);
}

/* Return the deadline of one attempt: the time of the warning, or a later time if that is too early
 * for an answer. */
static int64_t attempt_deadline(const ddl__rendezvous_plan *p)
{
    int64_t least = ddl__now() + DDL__ATTEMPT_LEAST;
    int64_t limit = p->warn_at > least ? p->warn_at : least;
    return limit < p->deadline ? limit : p->deadline;
}

/* Connect to rank 0, which may not listen yet. Returns -1 at the deadline. */
static int dial_root(ddl__rendezvous_plan *p, char *why, size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    do {
        int error = getaddrinfo(p->host, p->port, &hints, &found);
        snprintf(why, size, "%s", error ? gai_strerror(error) : "no address");
        for (struct addrinfo *a = error ? NULL : found; a; a = a->ai_next) {
            int fd = ddl__dial(a->ai_addr, a->ai_addrlen, attempt_deadline(p));
            if (fd >= 0) {
                freeaddrinfo(found);
                return fd;
            }
            snprintf(why, size, "%s", strerror(errno));
        }
        if (!error)
            freeaddrinfo(found);
        client_warn(p, why);
        usleep(RETRY_US);
    } while (ddl__now() < p->deadline);
    return -1;
}

/* Send this rank's record over a connection to rank 0, and receive the list, or in *first the rank
 * that gives it. On DDL_EUNREACHABLE, errno is set instead of the message. */
static ddl_status exchange_records(ddl__rendezvous_plan *p, int fd, bool *admitted,
                                   ddl__rendezvous_record *first)
{
    const ddl__job *job = ddl__endpoint_job(p->endpoint);
    ddl__hello hello = ddl__hello_begin(job, DDL__CONN_RENDEZVOUS, p->rank, 0, p->size);
    int64_t answer_by = attempt_deadline(p);
    ddl__session session;
    struct {
        ddl__rendezvous_record record;
        unsigned char proof[DDL__KEY];
    } piece = {.record = p->own};
    ddl_status status = ddl__handshake_initiate(job, fd, &hello, answer_by, &session);
    if (status == DDL_EREFUSED) {
        char why[DDL__MESSAGE_MAX / 2];
        snprintf(why, sizeof why, "%s", ddl__message());
        return ddl__fail(status, "the rendezvous at tcp://%s:%s refused rank %d: %s", p->host,
                         p->port, p->rank, why);
    }
    *admitted = status == DDL_OK;
    if (status == DDL_OK && !ddl__prove(job, &session, DDL__AUTH_RECORD, &piece.record,
                                        sizeof piece.record, piece.proof))
        status = DDL_ESYSTEM;
    ddl__seal *seal = NULL;
    if (status == DDL_OK)
        status = ddl__session_seal(job, &session, fd, DDL__DIALER, &seal);
    if (status == DDL_OK && !ddl__seal_send_all(seal, fd, &piece, sizeof piece, p->deadline))
        status = DDL_EUNREACHABLE;
    if (status == DDL_OK)
        status = ddl__rendezvous_receive_list(p, &session, seal, fd, first);
    int error = errno;
    ddl__session_end(&session);
    ddl__seal_destroy(seal);
    errno = error;
    return status;
}

/* If very many clients connect at once, rank 0 closes connections that are not authenticated yet,
 * and the clients try again. */
ddl_status ddl__rendezvous_client(ddl__rendezvous_plan *p)
{
    char why[128];
    ddl_status status = DDL_EUNREACHABLE;
    ddl__rendezvous_record first;
    bool admitted = false;
    int error = 0;
    for (int i = 0; status == DDL_EUNREACHABLE && !admitted && i < RETRIES; i++) {
        if (i)
            usleep(RETRY_US);
        int fd = dial_root(p, why, sizeof why);
        if (fd < 0)
            return ddl__fail(DDL_EUNREACHABLE,
                             "rank %d cannot reach the rendezvous at tcp://%s:%s: %s; check that "
                             "rank 0 is running",
                             p->rank, p->host, p->port, why);
        status = exchange_records(p, fd, &admitted, &first);
        error = errno;
        close(fd);
        if (status != DDL_EUNREACHABLE || admitted || error != ETIMEDOUT)
            continue;
        admitted = ddl__now() >= p->deadline;
        client_warn(p, "the listener there does not answer");
    }
    if (status == DDL_OK)
        return ddl__rendezvous_follow(p, &first);
    if (status != DDL_EUNREACHABLE)
        return status;
    return ddl__fail(error == ETIMEDOUT ? DDL_ETIMEDOUT : DDL_EUNREACHABLE,
                     "rank %d waited at the rendezvous tcp://%s:%s: %s", p->rank, p->host, p->port,
                     error == ETIMEDOUT ? "not all ranks joined in time" : strerror(error));
}
