/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of network interfaces, and the pairing of the interfaces of two hosts. */
#include "check.h"
#include "topo/interfaces.h"

/* Parse "name address/bits", optionally followed by "@speed". */
static ddl__interface parse(const char *text)
{
    ddl__interface i = {0};
    char name[32], address[64];
    unsigned bits, speed = 0;
    CHECK(sscanf(text, "%31s %63[^/]/%u@%u", name, address, &bits, &speed) >= 3, "%s", text);
    i.family = strchr(address, ':') ? 6 : 4;
    i.prefix = (uint8_t)bits;
    i.speed = speed;
    i.loopback = !strcmp(name, "lo");
    strcpy(i.name, name);
    CHECK(inet_pton(i.family == 4 ? AF_INET : AF_INET6, address, i.bytes) == 1, "%s", text);
    return i;
}

static unsigned parse_all(const char *const *texts, ddl__interface *to)
{
    unsigned n = 0;
    for (; texts[n]; n++)
        to[n] = parse(texts[n]);
    return n;
}

/* ------------------------------------------------------------------------------------ selection */

static const char *const MACHINE[] = {
    "lo 127.0.0.1/8",        "lo ::1/128",         "eth0 10.1.0.5/16",     "eth0 10.1.9.9/16",
    "docker0 172.17.0.1/16", "eth1 10.2.0.5/24",   "podman0 10.88.0.1/16", "usb0 169.254.3.1/16",
    "eth0 2001:db8::5/64",   "ib0 192.168.7.5/20", "ib0 2001:db8:7::5/64", NULL};

/* Write the chosen interfaces as "name address", separated by blanks. */
static void chosen(const char *filter, char *text, size_t size)
{
    ddl__interface all[16];
    unsigned n = parse_all(MACHINE, all);
    CHECK(ddl__interfaces_select(all, &n, filter) == DDL_OK, "\"%s\": %s", filter ? filter : "NULL",
          ddl__message());
    size_t used = 0;
    text[0] = 0;
    for (unsigned i = 0; i < n; i++) {
        char address[64];
        inet_ntop(all[i].family == 4 ? AF_INET : AF_INET6, all[i].bytes, address, sizeof address);
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " " : "", address);
    }
}

static void test_select(void)
{
    static const struct {
        const char *filter, *want;
    } cases[] = {
        {NULL, "10.1.0.5 10.2.0.5 192.168.7.5 2001:db8::5 2001:db8:7::5 10.1.9.9 127.0.0.1 ::1"},
        {"", "10.1.0.5 10.2.0.5 192.168.7.5 2001:db8::5 2001:db8:7::5 10.1.9.9 127.0.0.1 ::1"},
        {"eth", "10.1.0.5 10.2.0.5 2001:db8::5 10.1.9.9"},
        {"eth1", "10.2.0.5"},
        {"eth,^eth1", "10.1.0.5 2001:db8::5 10.1.9.9"},
        {"^eth1,eth", "10.1.0.5 2001:db8::5 10.1.9.9"},
        {"^eth", "192.168.7.5 2001:db8:7::5 127.0.0.1 ::1"},
        {"10.0.0.0/8,^podman", "10.1.0.5 10.2.0.5 10.1.9.9"},
        {"10.1.9.0/24", "10.1.9.9"},
        {"10.1.0.0/16,^10.1.9.0/24", "10.1.0.5"},
        {"192.168.0.0/17", "192.168.7.5"},
        {"192.168.7.5", "192.168.7.5"},
        {"2001:db8::/32", "2001:db8::5 2001:db8:7::5"},
        {"2001:db8::/48", "2001:db8::5"},
        {"0.0.0.0/0,^lo",
         "10.1.0.5 172.17.0.1 10.2.0.5 10.88.0.1 169.254.3.1 192.168.7.5 10.1.9.9"},
        {"docker", "172.17.0.1"},
        {"podman0", "10.88.0.1"},
        {"usb0", "169.254.3.1"},
        {"169.254.0.0/16", "169.254.3.1"},
        {"lo", "127.0.0.1 ::1"},
        {"ib,10.2.0.0/24", "10.2.0.5 192.168.7.5 2001:db8:7::5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[400];
        chosen(cases[i].filter, got, sizeof got);
        CHECK(!strcmp(got, cases[i].want), "\"%s\" chose %s, not %s",
              cases[i].filter ? cases[i].filter : "NULL", got, cases[i].want);
    }
}

static void test_select_refused(void)
{
    static const struct {
        const char *filter, *words;
    } cases[] = {
        {"wlan", "\"wlan\"; this host has lo 127.0.0.1, lo ::1, eth0 10.1.0.5"},
        {"10.3.0.0/16", "this host has"},
        {"eth0,^eth", "this host has"},
        {"10.1.0.0/33", "\"10.1.0.0/33\" is neither"},
        {"10.1.0.0/", "\"10.1.0.0/\" is neither"},
        {"10.1/16", "\"10.1/16\" is neither"},
        {"10.1.0.0/1x", "is neither"},
        {"eth,,ib", "\"\" is neither"},
        {"^", "is neither"},
        {"fe80::1%eth0/64", "is neither"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl__interface all[16];
        unsigned n = parse_all(MACHINE, all);
        CHECK(ddl__interfaces_select(all, &n, cases[i].filter) == DDL_EINVAL, "\"%s\" is accepted",
              cases[i].filter);
        CHECK(strstr(ddl__message(), cases[i].words), "\"%s\": \"%s\" lacks \"%s\"",
              cases[i].filter, ddl__message(), cases[i].words);
    }
}

/* A host may have only networks of containers, only loopback, nothing at all, or more than there is
 * room for. */
static void test_select_extremes(void)
{
    ddl__interface all[64];
    unsigned n =
        parse_all((const char *const[]){"docker0 172.17.0.1/16", "lo 127.0.0.1/8", NULL}, all);
    CHECK(ddl__interfaces_select(all, &n, NULL) == DDL_OK && n == 2, "%u", n);
    n = 0;
    CHECK(ddl__interfaces_select(all, &n, NULL) == DDL_OK && n == 0, "%u", n);
    for (n = 0; n < 64; n++) {
        char text[64];
        snprintf(text, sizeof text, "n%u 10.0.%u.1/24", n, n);
        all[n] = parse(text);
    }
    CHECK(ddl__interfaces_select(all, &n, "n") == DDL_OK && n == DDL__INTERFACES_MAX, "%u", n);
    CHECK(!strcmp(all[DDL__INTERFACES_MAX - 1].name, "n15"), "%s", all[n - 1].name);
}

/* A loopback address that is routed to this host leads to it only if it is named. */
static void test_select_loopback(void)
{
    static const struct {
        const char *filter;
        bool loopback;
    } cases[] = {{NULL, true}, {"lo", false}, {"10.99.0.0/16", false}, {"^eth", true}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ddl__interface all[16];
        unsigned n = parse_all((const char *const[]){"lo 127.0.0.1/8", "lo 10.99.0.1/32",
                                                     "lo ::1/128", "eth0 10.1.0.5/24", NULL},
                               all);
        CHECK(ddl__interfaces_select(all, &n, cases[k].filter) == DDL_OK, "%s", ddl__message());
        for (unsigned i = 0; i < n; i++) {
            bool is_routed = all[i].bytes[1] == 99, is_own = !strcmp(all[i].name, "lo");
            bool want = is_routed ? cases[k].loopback : is_own;
            CHECK(all[i].loopback == want, "case %zu, address %u", k, i);
        }
    }
}

/* ---------------------------------------------------------------------------------------- paths */

typedef struct pairing {
    const char *what;
    const char *ours[6], *theirs[6];
    ddl__where where;
    int8_t route[6];
    unsigned at_once, n;
    ddl__path paths[6];
} pairing;

static const pairing PAIRINGS[] = {
    {"two networks, in another order",
     {"eth0 10.1.0.1/24", "eth1 10.2.0.1/24", "lo 127.0.0.1/8"},
     {"eth0 10.2.0.2/24", "eth1 10.1.0.2/24", "lo 127.0.0.1/8"},
     DDL__OTHER_HOST,
     {1, 0, 2},
     2,
     2,
     {{0, 1}, {1, 0}}},
    {"two interfaces in one network",
     {"eth0 10.1.0.1/24", "eth1 10.1.0.2/24"},
     {"eth0 10.1.0.3/24", "eth1 10.1.0.4/24"},
     DDL__OTHER_HOST,
     {0, 0},
     2,
     2,
     {{0, 0}, {1, 1}}},
    {"both families of one interface are one path, the other a spare",
     {"eth0 10.1.0.1/24", "eth0 2001:db8::1/64"},
     {"eth0 10.1.0.2/24", "eth0 2001:db8::2/64"},
     DDL__OTHER_HOST,
     {0, 1},
     1,
     2,
     {{0, 0}, {-1, 1}}},
    {"one speaks IPv6 only",
     {"eth0 10.1.0.1/24", "eth0 2001:db8::1/64"},
     {"eth0 2001:db8::2/64"},
     DDL__OTHER_HOST,
     {1},
     1,
     1,
     {{1, 0}}},
    {"different subnets, by the routes",
     {"eth0 10.1.0.1/24", "eth1 10.2.0.1/24", "lo 127.0.0.1/8"},
     {"eth0 10.3.0.1/24", "eth1 10.4.0.1/24", "lo 127.0.0.1/8"},
     DDL__OTHER_HOST,
     {1, 0, 2},
     2,
     2,
     {{1, 0}, {0, 1}}},
    {"different subnets, all routes by one interface",
     {"eth0 10.1.0.1/24", "eth1 10.2.0.1/24"},
     {"eth0 10.3.0.1/24", "eth1 10.4.0.1/24"},
     DDL__OTHER_HOST,
     {0, 0},
     1,
     2,
     {{0, 0}, {-1, 1}}},
    {"a network in common is preferred to a route",
     {"eth0 203.0.113.1/24", "eth1 10.2.0.1/24"},
     {"eth0 198.51.100.1/24", "eth1 10.2.0.2/24"},
     DDL__OTHER_HOST,
     {0, 1},
     1,
     2,
     {{1, 1}, {-1, 0}}},
    {"no route is known",
     {"eth0 10.1.0.1/24"},
     {"eth0 10.3.0.1/24", "lo 127.0.0.1/8"},
     DDL__OTHER_HOST,
     {-1, -1},
     1,
     1,
     {{-1, 0}}},
    {"each host has the same inner network",
     {"br0 172.17.0.1/16", "eth0 10.1.0.1/24"},
     {"br0 172.17.0.1/16", "eth0 10.1.0.2/24"},
     DDL__OTHER_HOST,
     {0, 1},
     1,
     1,
     {{1, 1}}},
    {"loopback leads nowhere",
     {"lo 127.0.0.1/8"},
     {"lo 127.0.0.2/8"},
     DDL__OTHER_HOST,
     {0},
     0,
     0,
     {{0, 0}}},
    {"whether it is this host is not known",
     {"eth0 10.1.0.1/24", "lo 127.0.0.1/8"},
     {"eth0 10.1.0.2/24", "lo 127.0.0.1/8"},
     DDL__WHERE_UNKNOWN,
     {0, 1},
     1,
     2,
     {{0, 0}, {-1, 1}}},
    {"this host: one path is enough",
     {"eth0 10.1.0.1/24", "eth1 10.2.0.1/24", "lo 127.0.0.1/8"},
     {"eth0 10.1.0.1/24", "eth1 10.2.0.1/24", "lo 127.0.0.1/8"},
     DDL__SAME_HOST,
     {-1, -1, -1},
     1,
     3,
     {{-1, 0}, {-1, 1}, {-1, 2}}},
    {"the fastest first, a tenth of it not at all",
     {"eth0 10.1.0.1/24@1000", "eth1 10.2.0.1/24@10000", "eth2 10.3.0.1/24@25000"},
     {"eth0 10.1.0.2/24@25000", "eth1 10.2.0.2/24@10000", "eth2 10.3.0.2/24@25000"},
     DDL__OTHER_HOST,
     {0, 1, 2},
     2,
     3,
     {{2, 2}, {1, 1}, {-1, 0}}},
    {"a speed that is not known stays",
     {"eth0 10.1.0.1/24", "eth1 10.2.0.1/24@100000"},
     {"eth0 10.1.0.2/24", "eth1 10.2.0.2/24"},
     DDL__OTHER_HOST,
     {0, 1},
     2,
     2,
     {{1, 1}, {0, 0}}},
    {"an address for itself alone is in no network",
     {"eth0 10.1.0.1/32"},
     {"eth0 10.1.0.2/32"},
     DDL__OTHER_HOST,
     {0},
     1,
     1,
     {{0, 0}}},
};

static void test_paths(void)
{
    for (size_t c = 0; c < sizeof PAIRINGS / sizeof *PAIRINGS; c++) {
        const pairing *m = &PAIRINGS[c];
        ddl__interface ours[6], theirs[6];
        unsigned n_ours = parse_all(m->ours, ours), n_theirs = parse_all(m->theirs, theirs);
        ddl__paths got = ddl__paths_between(ours, n_ours, theirs, n_theirs, m->where, m->route);
        CHECK(got.n == m->n && got.at_once == m->at_once, "%s: %u paths, %u at once", m->what,
              got.n, got.at_once);
        for (unsigned i = 0; i < got.n; i++)
            CHECK(got.path[i].ours == m->paths[i].ours && got.path[i].theirs == m->paths[i].theirs,
                  "%s: path %u is %d to %d", m->what, i, got.path[i].ours, got.path[i].theirs);
    }
}

int main(void)
{
    test_select();
    test_select_refused();
    test_select_extremes();
    test_select_loopback();
    test_paths();
}
