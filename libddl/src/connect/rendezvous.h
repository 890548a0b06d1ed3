/* rendezvous.h - the two sides of a rendezvous. Rank 0 listens at the URL. Every other rank sends
 * its address there and receives the list of all addresses. Both sides prove that they know the
 * job's secret (handshake.h) and that the addresses were not altered. Rank 0 answers a client that
 * does not fit with the reason, and continues to wait for the others. */
#ifndef DDL_CONNECT_RENDEZVOUS_H
#define DDL_CONNECT_RENDEZVOUS_H

#include "connect/endpoint.h"

/* What a client sends after the handshake, and what it receives for every rank. The proof of the
 * record, or of the whole list, follows it. */
enum { DDL__RECORD_MAGIC = 0x6c646472 };

typedef struct ddl__rendezvous_record {
    uint32_t magic;
    uint16_t protocol;
    uint16_t length; /* of the address */
    int32_t rank, size, status;
    uint32_t reserved;
    char text[128]; /* the reason of a refusal */
    unsigned char address[DDL_ADDRESS_MAX];
} ddl__rendezvous_record;
_Static_assert(sizeof(ddl__rendezvous_record) % 8 == 0, "padding would send uninitialized memory");

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

/* The root checks a client's record, which has the right magic. If it is valid, its status and text
 * are cleared. If not, it becomes the answer to the client, with the reason; false. */
bool ddl__rendezvous_record_check(ddl__rendezvous_record *record, int size);

/* The client `rank` checks a record that it has received. Sets the message. */
ddl_status ddl__rendezvous_record_accept(ddl__rendezvous_record *record, int rank);

/* One MAC over all records, equal for all clients. */
bool ddl__rendezvous_records_mac(const ddl__job *job, const ddl__rendezvous_record *records,
                                 int size, unsigned char mac[DDL__KEY]);

#endif
