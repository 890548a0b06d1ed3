/* SPDX-License-Identifier: Apache-2.0 */
/* host_groups.h - the ranks of each host, for the algorithms that work host by host. */
#ifndef DDL_PLAN_HOST_GROUPS_H
#define DDL_PLAN_HOST_GROUPS_H

#include "plan/request.h"

typedef struct ddl__host_groups {
    int hosts, self; /* number of hosts; this rank's host */
    uint32_t *first; /* host h has ranks[first[h]] up to ranks[first[h + 1]] */
    uint32_t *ranks; /* by host, in rank order */
    uint32_t *local; /* by rank: its index on its host */
} ddl__host_groups;

/* Return the host of a rank. Without a topology every rank is a host. */
int ddl__host_of(const ddl__request *request, int rank);

/* Return the leader of a host: the root on its own host, elsewhere the first rank. */
uint32_t ddl__host_leader(const ddl__host_groups *groups, const ddl__request *request, int host,
                          int root);

/* Find the ranks of each host. Return false if out of memory. */
bool ddl__host_groups_create(ddl__host_groups *groups, const ddl__request *request);
void ddl__host_groups_destroy(ddl__host_groups *groups);

static inline uint32_t ddl__host_size(const ddl__host_groups *h, int host)
{
    return h->first[host + 1] - h->first[host];
}

static inline const uint32_t *ddl__host_ranks(const ddl__host_groups *h, int host)
{
    return h->ranks + h->first[host];
}

/* Return the number of ranks of the largest and the smallest host. */
void ddl__host_groups_range(const ddl__host_groups *groups, uint32_t *most, uint32_t *least);

/* Return how many of the next `n` ranks have consecutive numbers, so that their blocks are
 * contiguous. */
static inline uint32_t ddl__run_length(const uint32_t *ranks, uint32_t n)
{
    uint32_t run = 1;
    while (run < n && ranks[run] == ranks[run - 1] + 1)
        run++;
    return run;
}

#endif
