/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/rendezvous/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_points.h"
#include "base/text.h"

enum {
    NOTICES = 64,      /* log at most this many of rank 0's notices about missing ranks */
    GIVEN_BY_ROOT = 32 /* up to this many ranks, rank 0 alone is faster than a tree */
};

static ddl_status parse_url(const char *url, ddl__rendezvous_plan *to)
{
    static const char prefix[] = "tcp://";
    const char *host = url + sizeof prefix - 1;
    const char *colon = strrchr(url, ':');
    if (strncmp(url, prefix, sizeof prefix - 1) || !colon || colon < host)
        return ddl__fail(DDL_EINVAL, "url \"%s\" is not tcp://host:port", url);
    size_t n = (size_t)(colon - host);
    char *end;
    long port = strtol(colon + 1, &end, 10);
    if (n == 0 || n >= sizeof to->host || end == colon + 1 || *end || port < 1 || port > 65535)
        return ddl__fail(DDL_EINVAL, "url \"%s\" is not tcp://host:port", url);
    if (host[0] == '[' && host[n - 1] == ']' && n > 2) {
        host++;
        n -= 2;
    }
    memcpy(to->host, host, n);
    to->host[n] = 0;
    snprintf(to->port, sizeof to->port, "%ld", port);
    return DDL_OK;
}

static ddl__rendezvous_record write_record(ddl_endpoint *endpoint, int rank, int size)
{
    ddl__rendezvous_record record;
    memset(&record, 0, sizeof record);
    record.magic = DDL__RECORD_MAGIC;
    record.protocol = DDL__PROTOCOL;
    record.rank = rank;
    record.size = size;
    record.length = (uint16_t)ddl__address_encode(ddl__endpoint_address(endpoint), record.address);
    return record;
}

/* ------------------------------------------------------------------------------------- the list */

size_t ddl__rendezvous_list_most(int size)
{
    return (size_t)size * (sizeof(uint16_t) + DDL_ADDRESS_MAX);
}

unsigned char *ddl__rendezvous_list_put(unsigned char *to, const ddl__rendezvous_record *record)
{
    memcpy(to, &record->length, sizeof record->length);
    return mempcpy(to + sizeof record->length, record->address, record->length);
}

const unsigned char *ddl__rendezvous_list_next(const unsigned char **at, size_t *left,
                                               size_t *length)
{
    uint16_t n;
    if (*left < sizeof n)
        return NULL;
    memcpy(&n, *at, sizeof n);
    if (n > *left - sizeof n)
        return NULL;
    const unsigned char *address = *at + sizeof n;
    *at = address + n;
    *left -= sizeof n + n;
    *length = n;
    return address;
}

/* Compute the MAC of the whole list, which is equal for all ranks. */
static bool list_mac(const ddl__rendezvous_plan *plan, unsigned char mac[DDL__KEY])
{
    const ddl__job *job = ddl__endpoint_job(plan->endpoint);
    ddl__session own;
    memcpy(own.key, job->key, sizeof own.key);
    bool ok = ddl__prove(job, &own, DDL__AUTH_RECORDS, plan->list, plan->list_bytes, mac);
    ddl__session_end(&own);
    return ok;
}

bool ddl__rendezvous_send_list(const ddl__rendezvous_plan *plan, const ddl__session *session,
                               ddl__seal *seal, int fd, int64_t deadline)
{
    const ddl__job *job = ddl__endpoint_job(plan->endpoint);
    unsigned char mac[DDL__KEY], proof[DDL__KEY];
    ddl__rendezvous_record head = plan->own;
    head.list_bytes = (uint32_t)plan->list_bytes;
    (void)DDL__TEST_POINT(DDL__AT_GIVING, plan);
    return list_mac(plan, mac) &&
           ddl__prove(job, session, DDL__AUTH_RECORDS, mac, sizeof mac, proof) &&
           ddl__seal_send_all(seal, fd, &head, sizeof head, deadline) &&
           ddl__seal_send_all(seal, fd, plan->list, plan->list_bytes, deadline) &&
           ddl__seal_send_all(seal, fd, proof, sizeof proof, deadline);
}

/* Log a notice of rank 0 about missing ranks. */
static void log_notice(const ddl__rendezvous_plan *plan, ddl__rendezvous_record *record)
{
    ddl__sanitize_text(record->text, sizeof record->text);
    ddl__log(DDL__WARN, "rank %d on %s: the rendezvous has waited for %.1f s; rank 0 says: %s",
             plan->rank, ddl__endpoint_address(plan->endpoint)->host,
             (double)(ddl__now() - plan->begun) * 1e-9, record->text);
}

ddl_status ddl__rendezvous_record_accept(ddl__rendezvous_record *record, int rank, int size)
{
    if (record->magic != DDL__RECORD_MAGIC)
        return ddl__fail(DDL_EREFUSED, "the rendezvous does not speak libddl's protocol");
    ddl__sanitize_text(record->text, sizeof record->text);
    if (record->status == DDL_ETIMEDOUT)
        return ddl__fail(DDL_ETIMEDOUT, "%s",
                         record->text[0] ? record->text
                                         : "the rendezvous ended before all ranks had joined");
    if (record->status != DDL_OK)
        return ddl__fail(DDL_EREFUSED, "the rendezvous refused rank %d: %s", rank, record->text);
    if (record->length > DDL_ADDRESS_MAX)
        return ddl__fail(DDL_EREFUSED,
                         "the rendezvous sent rank %d an address of %u bytes, which is too long",
                         rank, record->length);
    if (record->list_bytes > ddl__rendezvous_list_most(size))
        return ddl__fail(DDL_EREFUSED,
                         "the rendezvous sent rank %d a list of %u bytes, which is too long", rank,
                         record->list_bytes);
    return DDL_OK;
}

/* Receive a list of this length into plan->list, and verify its proof. */
static ddl_status receive_bytes(ddl__rendezvous_plan *plan, const ddl__session *session,
                                ddl__seal *seal, int fd, size_t bytes)
{
    const ddl__job *job = ddl__endpoint_job(plan->endpoint);
    unsigned char mac[DDL__KEY], proof[DDL__KEY];
    if (!(plan->list = malloc(bytes)))
        return ddl__fail(DDL_ENOMEM, "out of memory for %d addresses", plan->size);
    plan->list_bytes = bytes;
    if (!ddl__seal_recv_all(seal, fd, plan->list, bytes, plan->deadline) ||
        !ddl__seal_recv_all(seal, fd, proof, sizeof proof, plan->deadline))
        return DDL_EUNREACHABLE;
    if (!list_mac(plan, mac))
        return DDL_ESYSTEM;
    if (ddl__is_proven(job, session, DDL__AUTH_RECORDS, mac, sizeof mac, proof))
        return DDL_OK;
    return ddl__fail(DDL_EREFUSED, "the addresses that rank %d received were altered in transit",
                     plan->rank);
}

ddl_status ddl__rendezvous_receive_list(ddl__rendezvous_plan *plan, const ddl__session *session,
                                        ddl__seal *seal, int fd, ddl__rendezvous_record *first)
{
    unsigned notices = 0;
    do {
        if (!ddl__seal_recv_all(seal, fd, first, sizeof *first, plan->deadline))
            return DDL_EUNREACHABLE;
        if (first->magic != DDL__RECORD_MAGIC || first->status != DDL_INPROGRESS)
            break;
        log_notice(plan, first);
    } while (notices++ < NOTICES);
    ddl_status status = ddl__rendezvous_record_accept(first, plan->rank, plan->size);
    if (status != DDL_OK || !first->list_bytes)
        return status;
    plan->own.rendezvous = first->rendezvous;
    status = receive_bytes(plan, session, seal, fd, first->list_bytes);
    if (status != DDL_OK) {
        int error = errno;
        free(plan->list);
        plan->list = NULL;
        errno = error;
    }
    return status;
}

int ddl__rendezvous_giver(int rank, int size)
{
    return size <= GIVEN_BY_ROOT ? 0 : rank & (rank - 1);
}

/* ------------------------------------------------------------------------------------------ all */

/* Create the list of a job of one rank. */
static ddl_status list_alone(ddl__rendezvous_plan *plan)
{
    if (!(plan->list = malloc(ddl__rendezvous_list_most(1))))
        return ddl__fail(DDL_ENOMEM, "out of memory for an address");
    plan->list_bytes = (size_t)(ddl__rendezvous_list_put(plan->list, &plan->own) - plan->list);
    return DDL_OK;
}

ddl_status ddl__rendezvous_run(ddl__rendezvous_plan *plan, const char *url)
{
    plan->own = write_record(plan->endpoint, plan->rank, plan->size);
    if (plan->size == 1)
        return list_alone(plan);
    ddl_status status = parse_url(url, plan);
    if (status != DDL_OK)
        return status;
    return plan->rank == 0 ? ddl__rendezvous_root(plan) : ddl__rendezvous_client(plan);
}
