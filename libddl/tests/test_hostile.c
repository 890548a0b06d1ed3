/* What a broken or hostile peer may hand us is refused with a message, and costs nothing. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "comm/address.h"
#include "net/socket.h"

/* -------------------------------------------------------------------------------------- addresses
 */

enum { HOST = 26, HOST_BYTES = 4, IP = HOST + HOST_BYTES }; /* where they lie in the bytes */

static size_t make_address(unsigned char *bytes)
{
    ddl__address address = {.endpoint = {{1, 2}}, .port = 3, .n_ips = 1, .host = "host"};
    address.ips[0] = (ddl__ip){.family = 4, .bytes = {127, 0, 0, 1}};
    return ddl__address_encode(&address, bytes);
}

static void test_address(void)
{
    static const struct {
        size_t at;
        unsigned char value;
    } wrong[] = {{0, 0}, {4, 9}, {24, 2}, {25, 3}, {HOST + 1, 0}, {IP, 0}, {IP, 5}};
    unsigned char bytes[DDL_ADDRESS_MAX];
    ddl__address address;
    size_t n = make_address(bytes);
    CHECK(ddl__address_decode(&address, bytes, n) == DDL_OK, "%s", ddl__message());
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        make_address(bytes);
        bytes[wrong[i].at] = wrong[i].value;
        ddl__message_clear();
        CHECK(ddl__address_decode(&address, bytes, n) == DDL_EINVAL, "byte %zu as %u is accepted",
              wrong[i].at, wrong[i].value);
        CHECK(strstr(ddl__message(), "address"), "message \"%s\"", ddl__message());
    }
    for (size_t length = 0; length < n; length++) {
        make_address(bytes);
        CHECK(ddl__address_decode(&address, bytes, length) == DDL_EINVAL, "%zu bytes", length);
    }
}

int main(void)
{
    test_address();
    return 0;
}
