/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the records of a rendezvous: the bytes that a client sends to rank 0, and, altered once
 * more, the record that rank 0 sends to the others. */
#include "connect/addresses/address.h"
#include "connect/handshake/hello.h"
#include "connect/rendezvous/rendezvous.h"
#include "input.h"

static ddl__rendezvous_record right_record(int rank, int size)
{
    ddl__interface ip = {.family = 4, .bytes = {127, 0, 0, 1}};
    const ddl__address address = {
        .endpoint = {{1, 2}}, .port = 3, .n_ips = 1, .ips = &ip, .host = "host"};
    ddl__rendezvous_record record;
    memset(&record, 0, sizeof record);
    record.magic = DDL__RECORD_MAGIC;
    record.protocol = DDL__PROTOCOL;
    record.rank = rank;
    record.size = size;
    record.length = (uint16_t)ddl__address_encode(&address, record.address);
    return record;
}

static void check_handed_on(const ddl__rendezvous_record *record, int size)
{
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    REQUIRE(record->rank > 0 && record->rank < size && record->size == size, "rank %d of %d",
            record->rank, record->size);
    REQUIRE(ddl__address_decode(&address, ips, record->address, record->length) == DDL_OK, "%s",
            ddl__message());
    REQUIRE(record->status == DDL_OK && !record->text[0], "status %d", record->status);
}

static void check_refused(const ddl__rendezvous_record *record)
{
    REQUIRE(record->status == DDL_EREFUSED && record->text[0], "status %d", record->status);
    REQUIRE(memchr(record->text, 0, sizeof record->text), "a text without an end");
}

/* Check that an altered list of addresses is read within its bounds. */
static void read_list(input *in)
{
    unsigned char list[600];
    size_t left = input_byte(in) * 2u, length, sum = 0;
    const unsigned char *at = list, *address;
    memset(list, 0, sizeof list);
    input_run(in, list, left);
    const unsigned char *end = list + left;
    while ((address = ddl__rendezvous_list_next(&at, &left, &length))) {
        REQUIRE(address >= list && address + length <= end, "%zu bytes", length);
        sum += length;
    }
    REQUIRE(sum <= sizeof list, "%zu bytes", sum);
}

/* Handle the records as the ranks handle records with the right magic. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    input in = {bytes, n};
    int size = 2 + (int)input_byte(&in) % 4;
    ddl__rendezvous_record record = right_record(1 + (int)input_byte(&in) % (size - 1), size);
    if (input_byte(&in) % 4 == 3)
        input_run(&in, &record, sizeof record);
    else
        input_alter(&in, &record, sizeof record);
    if (ddl__rendezvous_record_check(&record, size))
        check_handed_on(&record, size);
    else
        check_refused(&record);

    read_list(&in);
    input_alter(&in, &record, sizeof record);
    ddl__message_clear();
    if (ddl__rendezvous_record_accept(&record, 1, size) == DDL_OK)
        REQUIRE(record.status == DDL_OK && record.length <= DDL_ADDRESS_MAX &&
                    record.list_bytes <= ddl__rendezvous_list_most(size),
                "%u and %u bytes", record.length, record.list_bytes);
    else
        REQUIRE(ddl__message()[0] && memchr(record.text, 0, sizeof record.text), "no message");
    for (const char *at = ddl__message(); *at; at++)
        REQUIRE((unsigned char)*at >= ' ' && *at != 0x7f, "a message that commands terminals");
    return 0;
}
