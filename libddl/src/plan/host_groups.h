/* host_groups.h - the hosts of a comm as lists of their ranks. For the algorithms of this folder
 * that go host by host. */
#ifndef DDL_PLAN_HOST_GROUPS_H
#define DDL_PLAN_HOST_GROUPS_H

#include "plan/builder.h"

typedef struct ddl__host_groups {
    int hosts, self; /* this rank's host */
    uint32_t *first; /* of host h in ranks; the last host's end at first[hosts] */
    uint32_t *ranks; /* by host, in rank order */
    uint32_t *local; /* by rank: its number in its host */
} ddl__host_groups;

/* Without a topology every rank is a host of its own. */
int ddl__host_of(const ddl__request *request, int rank);

/* False when out of memory. */
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

/* The largest and the smallest host. */
void ddl__host_groups_range(const ddl__host_groups *groups, uint32_t *most, uint32_t *least);

/* How many of the next `n` ranks follow each other in number, so that their blocks do in a buffer
 * of blocks. */
static inline uint32_t ddl__run_length(const uint32_t *ranks, uint32_t n)
{
    uint32_t run = 1;
    while (run < n && ranks[run] == ranks[run - 1] + 1)
        run++;
    return run;
}

#endif
