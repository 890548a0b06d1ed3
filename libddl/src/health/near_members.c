/* SPDX-License-Identifier: Apache-2.0 */
#include "health/near_members.h"

#include <stdlib.h>

#include "base/time_limits.h"

enum { NEAR = 2, ALL_AT_ONCE = 16 };

bool ddl__is_near(int one, int other, int size)
{
    int apart = abs(one - other);
    return apart <= NEAR || size - apart <= NEAR;
}

int ddl__far_beats(int size, int64_t heartbeat)
{
    if (size <= ALL_AT_ONCE)
        return 1;
    int64_t needed = (size - 1) * DDL__FAR_HEARTBEAT;
    return needed <= heartbeat ? 1 : (int)((needed + heartbeat - 1) / heartbeat);
}
