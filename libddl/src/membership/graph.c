/* SPDX-License-Identifier: Apache-2.0 */
#include "membership/graph.h"

#include "base/time_limits.h"

enum { LEAST_SPARSE_SIZE = 33, NEAR = 2, ALL_AT_ONCE = 16 };

static int apart(int one, int other)
{
    return one < other ? other - one : one - other;
}

static bool is_power_of_two(int n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

bool ddl__is_sparse(int size)
{
    return size >= LEAST_SPARSE_SIZE;
}

bool ddl__are_neighbours(int one, int other, int size)
{
    int distance = apart(one, other);
    return is_power_of_two(distance) || is_power_of_two(size - distance);
}

int ddl__neighbours_most(int size)
{
    int n = 0;
    for (int distance = 1; distance < size; distance *= 2)
        n += 2;
    return n;
}

bool ddl__is_near(int one, int other, int size)
{
    int distance = apart(one, other);
    return distance <= NEAR || size - distance <= NEAR;
}

int ddl__far_beats(int size, int64_t heartbeat)
{
    if (size <= ALL_AT_ONCE)
        return 1;
    int64_t needed = (size - 1) * DDL__FAR_HEARTBEAT;
    return needed <= heartbeat ? 1 : (int)((needed + heartbeat - 1) / heartbeat);
}
