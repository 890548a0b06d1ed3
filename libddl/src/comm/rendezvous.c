/* Exchange addresses at a url, then create the comm; rendezvous.h has the protocol. */
#include "comm/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/environment.h"
#include "comm/launcher.h"

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
    ddl__rendezvous_record c;
    memset(&c, 0, sizeof c);
    c.magic = DDL__RECORD_MAGIC;
    c.protocol = DDL__PROTOCOL;
    c.rank = rank;
    c.size = size;
    c.length = (uint16_t)ddl__address_encode(ddl__endpoint_address(endpoint), c.address);
    return c;
}

bool ddl__rendezvous_sum(const ddl__job *job, const ddl__rendezvous_record *records, int size,
                         unsigned char sum[DDL__KEY])
{
    ddl__session own;
    memcpy(own.key, job->key, sizeof own.key);
    bool ok =
        ddl__prove(job, &own, DDL__AUTH_RECORDS, records, (size_t)size * sizeof *records, sum);
    ddl__session_end(&own);
    return ok;
}

/* What is wrong with the configuration comes out when the comm is created, and then on all ranks.
 */
static int64_t stall_warn_ms(const ddl_comm_config *config)
{
    ddl_comm_config limits = *config;
    return ddl__environment_limits(&limits) == DDL_OK ? limits.stall_warn_ms : -1;
}

ddl_status ddl__rendezvous(ddl_endpoint *endpoint, const char *url, int rank, int size,
                           const ddl_comm_config *config, ddl_comm **comm)
{
    int64_t deadline = ddl__deadline(ddl__creation_ms(config));
    const char *launcher = NULL;
    ddl_status status = DDL_OK;
    if (!url && rank == -1 && size == 0)
        status = ddl__environment_world(&url, &rank, &size);
    if (status != DDL_OK)
        return status;
    if (size < 1 || rank < 0 || rank >= size)
        return ddl__fail(DDL_EINVAL, "rank %d of size %d", rank, size);
    if (!url && size > 1)
        return ddl__fail(DDL_EINVAL, "url is NULL, but size is %d", size);

    ddl__rendezvous_record *records = calloc((size_t)size, sizeof *records);
    const void **addresses = calloc((size_t)size, sizeof *addresses);
    size_t *lengths = calloc((size_t)size, sizeof *lengths);
    ddl__rendezvous_plan plan = {
        .endpoint = endpoint, .rank = rank, .size = size, .records = records};
    if (!records || !addresses || !lengths)
        status = ddl__fail(DDL_ENOMEM, "no memory for %d ranks", size);
    if (status == DDL_OK && size > 1)
        status = parse_url(url, &plan);
    if (status == DDL_OK) {
        records[rank] = write_record(endpoint, rank, size);
        plan.begun = ddl__now();
        plan.deadline = deadline;
        plan.warn_at = ddl__deadline(stall_warn_ms(config));
        launcher = ddl__environment_launcher(url, rank, size);
        ddl__launcher_tell(launcher, rank, "joining");
        if (size > 1)
            status = rank == 0 ? ddl__rendezvous_host(&plan) : ddl__rendezvous_join(&plan);
    }
    if (status == DDL_OK) {
        for (int i = 0; i < size; i++) {
            addresses[i] = records[i].address;
            lengths[i] = records[i].length;
        }
        status = ddl__comm_create(endpoint, addresses, lengths, rank, size, config, true, deadline,
                                  comm);
    }
    ddl__launcher_tell(launcher, rank, status == DDL_OK ? "joined" : "gave up");
    free(records);
    free(addresses);
    free(lengths);
    return status;
}
