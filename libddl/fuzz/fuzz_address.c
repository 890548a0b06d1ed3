/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the decoding of an address: bytes must be decoded or rejected, and a decoded address must
 * be encoded to the same bytes. */
#include <arpa/inet.h>

#include "connect/addresses/address.h"
#include "ddl/ddl.h"
#include "input.h"

static size_t right_address(unsigned char *bytes)
{
    ddl__interface ips[] = {{.family = 4, .bytes = {127, 0, 0, 1}},
                            {.family = 6, .bytes = {[15] = 1}}};
    const ddl__address address = {
        .endpoint = {{1, 2}}, .port = 3, .n_ips = 2, .ips = ips, .host = "host"};
    return ddl__address_encode(&address, bytes);
}

static void use(const ddl__address *address)
{
    REQUIRE(strnlen(address->host, sizeof address->host) < sizeof address->host, "no end");
    for (unsigned i = 0; i < address->n_ips; i++) {
        struct sockaddr_storage to;
        socklen_t length = ddl__address_ip(address, i, &to);
        REQUIRE(length == (to.ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                                   : sizeof(struct sockaddr_in6)),
                "family %u", address->ips[i].family);
        REQUIRE(address->ips[i].family == (to.ss_family == AF_INET ? 4 : 6), "family %u",
                address->ips[i].family);
    }
}

/* If the first byte is odd, the input alters a valid address, and then cuts or extends it. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    input in = {bytes, n};
    unsigned char made[2 * DDL_ADDRESS_MAX], again[DDL_ADDRESS_MAX];
    size_t length;
    if (input_byte(&in) % 2) {
        memset(made, 0, sizeof made);
        length = right_address(made);
        input_alter(&in, made, length);
        length = (length + input_length(&in, sizeof made)) % sizeof made;
    } else {
        length = input_run(&in, made, sizeof made);
    }
    unsigned char *exact = malloc(length ? length : 1);
    memcpy(exact, made, length);
    ddl__address address;
    ddl__interface ips[DDL__INTERFACES_MAX];
    ddl__message_clear();
    if (ddl__address_decode(&address, ips, exact, length) == DDL_OK) {
        use(&address);
        REQUIRE(ddl__address_encode(&address, again) == length, "%zu bytes became others", length);
        REQUIRE(!memcmp(again, exact, length), "%zu bytes changed", length);
    } else {
        REQUIRE(ddl__message()[0], "refused without a message");
    }
    free(exact);
    return 0;
}
