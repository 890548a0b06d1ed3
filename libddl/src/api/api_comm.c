/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for versions, endpoints and comms. */
#include <stdbool.h>
#include <string.h>

#include "api/check_object.h"
#include "api/take_struct.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/dtype.h"
#include "comm/comm.h"
#include "comm/environment.h"
#include "connect/handshake/hello.h"

const char *ddl_strerror(ddl_status status)
{
    return ddl__strerror(status);
}

const char *ddl_last_error(void)
{
    return ddl__message();
}

#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)

/* The identity of this build. ddlrun reads this text from the library's file on every host, even if
 * the hosts have different processors, and compares the texts. */
__attribute__((used)) static const char identity[] =
    "libddl " TEXT(DDL_VERSION_MAJOR) "." TEXT(DDL_VERSION_MINOR) "." TEXT(
        DDL_VERSION_PATCH) ", ABI " TEXT(DDL__ABI) ", protocol " TEXT(DDL__PROTOCOL);

uint32_t ddl_version(void)
{
    return DDL_VERSION_MAJOR << 16 | DDL_VERSION_MINOR << 8 | DDL_VERSION_PATCH;
}

size_t ddl_dtype_size(ddl_dtype dtype)
{
    return ddl__dtype_size(dtype);
}

ddl_status ddl_endpoint_create(const ddl_endpoint_config *config, ddl_endpoint **endpoint)
{
    ddl_endpoint_config own;
    char secret[DDL__SECRET_MAX];
    if (!endpoint)
        return ddl__fail(DDL_EINVAL, "endpoint is NULL");
    ddl_status status = ddl__take_struct(&own, sizeof own, config, "ddl_endpoint_config");
    if (status != DDL_OK)
        return status;
    if (own.reserved)
        return ddl__fail(DDL_EINVAL, "reserved is %u; must be 0", own.reserved);
    uint32_t links; /* an invalid $DDL_LINKS is reported when a comm is created */
    if (ddl__environment_links(&links) != DDL_OK)
        links = DDL_LINK_INPROC | DDL_LINK_SHM | DDL_LINK_TCP;
    status = ddl__environment_endpoint(&own, secret);
    if (status == DDL_OK)
        status = ddl__endpoint_create(&own, links, endpoint);
    ddl__erase_secret(secret, sizeof secret);
    return status;
}

ddl_status ddl_endpoint_address(const ddl_endpoint *endpoint, void *address, size_t capacity,
                                size_t *length)
{
    unsigned char bytes[DDL_ADDRESS_MAX];
    if (!endpoint || !address || !length)
        return ddl__fail(DDL_EINVAL, "%s is NULL",
                         !endpoint  ? "endpoint"
                         : !address ? "address"
                                    : "length");
    size_t n = ddl__address_encode(ddl__endpoint_address(endpoint), bytes);
    *length = n;
    if (n > capacity)
        return ddl__fail(DDL_EINVAL,
                         "capacity is %zu bytes; must be at least %zu, the size of the address",
                         capacity, n);
    memcpy(address, bytes, n);
    return DDL_OK;
}

void ddl_endpoint_destroy(ddl_endpoint *endpoint)
{
    if (endpoint && !ddl__endpoint_inherited(endpoint))
        ddl__endpoint_destroy(endpoint);
}

/* Check the config's limits. An invalid argument is rejected on the rank that has passed it, before
 * any other member is informed of the call: nothing has changed, and the rank may call again.
 * Invalid environment variables are found during the creation, which then fails on all members. */
static ddl_status check_limits(const ddl_comm_config *config)
{
    ddl_comm_config completed = *config;
    bool given = config->heartbeat_ms || config->suspect_ms || config->dead_ms;
    return given ? ddl__environment_limits(&completed) : DDL_OK;
}

/* Copy and complete the caller's config. `parent` is the comm that the new comm is created from, or
 * NULL. */
static ddl_status take_config(ddl_comm_config *own, const ddl_comm_config *config,
                              const ddl_comm *parent)
{
    ddl_status status = ddl__take_struct(own, sizeof *own, config, "ddl_comm_config");
    if (status != DDL_OK)
        return status;
    if (own->links & ~(uint32_t)(DDL_LINK_INPROC | DDL_LINK_SHM | DDL_LINK_TCP | DDL_LINK_UCX))
        return ddl__fail(DDL_EINVAL,
                         "links is 0x%x; must be a combination of DDL_LINK_INPROC, DDL_LINK_SHM, "
                         "DDL_LINK_TCP and DDL_LINK_UCX",
                         own->links);
    if (own->timeout_ms < 0 || own->operation_timeout_ms < 0)
        return ddl__fail(
            DDL_EINVAL, "%s is %lld; must be at least 0",
            own->timeout_ms < 0 ? "timeout_ms" : "operation_timeout_ms",
            (long long)(own->timeout_ms < 0 ? own->timeout_ms : own->operation_timeout_ms));
    if (own->segment_bytes > 1 << 30)
        return ddl__fail(DDL_EINVAL, "segment_bytes is %llu; must be at most %d",
                         (unsigned long long)own->segment_bytes, 1 << 30);
    if (own->invariant < DDL_INVARIANT_SIZE || own->invariant > DDL__WORKERS_MAX)
        return ddl__fail(DDL_EINVAL,
                         "invariant is %d; must be DDL_INVARIANT_SIZE, DDL_INVARIANT_NONE, 0, or "
                         "from 1 to %d workers",
                         (int)own->invariant, DDL__WORKERS_MAX);
    if (own->wire > DDL_WIRE_BF16)
        return ddl__fail(DDL_EINVAL, "wire is %u; must be 0, or a value of ddl_wire", own->wire);
    if (parent)
        *own = ddl__comm_inherit(parent, own);
    return check_limits(own);
}

ddl_status ddl_comm_create(ddl_endpoint *endpoint, const void *const *addresses,
                           const size_t *lengths, int rank, int size, const ddl_comm_config *config,
                           ddl_comm **comm)
{
    ddl_comm_config own;
    if (!endpoint || !addresses || !lengths || !comm)
        return ddl__fail(DDL_EINVAL, "%s is NULL",
                         !endpoint    ? "endpoint"
                         : !addresses ? "addresses"
                         : !lengths   ? "lengths"
                                      : "comm");
    if (size < 1 || size > 65535)
        return ddl__fail(DDL_EINVAL, "size is %d; must be from 1 to 65535", size);
    if (rank < 0 || rank >= size)
        return ddl__fail(DDL_EINVAL, "rank is %d; must be from 0 to %d", rank, size - 1);
    ddl_status status = ddl__check_endpoint(endpoint);
    if (status == DDL_OK)
        status = take_config(&own, config, NULL);
    return status == DDL_OK
               ? ddl__comm_create(endpoint, addresses, lengths, rank, size, &own, false, NULL, comm)
               : status;
}

ddl_status ddl_rendezvous(ddl_endpoint *endpoint, const char *url, int rank, int size,
                          const ddl_comm_config *config, ddl_comm **comm)
{
    ddl_comm_config own;
    if (!endpoint || !comm)
        return ddl__fail(DDL_EINVAL, "%s is NULL", !endpoint ? "endpoint" : "comm");
    ddl_status status = ddl__check_endpoint(endpoint);
    if (status == DDL_OK)
        status = take_config(&own, config, NULL);
    return status == DDL_OK ? ddl__comm_create_world(endpoint, url, rank, size, &own, comm)
                            : status;
}

/* Check the common arguments of the functions that create a comm from a comm. */
static ddl_status check_source(const ddl_comm *parent, const void *out, ddl_comm_config *own,
                               const ddl_comm_config *config)
{
    ddl_status status = ddl__check_comm(parent);
    if (status == DDL_OK && !out)
        status = ddl__fail(DDL_EINVAL, "the pointer for the new comm is NULL");
    return status == DDL_OK ? take_config(own, config, parent) : status;
}

/* Check the arguments like check_source, and that the parent has not failed. */
static ddl_status check_parent(const ddl_comm *parent, const void *out, ddl_comm_config *own,
                               const ddl_comm_config *config)
{
    ddl_status status = check_source(parent, out, own, config);
    return status == DDL_OK ? ddl__engine_status(parent->engine) : status;
}

ddl_status ddl_comm_split(ddl_comm *comm, int color, int key, const ddl_comm_config *config,
                          ddl_comm **part)
{
    ddl_comm_config own;
    ddl_status status = check_parent(comm, part, &own, config);
    return status == DDL_OK ? ddl__comm_split(comm, color, key, &own, part) : status;
}

ddl_status ddl_comm_subset(ddl_comm *comm, const int *ranks, int size,
                           const ddl_comm_config *config, ddl_comm **part)
{
    ddl_comm_config own;
    ddl_status status = check_parent(comm, part, &own, config);
    if (status != DDL_OK)
        return status;
    if (!ranks)
        return ddl__fail(DDL_EINVAL, "ranks is NULL");
    if (size < 1 || size > comm->size)
        return ddl__fail(DDL_EINVAL, "size is %d; must be from 1 to %d, the size of the comm", size,
                         comm->size);
    return ddl__comm_subset(comm, ranks, size, &own, NULL, part);
}

ddl_status ddl_comm_duplicate(ddl_comm *comm, const ddl_comm_config *config, ddl_comm **twin)
{
    ddl_comm_config own;
    ddl_status status = check_parent(comm, twin, &own, config);
    return status == DDL_OK ? ddl__comm_duplicate(comm, &own, twin) : status;
}

ddl_status ddl_comm_shrink(ddl_comm *comm, const ddl_comm_config *config, ddl_comm **next)
{
    ddl_comm_config own;
    ddl_status status = check_source(comm, next, &own, config);
    return status == DDL_OK ? ddl__comm_shrink(comm, &own, next) : status;
}

ddl_status ddl_comm_fd(ddl_comm *comm, int *fd)
{
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK && !fd)
        status = ddl__fail(DDL_EINVAL, "fd is NULL");
    return status == DDL_OK ? ddl__engine_report_fd(comm->engine, fd) : status;
}

int ddl_comm_rank(const ddl_comm *comm)
{
    return comm ? comm->rank : -1;
}

int ddl_comm_size(const ddl_comm *comm)
{
    return comm ? comm->size : -1;
}

int ddl_comm_local_rank(const ddl_comm *comm)
{
    return comm ? comm->local_rank : -1;
}

int ddl_comm_local_size(const ddl_comm *comm)
{
    return comm ? comm->local_size : -1;
}

ddl_status ddl_comm_status(ddl_comm *comm)
{
    ddl_status status = ddl__check_comm(comm);
    return status == DDL_OK ? ddl__engine_status(comm->engine) : status;
}

ddl_status ddl_comm_abort(ddl_comm *comm, const char *reason)
{
    ddl_status status = ddl__check_comm(comm);
    if (status == DDL_OK)
        ddl__engine_abort(comm->engine, reason ? reason : "no reason given");
    return status;
}

void ddl_comm_destroy(ddl_comm *comm)
{
    if (comm && !ddl__endpoint_inherited(comm->endpoint) && ddl__comm_destroy(comm) == DDL_OK)
        ddl__message_clear();
}
