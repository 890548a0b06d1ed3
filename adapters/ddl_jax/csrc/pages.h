/* SPDX-License-Identifier: Apache-2.0 */
/* pages.h - the memory of large results.
 *
 * XLA allocates new results for every call. The first touch of small pages costs more than the
 * collective that fills them, so large pages are requested, as NumPy does for its arrays. This is
 * advice: memory that already has pages does not change. */
#ifndef DDL_JAX_PAGES_H
#define DDL_JAX_PAGES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

static inline void expect_large_pages(void *memory, size_t bytes)
{
    enum { PAGE = 2 << 20, LEAST = 4 << 20 };
    if (bytes < LEAST)
        return;
    uintptr_t begin = ((uintptr_t)memory + PAGE - 1) / PAGE * PAGE;
    uintptr_t end = ((uintptr_t)memory + bytes) / PAGE * PAGE;
    (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

#endif
