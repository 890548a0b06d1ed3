/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h - 128-bit digests that distinguish objects. They are not secure against an adversary. */
#ifndef DDL_BASE_DIGEST_H
#define DDL_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ddl__digest {
    uint64_t words[2];
} ddl__digest;

/* Add bytes, and their number, to a digest. A digest starts as {{0, 0}}. */
void ddl__digest_add(ddl__digest *digest, const void *bytes, size_t n);

static inline bool ddl__digest_equal(ddl__digest a, ddl__digest b)
{
    return ((a.words[0] ^ b.words[0]) | (a.words[1] ^ b.words[1])) == 0;
}

#endif
