/* comm.h - one group of ranks at one epoch. */
#ifndef DDL_COMM_COMM_H
#define DDL_COMM_COMM_H

#include "comm/layout.h"
#include "connect/endpoint.h"
#include "health/health.h"
#include "net/shm.h"
#include "net/tcp.h"

struct ddl_comm {
    ddl_endpoint *endpoint;
    ddl__comm_slot *slot;
    ddl__engine *engine;
    ddl__health *health; /* NULL in a comm of one */
    int rank, size, local_rank, local_size;
    int64_t operation_timeout_ms;
    uint64_t segment_bytes;
    char **names;            /* by rank: "rank 2 on host" */
    ddl__address *addresses; /* by rank */
    ddl_comm_config config;  /* as it was created with */
    ddl__layout layout;      /* what the environment says of all the job's ranks ... */
    bool is_world;           /* ... which are all in this comm, as far as is known */
    const char *plan_file;   /* rank 0's $DDL_PLAN_FILE, or NULL; the environment's */
    ddl__topology *topology;
    ddl__arena *arena;
    ddl__slots *slots;
};

/* By the config's limit, or by an earlier deadline; that is not the comm's to inherit. */
ddl_status ddl__comm_create(ddl_endpoint *endpoint, const void *const *addresses,
                            const size_t *lengths, int rank, int size,
                            const ddl_comm_config *config, bool is_world, int64_t deadline,
                            ddl_comm **comm);

/* DDL_EMISMATCH, with the message set, when members are known to have called different operations
 * and no caller knows it yet. */
ddl_status ddl__comm_destroy(ddl_comm *comm);

/* Destroy it, not with a goodbye: its members go on in another comm. NULL is fine. */
void ddl__comm_abandon(ddl_comm *comm);

/* The same from decoded addresses, which it takes over in any case. */
ddl_status ddl__comm_join(ddl_endpoint *endpoint, ddl__address *addresses, int rank, int size,
                          const ddl_comm_config *config, bool is_world, int64_t deadline,
                          ddl_comm **comm);

/* Comms made from a comm, in family.c. What the config leaves at 0 is as in the parent. */
ddl_status ddl__comm_subset(ddl_comm *parent, const int *ranks, int size,
                            const ddl_comm_config *config, int64_t deadline, ddl_comm **comm);
ddl_status ddl__comm_split(ddl_comm *parent, int color, int key, const ddl_comm_config *config,
                           ddl_comm **comm);
ddl_status ddl__comm_duplicate(ddl_comm *parent, const ddl_comm_config *config, ddl_comm **comm);

/* Exchange addresses at url, then create. */
ddl_status ddl__comm_create_world(ddl_endpoint *endpoint, const char *url, int rank, int size,
                                  const ddl_comm_config *config, ddl_comm **comm);

/* The creation's own limit, with the default in place of 0. */
int64_t ddl__comm_creation_ms(const ddl_comm_config *config);

#endif
