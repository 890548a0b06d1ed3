/* rendezvous.h - the two sides of a rendezvous. Rank 0 listens at the url; every other rank brings
 * its address there and gets the whole list. Both prove that they know the job's secret
 * (handshake.h), and that of the addresses nothing was altered. A caller that does not fit is told
 * why, and rank 0 goes on waiting for those that do. */
#ifndef DDL_CONNECT_RENDEZVOUS_H
#define DDL_CONNECT_RENDEZVOUS_H

#include "connect/endpoint.h"
#include "connect/rendezvous_record.h"

/* What both sides know. */
typedef struct ddl__rendezvous_plan {
    ddl_endpoint *endpoint;
    char host[256], port[8]; /* of the url */
    int rank, size;
    ddl__rendezvous_record *records; /* by rank: the own one is there, the others are filled in */
    int64_t begun, deadline;
    int64_t warn_at; /* when to warn of who is missing; DDL__NEVER: not, or done */
} ddl__rendezvous_plan;

/* Exchange the records at a url. Rank 0 is the root, all others are clients. */
ddl_status ddl__rendezvous_run(ddl__rendezvous_plan *plan, const char *url);

/* The root: wait for all others, and give each of them the list. */
ddl_status ddl__rendezvous_root(ddl__rendezvous_plan *plan);

/* A client: bring its own record, and wait for the list. */
ddl_status ddl__rendezvous_client(ddl__rendezvous_plan *plan);

/* What all records come to, once for all callers. */
bool ddl__rendezvous_records_mac(const ddl__job *job, const ddl__rendezvous_record *records,
                                 int size, unsigned char mac[DDL__KEY]);

#endif
