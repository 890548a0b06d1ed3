/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into tests, by --wrap, so that their few ranks run as those of a sparse comm do: each has
 * control connections to the next ranks in the ring only, and no link is open at first. */
#include "connect/first_use.h"
#include "connect/neighbours.h"

bool __wrap_ddl__is_sparse(int size);
bool __wrap_ddl__is_sparse(int size)
{
    return size > 1;
}

bool __wrap_ddl__first_use_is_for(int size);
bool __wrap_ddl__first_use_is_for(int size)
{
    return size > 1;
}

bool __wrap_ddl__are_neighbours(int one, int other, int size);
bool __wrap_ddl__are_neighbours(int one, int other, int size)
{
    return (one + 1) % size == other || (other + 1) % size == one;
}

int __wrap_ddl__next_hop(int from, int to);
int __wrap_ddl__next_hop(int from, int to)
{
    return to == from ? -1 : to < from ? from - 1 : from + 1;
}

/* Without TCP all pairs are. */
bool __wrap_ddl__is_linked_early(const ddl__address *one, const ddl__address *other);
bool __wrap_ddl__is_linked_early(const ddl__address *one, const ddl__address *other)
{
    (void)one;
    (void)other;
    return false;
}
