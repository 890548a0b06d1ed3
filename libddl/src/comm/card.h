/* card.h - what a rank brings to the rendezvous, and what it gets back for every rank: the same
 * layout both ways, after a handshake, and followed by the proof of the card, or of all. */
#ifndef DDL_COMM_CARD_H
#define DDL_COMM_CARD_H

#include <stdbool.h>

#include "base/status.h"

enum { DDL__CARD_MAGIC = 0x6c646472 };

typedef struct ddl__card {
    uint32_t magic;
    uint16_t protocol;
    uint16_t length; /* of the address */
    int32_t rank, size, status;
    uint32_t reserved;
    char text[128]; /* refused: why */
    unsigned char address[DDL_ADDRESS_MAX];
} ddl__card;

/* Both look at a card whose magic is right. */

/* At rank 0: whether a caller's card can be handed on to the others; it then carries no status or
 * text of the caller's. Else the card becomes the answer to it, with the reason. */
bool ddl__card_fits(ddl__card *card, int size);

/* At a caller, `rank`: whether the card that came back can be used; sets the message. */
ddl_status ddl__card_accept(ddl__card *card, int rank);

#endif
