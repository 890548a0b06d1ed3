/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous.h - the two sides of a rendezvous. Rank 0 listens at the URL. Every other rank sends
 * its address there and receives the list of all addresses. Both sides prove that they know the
 * job's secret (handshake.h) and that the addresses were not altered. Rank 0 answers a client that
 * does not fit with the reason, and continues to wait for the others.
 *
 * In a large job, rank 0 gives the list to some ranks only, and names to each of the others the
 * rank that gives it the list (rendezvous_tree.c). So rank 0 sends each rank one record, and the
 * list to log2(n) of them. */
#ifndef DDL_CONNECT_RENDEZVOUS_H
#define DDL_CONNECT_RENDEZVOUS_H

#include "connect/endpoint.h"

/* What a client sends after the handshake, followed by its proof, and what it receives first. */
enum { DDL__RECORD_MAGIC = 0x6c646472 };

typedef struct ddl__rendezvous_record {
    uint32_t magic;
    uint16_t protocol;
    uint16_t length; /* of the address */
    int32_t rank, size, status;
    uint32_t list_bytes; /* in an answer: so many bytes of the list follow, and their proof. 0: the
                            rank of this record gives the list */
    ddl__digest rendezvous; /* in an answer: the list's random id, at which its giver is asked */
    char text[128];         /* the reason of a refusal */
    unsigned char address[DDL_ADDRESS_MAX];
} ddl__rendezvous_record;
_Static_assert(sizeof(ddl__rendezvous_record) % 8 == 0, "padding would send uninitialized memory");

/* The data of either side. */
typedef struct ddl__rendezvous_plan {
    ddl_endpoint *endpoint;
    char host[256], port[8]; /* of the URL */
    int rank, size;
    ddl__rendezvous_record own; /* with the list's id, once it is known */
    unsigned char *list; /* the result, of the caller: every rank's address behind its length */
    size_t list_bytes;
    int64_t begun, deadline;
    int64_t warn_at; /* when to warn about missing ranks; DDL__NEVER: no warning, or it was given */
} ddl__rendezvous_plan;

/* Exchange the addresses at a URL. Rank 0 is the root, all others are clients. */
ddl_status ddl__rendezvous_run(ddl__rendezvous_plan *plan, const char *url);

/* The rank that gives `rank` the list: 0 in a small job, else a lower rank. */
int ddl__rendezvous_giver(int rank, int size);

/* ---- the list ---- */

/* The bytes that a list of so many ranks may have. */
size_t ddl__rendezvous_list_most(int size);

/* Append an address to the list at `to`; returns where the next one goes. */
unsigned char *ddl__rendezvous_list_put(unsigned char *to, const ddl__rendezvous_record *record);

/* The next address of a list, of which *left bytes are left from *at on; NULL at its end, or if it
 * is damaged. */
const unsigned char *ddl__rendezvous_list_next(const unsigned char **at, size_t *left,
                                               size_t *length);

/* Send the list over a connection, with a proof. */
bool ddl__rendezvous_send_list(const ddl__rendezvous_plan *plan, const ddl__session *session,
                               ddl__seal *seal, int fd, int64_t deadline);

/* Receive it, or the record of the rank that gives it: then plan->list stays NULL.
 * DDL_EUNREACHABLE sets errno, not the message. */
ddl_status ddl__rendezvous_receive_list(ddl__rendezvous_plan *plan, const ddl__session *session,
                                        ddl__seal *seal, int fd, ddl__rendezvous_record *first);

/* ---- the root ---- */

/* Wait for all clients, then hand out the list. */
ddl_status ddl__rendezvous_root(ddl__rendezvous_plan *plan);

/* The root checks a client's record, which has the right magic. If it is valid, its status and text
 * are cleared. If not, it becomes the answer to the client, with the reason; false. */
bool ddl__rendezvous_record_check(ddl__rendezvous_record *record, int size);

/* ---- a client ---- */

/* Send its own record, and wait for the list. */
ddl_status ddl__rendezvous_client(ddl__rendezvous_plan *plan);

/* The client `rank` checks a record that it has received. Sets the message. */
ddl_status ddl__rendezvous_record_accept(ddl__rendezvous_record *record, int rank, int size);

/* ---- rendezvous_tree.c ---- */

/* The root has answered with this record, and perhaps the list. If not, get it from the rank that
 * the record names. Then give it to those that ask for it here. */
ddl_status ddl__rendezvous_follow(ddl__rendezvous_plan *plan, const ddl__rendezvous_record *first);

#endif
