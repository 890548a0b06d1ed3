/* SPDX-License-Identifier: Apache-2.0 */
/* shared_buffers.h - ranks as processes that allocate buffers with ddl_alloc. */
#ifndef DDL_TESTS_SHARED_BUFFERS_H
#define DDL_TESTS_SHARED_BUFFERS_H

#include "processes.h"

static inline char *allocate(size_t bytes)
{
    void *memory;
    OK(ddl_alloc(process_endpoint, bytes, &memory));
    return memory;
}

/* Fill in small numbers, so that no type overflows: in any order and on any path the bits are the
 * same only if nothing was added twice or left out. */
static inline void fill(char *to, size_t bytes, int rank, ddl_dtype dtype, int salt)
{
    enum { PERIOD = 1009 };
    size_t size = ddl_dtype_size(dtype), period = PERIOD * size;
    for (size_t i = 0; i < bytes / size && i < PERIOD; i++) {
        char *at = to + i * size;
        double value = (double)((i * 7 + (size_t)rank * 3 + (size_t)salt) % 5) / (1 + rank);
        float narrow = (float)value;
        if (dtype == DDL_F64 || dtype == DDL_C128)
            for (size_t k = 0; k < size; k += sizeof value)
                memcpy(at + k, &value, sizeof value);
        else if (dtype == DDL_F32 || dtype == DDL_C64)
            for (size_t k = 0; k < size; k += sizeof narrow)
                memcpy(at + k, &narrow, sizeof narrow);
        else
            for (size_t k = 0; k < size; k++)
                at[k] = (char)((i * 11 + (size_t)rank * 5 + k + (size_t)salt) % 48);
    }
    for (size_t done = period; done < bytes; done *= 2)
        memcpy(to + done, to, done < bytes - done ? done : bytes - done);
}

#endif
