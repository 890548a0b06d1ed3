/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into tests, by --wrap, so that their few ranks run like those of a sparse comm: each has
 * control connections only to the next ranks in the ring, and no link is open at first. */
#include "check.h"
#include "connect/addresses/neighbours.h"
#include "connect/wireup/first_use.h"
#include "plan/builder.h"

WRAP(bool, ddl__is_sparse, (int size))
{
    return size > 1;
}

WRAP(bool, ddl__first_use_is_for, (int size))
{
    return size > 1;
}

WRAP(bool, ddl__are_neighbours, (int one, int other, int size))
{
    return (one + 1) % size == other || (other + 1) % size == one;
}

WRAP(int, ddl__next_hop, (int from, int to))
{
    return to == from ? -1 : to < from ? from - 1 : from + 1;
}

WRAP(bool, ddl__are_connected_early,
     (const ddl__address *addresses, int size, uint32_t kinds, int one, int other))
{
    return !(kinds & (DDL_LINK_SHM | DDL_LINK_TCP)) || ddl__are_neighbours(one, other, size);
}

WRAP(bool, ddl__one_shot_beats_dissemination, (const ddl__request *request))
{
    (void)request;
    return false; /* that barrier would open all links */
}
