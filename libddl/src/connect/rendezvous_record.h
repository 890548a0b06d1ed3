/* rendezvous_record.h - the record that a client sends to the rendezvous, and that it receives for
 * every rank. It follows the handshake. The proof of the record, or of the whole list, follows it.
 */
#ifndef DDL_CONNECT_RENDEZVOUS_RECORD_H
#define DDL_CONNECT_RENDEZVOUS_RECORD_H

#include <stdbool.h>

#include "base/status.h"

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

/* Both functions expect a record with the right magic. */

/* At rank 0: check a client's record. If it is valid, the client's status and text are cleared. If
 * not, the record becomes the answer to the client, with the reason; false. */
bool ddl__rendezvous_record_check(ddl__rendezvous_record *record, int size);

/* At the client `rank`: check a record that was received. Sets the message. */
ddl_status ddl__rendezvous_record_accept(ddl__rendezvous_record *record, int rank);

#endif
