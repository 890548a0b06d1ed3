/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/interfaces.h"

#include <arpa/inet.h>
#include <string.h>

enum { SLOWER = 8 /* an interface that is this many times slower is not used */ };

/* ------------------------------------------------------------------------------------ addresses */

/* Return true if two addresses of one family agree in their first bits. */
static bool agree(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    unsigned whole = bits / 8, rest = bits % 8;
    if (memcmp(a, b, whole) != 0)
        return false;
    return !rest || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

static unsigned width(const ddl__interface *i)
{
    return i->family == 4 ? 32 : 128;
}

static bool equal(const ddl__interface *a, const ddl__interface *b)
{
    return a->family == b->family && agree(a->bytes, b->bytes, width(a));
}

static bool same_network(const ddl__interface *a, const ddl__interface *b)
{
    return a->family == b->family && a->prefix == b->prefix && a->prefix < width(a) &&
           agree(a->bytes, b->bytes, a->prefix);
}

/* --------------------------------------------------------------------------------------- filter */

/* Parse "1.2.3.4/24" or "::1" as an address with its prefix. Returns false if it is something
 * else. */
static bool read_network(const char *item, size_t n, ddl__interface *to)
{
    char text[INET6_ADDRSTRLEN];
    const char *slash = memchr(item, '/', n);
    size_t length = slash ? (size_t)(slash - item) : n;
    if (length >= sizeof text)
        return false;
    memcpy(text, item, length);
    text[length] = 0;
    to->family = strchr(text, ':') ? 6 : 4;
    if (inet_pton(to->family == 4 ? AF_INET : AF_INET6, text, to->bytes) != 1)
        return false;
    unsigned bits = slash ? 0 : width(to);
    if (slash && length + 1 == n)
        return false;
    for (size_t i = length + 1; i < n; i++) {
        if (item[i] < '0' || item[i] > '9' || bits > width(to))
            return false;
        bits = 10 * bits + (unsigned)(item[i] - '0');
    }
    to->prefix = (uint8_t)bits;
    return bits <= width(to);
}

/* Return true if an item, without its "^", matches this address. */
static bool names(const char *item, size_t n, const ddl__interface *i)
{
    ddl__interface network;
    if (read_network(item, n, &network))
        return network.family == i->family && agree(network.bytes, i->bytes, network.prefix);
    return n <= strlen(i->name) && !strncmp(item, i->name, n);
}

static ddl_status check_item(const char *filter, const char *item, size_t n)
{
    ddl__interface network;
    bool is_address = memchr(item, '/', n) || memchr(item, ':', n);
    if (!n || (is_address && !read_network(item, n, &network)))
        return ddl__fail(DDL_EINVAL,
                         "interfaces \"%s\": \"%.*s\" is neither an interface's name nor a network "
                         "such as 10.1.0.0/16",
                         filter, (int)n, item);
    return DDL_OK;
}

/* Return true if no "^" item matches this address, and if there are other items, one of them does.
 * *named is true if an item without "^" matches. */
static bool passes(const char *filter, const ddl__interface *i, bool *named)
{
    bool any = false;
    *named = false;
    for (const char *at = filter; *at;) {
        bool out = *at == '^';
        at += out;
        size_t n = strcspn(at, ",");
        bool hit = names(at, n, i);
        if (out && hit)
            return false;
        any = any || !out;
        *named = *named || hit;
        at += n + (at[n] == ',');
    }
    return *named || !any;
}

/* Return true for a network inside this host (Docker, libvirt, LXC), whose addresses other hosts
 * use as well, and for 169.254.0.0/16, which for example connects a server to its management
 * controller. */
static bool is_inner(const ddl__interface *i)
{
    static const char *const bridges[] = {"docker", "podman", "cni-podman", "virbr", "lxcbr"};
    for (size_t k = 0; k < sizeof bridges / sizeof *bridges; k++)
        if (!strncmp(i->name, bridges[k], strlen(bridges[k])))
            return true;
    return i->family == 4 && i->bytes[0] == 169 && i->bytes[1] == 254;
}

void ddl__interface_ip(const ddl__interface *i, char ip[DDL__IP_TEXT])
{
    _Static_assert(DDL__IP_TEXT == INET6_ADDRSTRLEN, "of the longest address");
    inet_ntop(i->family == 4 ? AF_INET : AF_INET6, i->bytes, ip, DDL__IP_TEXT);
}

void ddl__interfaces_list(const ddl__interface *all, unsigned n, char *text, size_t size)
{
    text[0] = 0;
    for (unsigned i = 0; i < n; i++) {
        char ip[DDL__IP_TEXT];
        ddl__interface_ip(&all[i], ip);
        size_t used = strlen(text);
        if (used + strlen(all[i].name) + strlen(ip) + 4 > size)
            return;
        strcat(text, used ? ", " : "");
        strcat(text, all[i].name);
        strcat(text, " ");
        strcat(text, ip);
    }
}

/* ------------------------------------------------------------------------------------ selection */

/* Sort stably by `order`, the lowest value first. */
static void sort(ddl__interface *all, unsigned *order, unsigned n)
{
    for (unsigned i = 1; i < n; i++)
        for (unsigned j = i; j > 0 && order[j - 1] > order[j]; j--) {
            ddl__interface other = all[j];
            unsigned its_order = order[j];
            all[j] = all[j - 1];
            order[j] = order[j - 1];
            all[j - 1] = other;
            order[j - 1] = its_order;
        }
}

/* Sort the first address of each interface and family to the front, and loopback addresses, which
 * mean another host there, to the end. */
static void sort_by_use(ddl__interface *all, unsigned n)
{
    unsigned order[DDL__ADDRESSES_MAX];
    for (unsigned i = 0; i < n; i++) {
        bool is_second = false;
        for (unsigned j = 0; j < i; j++)
            is_second =
                is_second || (all[j].family == all[i].family && !strcmp(all[j].name, all[i].name));
        order[i] = 4 * all[i].loopback + 2 * is_second + (all[i].family == 6);
    }
    sort(all, order, n);
}

bool ddl__interface_leads_out(const ddl__interface *i)
{
    static const uint8_t self[16] = {[15] = 1}; /* ::1 */
    return !i->loopback || (i->family == 4 ? i->bytes[0] != 127 : memcmp(i->bytes, self, 16) != 0);
}

ddl_status ddl__interfaces_select(ddl__interface *all, unsigned *n, const char *filter)
{
    unsigned kept = 0, outer = 0;
    filter = filter ? filter : "";
    for (const char *at = filter; *at;) {
        at += *at == '^';
        size_t length = strcspn(at, ",");
        ddl_status status = check_item(filter, at, length);
        if (status != DDL_OK)
            return status;
        at += length + (at[length] == ',');
    }
    char there[300];
    ddl__interfaces_list(all, *n, there, sizeof there);
    for (unsigned i = 0; i < *n; i++)
        outer += !is_inner(&all[i]) && !all[i].loopback;
    for (unsigned i = 0; i < *n; i++) {
        bool named, wanted = passes(filter, &all[i], &named);
        if (!wanted || (!named && outer && is_inner(&all[i])))
            continue;
        all[kept] = all[i];
        if (named) /* useful, for example, if each host has an address of its own that is routed to
                      it */
            all[kept].loopback = !ddl__interface_leads_out(&all[i]);
        kept++;
    }
    sort_by_use(all, kept);
    if (!kept && *filter)
        return ddl__fail(DDL_EINVAL, "no network interface matches \"%s\"; this host has %s",
                         filter, there);
    *n = kept < DDL__INTERFACES_MAX ? kept : DDL__INTERFACES_MAX;
    return DDL_OK;
}

/* ---------------------------------------------------------------------------------------- paths */

typedef struct search {
    const ddl__interface *ours, *theirs;
    unsigned n_ours, n_theirs;
    ddl__paths *found;
} search;

static void add(search *s, int ours, int theirs)
{
    s->found->path[s->found->n++] = (ddl__path){(int8_t)ours, (int8_t)theirs};
}

/* Return true if the interface on either side already has a path, possibly by its other address. */
static bool is_taken(const search *s, const ddl__interface *ours, const ddl__interface *theirs)
{
    for (unsigned i = 0; i < s->found->n; i++) {
        ddl__path p = s->found->path[i];
        if (!strcmp(s->ours[p.ours].name, ours->name) ||
            !strcmp(s->theirs[p.theirs].name, theirs->name))
            return true;
    }
    return false;
}

/* Return true if the address leads to another host: this host does not have it. */
static bool leads_away(const search *s, const ddl__interface *theirs)
{
    for (unsigned i = 0; i < s->n_ours; i++)
        if (equal(&s->ours[i], theirs))
            return false;
    return !theirs->loopback;
}

static void add_neighbours(search *s)
{
    for (unsigned i = 0; i < s->n_ours; i++)
        for (unsigned j = 0; j < s->n_theirs; j++)
            if (!s->ours[i].loopback && leads_away(s, &s->theirs[j]) &&
                same_network(&s->ours[i], &s->theirs[j]) &&
                !is_taken(s, &s->ours[i], &s->theirs[j]))
                add(s, (int)i, (int)j);
}

static void add_routed(search *s, const int8_t *route)
{
    for (unsigned j = 0; j < s->n_theirs; j++)
        if (route[j] >= 0 && !s->ours[route[j]].loopback && leads_away(s, &s->theirs[j]) &&
            s->ours[route[j]].family == s->theirs[j].family &&
            !is_taken(s, &s->ours[route[j]], &s->theirs[j]))
            add(s, route[j], (int)j);
}

/* Return the speed of a path; 0 if it is unknown. */
static uint32_t speed_of(const search *s, ddl__path p)
{
    uint32_t a = s->ours[p.ours].speed, b = s->theirs[p.theirs].speed;
    return !a || (b && b < a) ? b : a;
}

/* Sort the paths, the fastest first, and drop paths that are much slower. */
static void drop_slow(search *s)
{
    ddl__paths *found = s->found;
    uint32_t fastest = 0;
    unsigned first = 0, kept = 0;
    for (unsigned i = 0; i < found->n; i++)
        if (speed_of(s, found->path[i]) > fastest) {
            fastest = speed_of(s, found->path[i]);
            first = i;
        }
    if (found->n) {
        ddl__path front = found->path[first];
        memmove(found->path + 1, found->path, first * sizeof *found->path);
        found->path[0] = front;
    }
    for (unsigned i = 0; i < found->n; i++) {
        uint32_t speed = speed_of(s, found->path[i]);
        if (!speed || speed >= fastest / SLOWER)
            found->path[kept++] = found->path[i];
    }
    found->n = kept;
}

static bool is_reached(const ddl__paths *paths, unsigned n, unsigned theirs)
{
    for (unsigned i = 0; i < n; i++)
        if (paths->path[i].theirs == (int)theirs)
            return true;
    return false;
}

ddl__paths ddl__paths_between(const ddl__interface *ours, unsigned n_ours,
                              const ddl__interface *theirs, unsigned n_theirs, ddl__where where,
                              const int8_t *route)
{
    ddl__paths found = {0};
    search s = {ours, theirs, n_ours, n_theirs, &found};
    if (where != DDL__SAME_HOST) {
        add_neighbours(&s);
        if (!found.n)
            add_routed(&s, route);
        drop_slow(&s);
    }
    unsigned chosen = found.n;
    for (unsigned j = 0; j < n_theirs; j++)
        if (!is_reached(&found, chosen, j) &&
            (where != DDL__OTHER_HOST || leads_away(&s, &theirs[j])))
            add(&s, -1, (int)j);
    found.at_once = chosen ? chosen : found.n > 0;
    return found;
}
