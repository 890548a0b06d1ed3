/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous.h - the two sides of a rendezvous. Rank 0 listens at the URL. Every other rank sends
 * its address there and receives the list of all addresses. Both sides prove that they know the
 * job's secret (handshake.h) and that the addresses were not altered. Rank 0 sends an invalid
 * client the reason for its refusal, and continues to wait for the others.
 *
 * In a large job, rank 0 sends the list only to log2(n) ranks. It sends each of the others the
 * address of the rank that gives it the list (rendezvous_tree.c). */
#ifndef DDL_CONNECT_RENDEZVOUS_H
#define DDL_CONNECT_RENDEZVOUS_H

#include "connect/endpoint/endpoint.h"

/* The record that a client sends after the handshake, followed by a proof. The first answer that
 * the client receives is such a record, too. */
enum { DDL__RECORD_MAGIC = 0x6c646472 };

typedef struct ddl__rendezvous_record {
    uint32_t magic;
    uint16_t protocol;
    uint16_t length; /* length of the address */
    int32_t rank, size, status;
    uint32_t list_bytes; /* in an answer: the bytes of the list that follows, with its proof; 0: the
                            rank of this record gives the list */
    ddl__digest rendezvous; /* in an answer: the list's random id, for the request to its giver */
    char text[128];         /* the reason of a refusal */
    unsigned char address[DDL_ADDRESS_MAX];
} ddl__rendezvous_record;
_Static_assert(sizeof(ddl__rendezvous_record) % 8 == 0, "padding would send uninitialized memory");

/* The state of one side of a rendezvous. */
typedef struct ddl__rendezvous_plan {
    ddl_endpoint *endpoint;
    char host[256], port[8]; /* host and port of the URL */
    int rank, size;
    ddl__rendezvous_record own; /* this rank's record, with the list's id once that is known */
    unsigned char *list; /* the result, owned by the caller: each rank's address after its length */
    size_t list_bytes;
    int64_t begun, deadline;
    int64_t warn_at; /* when to warn about missing ranks; DDL__NEVER: no warning, or it was given */
} ddl__rendezvous_plan;

/* Exchange the addresses at a URL. Rank 0 is the root, all others are clients. */
ddl_status ddl__rendezvous_run(ddl__rendezvous_plan *plan, const char *url);

/* Return the rank that gives `rank` the list: 0 in a small job, else a lower rank. */
int ddl__rendezvous_giver(int rank, int size);

/* ---- the list ---- */

/* Return the maximum size in bytes of a list of `size` ranks. */
size_t ddl__rendezvous_list_most(int size);

/* Append an address to the list at `to`; returns the place for the next one. */
unsigned char *ddl__rendezvous_list_put(unsigned char *to, const ddl__rendezvous_record *record);

/* Return the next address of a list, whose rest is *left bytes at *at; NULL at the end of the list,
 * or if it is damaged. */
const unsigned char *ddl__rendezvous_list_next(const unsigned char **at, size_t *left,
                                               size_t *length);

/* Send the list over a connection, with a proof. */
bool ddl__rendezvous_send_list(const ddl__rendezvous_plan *plan, const ddl__session *session,
                               ddl__seal *seal, int fd, int64_t deadline);

/* Receive the record of the giver, and the list if the giver sends one. Otherwise plan->list stays
 * NULL. If the result is DDL_EUNREACHABLE, errno is set and there is no message. */
ddl_status ddl__rendezvous_receive_list(ddl__rendezvous_plan *plan, const ddl__session *session,
                                        ddl__seal *seal, int fd, ddl__rendezvous_record *first);

/* ---- the root ---- */

/* Wait for all clients, then hand out the list. */
ddl_status ddl__rendezvous_root(ddl__rendezvous_plan *plan);

/* On the root: check a client's record. The caller has checked the magic. Return true, with status
 * and text cleared, if the record is valid. Otherwise turn it into the answer to the client, with
 * the reason, and return false. */
bool ddl__rendezvous_record_check(ddl__rendezvous_record *record, int size);

/* ---- a client ---- */

/* Send this rank's record, and wait for the list. */
ddl_status ddl__rendezvous_client(ddl__rendezvous_plan *plan);

/* Check a record that the client `rank` has received. Sets the message. */
ddl_status ddl__rendezvous_record_accept(ddl__rendezvous_record *record, int rank, int size);

/* ---- rendezvous_tree.c ---- */

/* Continue after the root's answer `first`. If the root sent no list, get it from the rank that the
 * record names. Then give the list to the ranks that request it here. */
ddl_status ddl__rendezvous_follow(ddl__rendezvous_plan *plan, const ddl__rendezvous_record *first);

#endif
