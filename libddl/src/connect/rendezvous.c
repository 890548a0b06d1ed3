#include "connect/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

bool ddl__rendezvous_records_mac(const ddl__job *job, const ddl__rendezvous_record *records,
                                 int size, unsigned char mac[DDL__KEY])
{
    ddl__session own;
    memcpy(own.key, job->key, sizeof own.key);
    bool ok =
        ddl__prove(job, &own, DDL__AUTH_RECORDS, records, (size_t)size * sizeof *records, mac);
    ddl__session_end(&own);
    return ok;
}

ddl_status ddl__rendezvous_run(ddl__rendezvous_plan *plan, const char *url)
{
    plan->records[plan->rank] = write_record(plan->endpoint, plan->rank, plan->size);
    if (plan->size == 1)
        return DDL_OK;
    ddl_status status = parse_url(url, plan);
    if (status != DDL_OK)
        return status;
    return plan->rank == 0 ? ddl__rendezvous_root(plan) : ddl__rendezvous_client(plan);
}
