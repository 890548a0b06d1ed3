#include "comm/card.h"

#include <stdio.h>
#include <string.h>

#include "comm/address.h"
#include "comm/hello.h"

_Static_assert(sizeof(ddl__card) % 8 == 0, "no padding, which would carry our memory to others");

bool ddl__card_fits(ddl__card *card, int size)
{
    ddl__address address;
    char why[sizeof card->text] = "";
    if (card->protocol != DDL__PROTOCOL)
        snprintf(why, sizeof why, "rank 0 speaks protocol %d, this one %u", DDL__PROTOCOL,
                 card->protocol);
    else if (card->size != size)
        snprintf(why, sizeof why, "size is %d here and %d at rank 0", card->size, size);
    else if (card->rank < 1 || card->rank >= size)
        snprintf(why, sizeof why, "rank %d is outside 0 to %d", card->rank, size - 1);
    else if (card->length > DDL_ADDRESS_MAX)
        snprintf(why, sizeof why, "an address of %u bytes", card->length);
    else if (ddl__address_decode(&address, card->address, card->length) != DDL_OK)
        snprintf(why, sizeof why, "%s", ddl__message());
    memcpy(card->text, why, sizeof why);
    card->status = why[0] ? DDL_EREFUSED : DDL_OK;
    return !why[0];
}

ddl_status ddl__card_accept(ddl__card *card, int rank)
{
    ddl__clean(card->text, sizeof card->text);
    if (card->status == DDL_ETIMEDOUT)
        return ddl__fail(DDL_ETIMEDOUT, "%s",
                         card->text[0] ? card->text : "the rendezvous ended without all ranks");
    if (card->status != DDL_OK)
        return ddl__fail(DDL_EREFUSED, "the rendezvous refused rank %d: %s", rank, card->text);
    if (card->length > DDL_ADDRESS_MAX)
        return ddl__fail(DDL_EREFUSED, "the rendezvous gave rank %d an address of %u bytes", rank,
                         card->length);
    return DDL_OK;
}
