/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"

/* Permute 64 bits with full avalanche. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

void ddl__digest_add(ddl__digest *digest, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    uint64_t a = mix(digest->words[0] + n + 1), b = mix(digest->words[1] ^ ~a);
    for (size_t i = 0; i < n; i++) {
        a = mix(a + at[i] + 0x9e3779b97f4a7c15u);
        b = mix(b ^ (at[i] + a));
    }
    digest->words[0] = a;
    digest->words[1] = b;
}
