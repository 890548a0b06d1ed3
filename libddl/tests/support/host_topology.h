/* SPDX-License-Identifier: Apache-2.0 */
/* host_topology.h - topologies of hosts for the tests of plans. */
#ifndef DDL_TESTS_HOST_TOPOLOGY_H
#define DDL_TESTS_HOST_TOPOLOGY_H

#include "plan_spans.h"

/* Create hosts with these numbers of ranks, in racks and aisles as described. Ranks are numbered
 * host by host, or at random. */
static ddl__topology *topology_of(const int *hosts, int n, const char *racks, bool shuffled)
{
    int size = 0;
    for (int h = 0; h < n; h++)
        size += hosts[h];
    int *host = malloc((size_t)size * sizeof *host);
    ddl__sharing *sharing = calloc((size_t)size, sizeof *sharing);
    CHECK(host && sharing, "out of memory");
    for (int h = 0, r = 0; h < n; h++)
        for (int i = 0; i < hosts[h]; i++)
            host[r++] = h;
    for (int i = size - 1; shuffled && i > 0; i--) {
        int j = (int)random_below((uint64_t)i + 1), other = host[j];
        host[j] = host[i];
        host[i] = other;
    }
    for (int i = 0; i < size; i++)
        sharing[i] = (ddl__sharing){{{(uint64_t)host[i], 0}}, (uint64_t)hosts[host[i]]};
    ddl__topology *t;
    CHECK(ddl__topology_create(sharing, size, racks, false, &t) == DDL_OK, "%s", ddl__message());
    free(host);
    free(sharing);
    return t;
}

#endif
