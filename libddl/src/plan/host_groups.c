/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/host_groups.h"

#include <stdlib.h>

int ddl__host_of(const ddl__request *request, int rank)
{
    return request->topology ? ddl__topology_group(request->topology, DDL__HOSTS, rank) : rank;
}

bool ddl__host_groups_create(ddl__host_groups *h, const ddl__request *request)
{
    size_t size = (size_t)request->size;
    *h = (ddl__host_groups){.hosts = request->topology ? request->topology->groups[DDL__HOSTS]
                                                       : request->size,
                            .self = ddl__host_of(request, request->rank)};
    h->first = calloc((size_t)h->hosts + 1 + 2 * size, sizeof *h->first);
    if (!h->first)
        return false;
    h->ranks = h->first + h->hosts + 1;
    h->local = h->ranks + size;
    for (int r = 0; r < request->size; r++)
        h->local[r] = h->first[ddl__host_of(request, r) + 1]++;
    for (int i = 0; i < h->hosts; i++)
        h->first[i + 1] += h->first[i];
    for (int r = 0; r < request->size; r++)
        h->ranks[h->first[ddl__host_of(request, r)] + h->local[r]] = (uint32_t)r;
    return true;
}

void ddl__host_groups_destroy(ddl__host_groups *groups)
{
    free(groups->first);
    groups->first = NULL;
}

void ddl__host_groups_range(const ddl__host_groups *h, uint32_t *most, uint32_t *least)
{
    *most = *least = ddl__host_size(h, 0);
    for (int i = 1; i < h->hosts; i++) {
        uint32_t n = ddl__host_size(h, i);
        *most = n > *most ? n : *most;
        *least = n < *least ? n : *least;
    }
}

uint32_t ddl__host_leader(const ddl__host_groups *h, const ddl__request *request, int host,
                          int root)
{
    bool has_root = ddl__host_of(request, root) == host;
    return has_root ? (uint32_t)root : ddl__host_ranks(h, host)[0];
}
