/* The cards of a rendezvous: any bytes that a caller brings to rank 0, and what rank 0 makes of
 * them, altered once more, for the others. */
#include "comm/address.h"
#include "comm/card.h"
#include "comm/hello.h"
#include "input.h"

static ddl__card right_card(int rank, int size)
{
    ddl__address address = {.endpoint = {{1, 2}}, .port = 3, .n_ips = 1, .host = "host"};
    address.ips[0] = (ddl__interface){.family = 4, .bytes = {127, 0, 0, 1}};
    ddl__card card;
    memset(&card, 0, sizeof card);
    card.magic = DDL__CARD_MAGIC;
    card.protocol = DDL__PROTOCOL;
    card.rank = rank;
    card.size = size;
    card.length = (uint16_t)ddl__address_encode(&address, card.address);
    return card;
}

static void check_handed_on(const ddl__card *card, int size)
{
    ddl__address address;
    REQUIRE(card->rank > 0 && card->rank < size && card->size == size, "rank %d of %d", card->rank,
            card->size);
    REQUIRE(ddl__address_decode(&address, card->address, card->length) == DDL_OK, "%s",
            ddl__message());
    REQUIRE(card->status == DDL_OK && !card->text[0], "status %d", card->status);
}

static void check_refused(const ddl__card *card)
{
    REQUIRE(card->status == DDL_EREFUSED && card->text[0], "status %d", card->status);
    REQUIRE(memchr(card->text, 0, sizeof card->text), "a text without an end");
}

/* As the ranks do with cards of the right magic. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    input in = {bytes, n};
    int size = 2 + (int)input_byte(&in) % 4;
    ddl__card card = right_card(1 + (int)input_byte(&in) % (size - 1), size);
    if (input_byte(&in) % 4 == 3)
        input_run(&in, &card, sizeof card);
    else
        input_alter(&in, &card, sizeof card);
    if (ddl__card_fits(&card, size))
        check_handed_on(&card, size);
    else
        check_refused(&card);

    input_alter(&in, &card, sizeof card);
    ddl__message_clear();
    if (ddl__card_accept(&card, 1) == DDL_OK)
        REQUIRE(card.status == DDL_OK && card.length <= DDL_ADDRESS_MAX, "%u bytes", card.length);
    else
        REQUIRE(ddl__message()[0] && memchr(card.text, 0, sizeof card.text), "no message");
    for (const char *at = ddl__message(); *at; at++)
        REQUIRE((unsigned char)*at >= ' ' && *at != 0x7f, "a message that commands terminals");
    return 0;
}
