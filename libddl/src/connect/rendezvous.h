/* rendezvous.h - the two sides of a rendezvous. Rank 0 listens at the URL. Every other rank sends
 * its address there and receives the list of all addresses. Both sides prove that they know the
 * job's secret (handshake.h) and that the addresses were not altered. Rank 0 answers a client that
 * does not fit with the reason, and continues to wait for the others. */
#ifndef DDL_CONNECT_RENDEZVOUS_H
#define DDL_CONNECT_RENDEZVOUS_H

#include "connect/endpoint.h"
#include "connect/rendezvous_record.h"

/* The data of either side. */
typedef struct ddl__rendezvous_plan {
    ddl_endpoint *endpoint;
    char host[256], port[8]; /* of the URL */
    int rank, size;
    ddl__rendezvous_record *records; /* by rank: contains our own; the others are filled in */
    int64_t begun, deadline;
    int64_t warn_at; /* when to warn about missing ranks; DDL__NEVER: no warning, or it was given */
} ddl__rendezvous_plan;

/* Exchange the records at a URL. Rank 0 is the root, all others are clients. */
ddl_status ddl__rendezvous_run(ddl__rendezvous_plan *plan, const char *url);

/* The root: wait for all clients, then send each of them the list. */
ddl_status ddl__rendezvous_root(ddl__rendezvous_plan *plan);

/* A client: send its own record, and wait for the list. */
ddl_status ddl__rendezvous_client(ddl__rendezvous_plan *plan);

/* One MAC over all records, equal for all clients. */
bool ddl__rendezvous_records_mac(const ddl__job *job, const ddl__rendezvous_record *records,
                                 int size, unsigned char mac[DDL__KEY]);

#endif
