/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_endpoints(const void *one, const void *other)
{
    const ddl__address *const *a = one, *const *b = other;
    int order = memcmp(&(*a)->endpoint, &(*b)->endpoint, sizeof(ddl__digest));
    return order ? order : (*a > *b) - (*a < *b);
}

/* Check that no endpoint is in the list twice. */
static ddl_status check_distinct(const ddl__address *addresses, unsigned size)
{
    const ddl__address **sorted = calloc(size, sizeof *sorted);
    if (!sorted)
        return ddl__fail(DDL_ENOMEM, "out of memory for %u members", size);
    for (unsigned i = 0; i < size; i++)
        sorted[i] = &addresses[i];
    qsort(sorted, size, sizeof *sorted, compare_endpoints);
    ddl_status status = DDL_OK;
    for (unsigned i = 1; status == DDL_OK && i < size; i++)
        if (ddl__digest_equal(sorted[i - 1]->endpoint, sorted[i]->endpoint))
            status = ddl__fail(
                DDL_EINVAL,
                "addresses[%d] and addresses[%d] are equal: each rank needs its own endpoint",
                (int)(sorted[i - 1] - addresses), (int)(sorted[i] - addresses));
    free(sorted);
    return status;
}

ddl__address *ddl__members_create(int size)
{
    const size_t each = sizeof(ddl__address) + DDL__INTERFACES_MAX * sizeof(ddl__interface);
    ddl__address *all = calloc((size_t)size, each);
    if (!all)
        ddl__fail(DDL_ENOMEM, "out of memory for %d members", size);
    return all;
}

/* Return the position of this member's interfaces: after all addresses and the previous members'
 * interfaces. */
static ddl__interface *place_ips(const ddl__address *all, int rank, int size)
{
    return rank ? all[rank - 1].ips + all[rank - 1].n_ips : (ddl__interface *)(all + size);
}

/* If the member's interfaces equal the previous member's, use the previous member's array, because
 * most neighbouring ranks are on one host. Memory that is not needed then stays untouched. */
static void share_ips(ddl__address *one, const ddl__address *before)
{
    if (one->n_ips == before->n_ips &&
        !memcmp(one->ips, before->ips, one->n_ips * sizeof *one->ips))
        one->ips = before->ips;
}

void ddl__members_copy(ddl__address *to, int rank, int size, const ddl__address *from)
{
    to[rank] = *from;
    to[rank].ips = place_ips(to, rank, size);
    memcpy(to[rank].ips, from->ips, from->n_ips * sizeof *from->ips);
    if (rank)
        share_ips(&to[rank], &to[rank - 1]);
}

ddl_status ddl__members_decode(const ddl_endpoint *endpoint, const void *const *addresses,
                               const size_t *lengths, int rank, int size, ddl__address *to)
{
    for (int i = 0; i < size; i++) {
        if (!addresses[i])
            return ddl__fail(DDL_EINVAL, "addresses[%d] is NULL", i);
        ddl_status status =
            ddl__address_decode(&to[i], place_ips(to, i, size), addresses[i], lengths[i]);
        if (status != DDL_OK)
            return status;
        if (i)
            share_ips(&to[i], &to[i - 1]);
    }
    ddl_status status = check_distinct(to, (unsigned)size);
    if (status != DDL_OK)
        return status;
    if (!ddl__digest_equal(to[rank].endpoint, ddl__endpoint_address(endpoint)->endpoint))
        return ddl__fail(DDL_EINVAL,
                         "rank is %d, but addresses[%d] is not the address of this endpoint", rank,
                         rank);
    return DDL_OK;
}

char **ddl__members_name(const ddl__address *addresses, int size)
{
    enum { NAME = DDL__HOST_MAX + 24 };
    char **names = calloc(1, (size_t)size * (sizeof *names + NAME));
    for (int i = 0; names && i < size; i++) {
        names[i] = (char *)(names + size) + (size_t)i * NAME;
        snprintf(names[i], NAME, "rank %d on %s", i, addresses[i].host);
    }
    return names;
}
