/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/addresses/neighbours.h"

#include <string.h>

enum { FIRST_USE_SIZE = 9 };

/* Return true if the address has two interfaces that may lead to other hosts. */
static bool has_several_interfaces(const ddl__address *address)
{
    const ddl__interface *first = NULL;
    for (unsigned i = 0; i < address->n_ips; i++) {
        const ddl__interface *ip = &address->ips[i];
        if (!ip->loopback && first && strcmp(first->name, ip->name) != 0)
            return true;
        if (!ip->loopback)
            first = ip;
    }
    return false;
}

bool ddl__may_share_memory(const ddl__address *one, const ddl__address *other)
{
    return one->shares_memory && other->shares_memory && one->network &&
           one->network == other->network && one->user == other->user;
}

/* Members of one host usually have consecutive ranks, so these searches are short. */
void ddl__find_places(ddl__address *addresses, int size)
{
    for (int i = 0; i < size; i++) {
        int before = i - 1;
        while (before >= 0 && !ddl__may_share_memory(&addresses[i], &addresses[before]))
            before--;
        addresses[i].place = before < 0 ? 0 : addresses[before].place + 1;
        addresses[i].sharing = addresses[i].place + 1;
    }
    for (int i = size - 2; i >= 0; i--) { /* copy the total, which the last rank of each host has */
        int after = i + 1;
        while (after < size && !ddl__may_share_memory(&addresses[i], &addresses[after]))
            after++;
        if (after < size)
            addresses[i].sharing = addresses[after].sharing;
    }
}

/* Return true if the pair must be connected early: it uses several connections, or needs one to
 * find out which kind of link it uses. */
static bool is_linked_early(const ddl__address *one, const ddl__address *other)
{
    bool is_known = one->network && other->network;
    bool may_be_same = !is_known || one->network == other->network;
    bool may_differ = !is_known || one->network != other->network;
    return (may_be_same && one->shares_memory && other->shares_memory) || one->several_sockets ||
           other->several_sockets ||
           (may_differ && has_several_interfaces(one) && has_several_interfaces(other));
}

bool ddl__are_connected_early(const ddl__address *addresses, int size, uint32_t kinds, int one,
                              int other)
{
    const ddl__address *a = &addresses[one], *b = &addresses[other];
    if (!ddl__is_sparse(size) || ddl__are_neighbours(one, other, size))
        return true;
    /* Both ranks get the same result, even if only one allows shared memory. The exchange of
     * settings reports that mismatch. */
    if (ddl__may_share_memory(a, b) && kinds & (DDL_LINK_SHM | DDL_LINK_TCP))
        return ddl__are_neighbours(a->place, b->place, a->sharing);
    return !(kinds & DDL_LINK_TCP) || is_linked_early(a, b);
}

bool ddl__first_use_is_for(int size)
{
    return size >= FIRST_USE_SIZE;
}

static int highest_bit(int n)
{
    return 1 << (31 - __builtin_clz((unsigned)n));
}

/* Each hop towards rank 0 clears the rank's highest set bit. The route from rank 0 to a rank is the
 * reverse. */
int ddl__next_hop(int from, int to)
{
    if (to == 0)
        return from ? from - highest_bit(from) : -1;
    while (to && to - highest_bit(to) != from)
        to -= highest_bit(to);
    return to ? to : -1;
}
