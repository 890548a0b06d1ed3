/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/topology.h"

#include <stdlib.h>
#include <string.h>

static ddl__topology *allocate(int size)
{
    ddl__topology *t = calloc(1, sizeof *t + DDL__GROUPINGS * (size_t)size * sizeof t->group[0]);
    if (t)
        t->size = size;
    else
        ddl__fail(DDL_ENOMEM, "out of memory for the topology of %d ranks", size);
    return t;
}

static int *grouping_of(ddl__topology *t, int grouping)
{
    return t->group + grouping * t->size;
}

/* ---------------------------------------------------------------------------------------- hosts */

ddl__sharing ddl__sharing_of(const unsigned char *shared, int rank, int size)
{
    ddl__sharing sharing = {.n = 0};
    for (int i = 0; i < size; i++)
        if (i == rank || shared[i]) {
            ddl__digest_add(&sharing.set, &i, sizeof i);
            sharing.n++;
        }
    return sharing;
}

static bool is_same(const ddl__sharing *one, const ddl__sharing *other)
{
    return one->n == other->n && ddl__digest_equal(one->set, other->set);
}

bool ddl__all_share(const ddl__sharing *sharing, int size)
{
    int n = 0;
    while (n < size && sharing[n].n == (uint64_t)size && is_same(&sharing[0], &sharing[n]))
        n++;
    return n == size;
}

/* Find the hosts. Each rank is a member of its own set. So if as many ranks have the same set as
 * the set has members, these ranks are its members, and each of them has opened the memory of all
 * others. */
static void find_hosts(ddl__topology *t, const ddl__sharing *sharing)
{
    int *host = grouping_of(t, DDL__HOSTS);
    for (int r = 0; r < t->size; r++)
        host[r] = -1;
    for (int r = 0; r < t->size; r++) {
        if (host[r] >= 0)
            continue;
        uint64_t alike = 0;
        for (int i = r; i < t->size; i++)
            alike += is_same(&sharing[i], &sharing[r]);
        host[r] = t->groups[DDL__HOSTS]++;
        for (int i = r + 1; i < t->size && alike == sharing[r].n; i++)
            if (is_same(&sharing[i], &sharing[r]))
                host[i] = host[r];
    }
}

/* ---------------------------------------------------------------------------- racks and aisles */

/* Parse a positive number and advance *at past it. Return 0 if there is none. */
static int number(const char **at)
{
    int n = 0;
    while (**at >= '0' && **at <= '9' && n <= 1 << 20)
        n = n * 10 + (*(*at)++ - '0');
    return n > 1 << 20 ? 0 : n;
}

/* Set the racks and aisles of the hosts, in the order of their numbers. Return the number of
 * described hosts, including hosts that do not exist, or -1 if the text is malformed. */
static int64_t read_racks(ddl__topology *t, const char *text, int *rack, int *aisle)
{
    int64_t host = 0;
    int racks = 0, aisles = 1;
    for (const char *at = text;;) {
        int hosts = number(&at), times = 1;
        if (*at == 'x') {
            at++;
            times = number(&at);
        }
        if (!hosts || !times)
            return -1;
        for (int i = 0; i < times; i++, racks++)
            for (int h = 0; h < hosts; h++, host++)
                if (host < t->groups[DDL__HOSTS]) {
                    rack[host] = racks;
                    aisle[host] = aisles - 1;
                }
        if (!*at || *at == '@')
            break;
        if (*at != ',' && *at != ';')
            return -1;
        aisles += *at++ == ';';
    }
    t->groups[DDL__RACKS] = racks;
    t->groups[DDL__AISLES] = aisles;
    return host;
}

/* Parse a positive number such as "0.5", whatever the locale. Return 0 if there is none. */
static double quantity(const char **at)
{
    double value = 0, unit = 1;
    for (int digits = 0; **at >= '0' && **at <= '9' && digits < 9; digits++)
        value = value * 10 + (*(*at)++ - '0');
    *at += **at == '.';
    for (; (*at)[-1] != ':' && **at >= '0' && **at <= '9' && unit > 1e-9; unit /= 10)
        value += (*(*at)++ - '0') * unit / 10;
    return value;
}

/* Parse the wires after the "@" of a description, if it has one. Returns false if they are
 * malformed. */
static bool read_wires(ddl__topology *t, const char *text)
{
    const char *at = strchr(text, '@');
    for (int level = 0; at && level < DDL__GROUPINGS; level++) {
        at++;
        double us = quantity(&at);
        if (*at++ != ':')
            return false;
        double gbits = quantity(&at);
        t->wires[level] = (ddl__speed){us * 1e-6, gbits * 1e9 / 8};
        if (us <= 0 || gbits <= 0)
            return false;
        if (!*at)
            return true;
        if (*at != ',')
            return false;
    }
    return !at;
}

static ddl_status group_hosts(ddl__topology *t, const char *description, bool is_part)
{
    int hosts = t->groups[DDL__HOSTS];
    t->groups[DDL__RACKS] = t->groups[DDL__AISLES] = 1;
    if (!description || !*description)
        return DDL_OK;
    if (!read_wires(t, description))
        return ddl__fail(
            DDL_EINVAL,
            "DDL_TOPOLOGY=\"%s\": after @, a list of up to 3 wires must follow, such as "
            "\"30:10\" for 30 us and 10 Gbit/s",
            description);
    if (*description == '@')
        return DDL_OK;
    int *racks = calloc(2 * (size_t)hosts, sizeof *racks), *aisles = racks + hosts;
    if (!racks)
        return ddl__fail(DDL_ENOMEM, "out of memory for the topology of %d hosts", hosts);
    int64_t described = read_racks(t, description, racks, aisles);
    bool unknown = is_part && described > hosts;
    for (int r = 0; r < t->size && described == hosts; r++) {
        int host = grouping_of(t, DDL__HOSTS)[r];
        grouping_of(t, DDL__RACKS)[r] = racks[host];
        grouping_of(t, DDL__AISLES)[r] = aisles[host];
    }
    free(racks);
    if (described < 0)
        return ddl__fail(DDL_EINVAL,
                         "DDL_TOPOLOGY=\"%s\" is not a list of hosts per rack, such as \"2,2\" or "
                         "\"4x8;4x8\"",
                         description);
    if (unknown)
        t->groups[DDL__RACKS] = t->groups[DDL__AISLES] = 1;
    else if (described != hosts)
        return ddl__fail(DDL_EINVAL,
                         "DDL_TOPOLOGY=\"%s\" describes %lld hosts, but the %d ranks are on %d",
                         description, (long long)described, t->size, hosts);
    return DDL_OK;
}

/* ------------------------------------------------------------------------------------------ all */

ddl_status ddl__topology_create(const ddl__sharing *sharing, int size, const char *description,
                                bool is_part, ddl__topology **topology)
{
    ddl__topology *t = allocate(size);
    if (!t)
        return DDL_ENOMEM;
    find_hosts(t, sharing);
    ddl_status status = group_hosts(t, description, is_part);
    if (status == DDL_OK)
        *topology = t;
    else
        ddl__topology_destroy(t);
    return status;
}

ddl_status ddl__topology_declare(const int dimensions[DDL__DIMENSIONS], ddl__topology **topology)
{
    int size = 1;
    for (int d = 0; d < DDL__DIMENSIONS; d++)
        size *= dimensions[d];
    ddl__topology *t = allocate(size);
    if (!t)
        return DDL_ENOMEM;
    t->declared = true;
    for (int g = 0, each = 1; g < DDL__GROUPINGS; g++) {
        each *= dimensions[g];
        t->groups[g] = size / each;
        for (int r = 0; r < size; r++)
            grouping_of(t, g)[r] = r / each;
    }
    *topology = t;
    return DDL_OK;
}

/* Return the number of cores on which any rank of a machine may run. */
static double cores_for(const ddl__topology *t, const ddl__location *locations, uint64_t machine)
{
    uint64_t cores = 0, all = 0;
    for (int r = 0; r < t->size; r++) {
        if (locations[r].machine != machine)
            continue;
        bool counted = false;
        for (int q = 0; q < r && !counted; q++)
            counted = locations[q].machine == machine && locations[q].mask == locations[r].mask;
        all = locations[r].cores ? locations[r].cores : all;
        cores += counted ? 0 : locations[r].own;
        if (!locations[r].own)
            return (double)all;
    }
    return (double)(all && all < cores ? all : cores);
}

static void count_machines(ddl__topology *t, const ddl__location *locations)
{
    t->machines = 0;
    t->oversubscription = 0;
    for (int r = 0; r < t->size; r++) {
        int before = 0, ranks = 0;
        for (int q = 0; q < t->size; q++) {
            ranks += locations[q].machine == locations[r].machine;
            before += q < r && locations[q].machine == locations[r].machine;
        }
        if (before)
            continue;
        double cores = cores_for(t, locations, locations[r].machine);
        double oversubscription = cores > 0 ? ranks / cores : 1;
        t->machines++;
        t->oversubscription =
            oversubscription > t->oversubscription ? oversubscription : t->oversubscription;
    }
}

static bool is_known(const ddl__topology *t, const ddl__location *locations, int host)
{
    for (int r = 0; r < t->size; r++)
        if (t->group[r] == host && !locations[r].node)
            return false;
    return true;
}

/* Number the nodes, unless every node is a whole host or every node has one rank. */
static ddl_status find_nodes(ddl__topology *t, const ddl__location *locations)
{
    t->nodes = 0;
    t->node = malloc((size_t)t->size * sizeof *t->node);
    if (!t->node)
        return ddl__fail(DDL_ENOMEM, "out of memory for the nodes of %d ranks", t->size);
    for (int r = 0; r < t->size; r++) {
        bool known = is_known(t, locations, t->group[r]);
        int q = 0;
        while (q < r &&
               (t->group[q] != t->group[r] || (known && locations[q].node != locations[r].node)))
            q++;
        t->node[r] = q < r ? t->node[q] : t->nodes++;
    }
    if (t->nodes == t->groups[DDL__HOSTS] || t->nodes == t->size) {
        free(t->node);
        t->node = NULL;
        t->nodes = 0;
    }
    return DDL_OK;
}

ddl_status ddl__topology_locate(ddl__topology *t, const ddl__location *locations)
{
    count_machines(t, locations);
    return t->declared ? DDL_OK : find_nodes(t, locations);
}

void ddl__topology_destroy(ddl__topology *topology)
{
    if (topology)
        free(topology->node);
    free(topology);
}

bool ddl__topology_is_hierarchical(const ddl__topology *t)
{
    int hosts = t->groups[DDL__HOSTS], racks = t->groups[DDL__RACKS];
    int aisles = t->groups[DDL__AISLES];
    return (hosts > 1 && hosts < t->size) || (racks > 1 && racks < hosts) ||
           (aisles > 1 && aisles < racks);
}
