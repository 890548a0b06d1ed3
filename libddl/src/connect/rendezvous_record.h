/* rendezvous_record.h - what a rank brings to the rendezvous, and what it gets back for every rank:
 * the same layout both ways, after a handshake, and followed by the proof of the record, or of all.
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
    char text[128]; /* refused: why */
    unsigned char address[DDL_ADDRESS_MAX];
} ddl__rendezvous_record;

/* Both look at a record whose magic is right. */

/* At rank 0: whether a caller's record can be handed on to the others; it then carries no status or
 * text of the caller's. Else the record becomes the answer to it, with the reason. */
bool ddl__rendezvous_record_check(ddl__rendezvous_record *record, int size);

/* At a caller, `rank`: whether the record that came back can be used; sets the message. */
ddl_status ddl__rendezvous_record_accept(ddl__rendezvous_record *record, int rank);

#endif
