/* SPDX-License-Identifier: Apache-2.0 */
/* Paths that lead nowhere are tried last, and none of them is chosen while another is left. */
#include "connect/addresses/path_memory.h"

#include "check.h"

enum { HOSTS = 40 };

/* Two interfaces of a host, in two networks. */
static void make_host(ddl__interface ips[2], unsigned host)
{
    memset(ips, 0, 2 * sizeof *ips);
    for (unsigned i = 0; i < 2; i++) {
        ips[i] = (ddl__interface){.family = 4, .prefix = 24, .bytes = {10, (uint8_t)i}};
        ips[i].bytes[3] = (uint8_t)host;
    }
}

/* Both interfaces are chosen, and there is a spare path. */
static ddl__paths sorted(const ddl__path_memory *memory, unsigned host)
{
    ddl__interface ips[2];
    ddl__paths paths = {.n = 3, .at_once = 2, .path = {{0, 0}, {1, 1}, {-1, 1}}};
    make_host(ips, host);
    ddl__path_memory_sort(memory, ips, &paths);
    CHECK(paths.n == 3, "%u paths", paths.n);
    return paths;
}

static bool add(ddl__path_memory *memory, unsigned host, int8_t interface, bool answers)
{
    ddl__interface ips[2];
    make_host(ips, host);
    return ddl__path_memory_add(memory, ips, (ddl__path){interface, interface}, answers);
}

static void expect(const ddl__path_memory *memory, unsigned host, unsigned at_once, int first,
                   int last)
{
    ddl__paths paths = sorted(memory, host);
    CHECK(paths.at_once == at_once && paths.path[0].ours == first && paths.path[2].ours == last,
          "host %u: %u at once, first by %d, last by %d", host, paths.at_once, paths.path[0].ours,
          paths.path[2].ours);
}

int main(void)
{
    ddl__path_memory memory = {0};
    expect(&memory, 0, 2, 0, -1);

    CHECK(add(&memory, 0, 0, false), "the first failure of an interface");
    CHECK(!add(&memory, 0, 1, true), "a path that answers");
    CHECK(!add(&memory, 1, 0, false), "the second failure of an interface");
    expect(&memory, 0, 1, 1, 0);
    expect(&memory, 2, 1, 1, 0); /* over an interface that has reached no host so far */

    add(&memory, 3, 0, true);
    expect(&memory, 0, 1, 1, 0);
    expect(&memory, 2, 2, 0, -1);

    add(&memory, 0, 0, true); /* it answers again */
    expect(&memory, 0, 2, 0, -1);
    expect(&memory, 1, 1, 1, 0);

    for (unsigned host = 0; host < HOSTS; host++) {
        add(&memory, host, 0, false);
        add(&memory, host, 1, false);
    }
    expect(&memory, HOSTS - 1, 1, -1, 1); /* only the spare path is left */
    ddl__path_memory_free(&memory);
}
