/* SPDX-License-Identifier: Apache-2.0 */
/* hold.h - ties an operation to a device that copies its buffers: the operation starts when they
 * are there, and a word tells the device when it has ended. */
#ifndef DDL_ENGINE_CALLS_HOLD_H
#define DDL_ENGINE_CALLS_HOLD_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ddl__hold {
    atomic_bool ready;
    atomic_uint *word; /* gets `value` when the operation has ended, or failed */
    uint32_t value;
    sem_t *told; /* is posted then; or NULL. It outlives the hold */
} ddl__hold;

/* The driver looks at it after it has announced its sleep, and whoever sets it looks for a sleeping
 * driver afterwards. So both are sequentially consistent. */
static inline bool ddl__hold_is_ready(const ddl__hold *hold)
{
    return atomic_load_explicit(&hold->ready, memory_order_seq_cst);
}

/* Its buffers are written by now. The hold may be gone when the word is set. */
static inline void ddl__hold_end(const ddl__hold *hold)
{
    sem_t *told = hold->told;
    atomic_store_explicit(hold->word, hold->value, memory_order_release);
    if (told)
        sem_post(told);
}

#endif
