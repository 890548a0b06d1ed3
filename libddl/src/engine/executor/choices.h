/* SPDX-License-Identifier: Apache-2.0 */
/* choices.h - for each kind of operation and size class, the algorithm that was measured to be
 * fastest or read from a file. Without an entry, the predicted costs choose the algorithm. */
#ifndef DDL_ENGINE_EXECUTOR_CHOICES_H
#define DDL_ENGINE_EXECUTOR_CHOICES_H

#include <string.h>

#include "plan/plan.h"

/* A size class ranges from a power of two bytes up to the next one. */
enum { DDL__CLASSES = 48, DDL__CHOICE_KINDS = DDL__ALLTOALL + 1 };

typedef struct ddl__choices {
    uint8_t by[DDL__CHOICE_KINDS][DDL__CLASSES]; /* ddl__algorithm */
} ddl__choices;

/* Return true if the costs choose all algorithms. */
static inline bool ddl__choices_are_none(const ddl__choices *choices)
{
    static const ddl__choices none;
    return memcmp(choices, &none, sizeof none) == 0;
}

static inline int ddl__class_of(int64_t bytes)
{
    int class = 0;
    while (class + 1 < DDL__CLASSES && bytes >> (class + 1))
        class ++;
    return class;
}

#endif
