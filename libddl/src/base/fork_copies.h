/* SPDX-License-Identifier: Apache-2.0 */
/* fork_copies.h - memory that is shared with other processes, of which a forked child gets a
 * private copy as of the moment of the fork.
 *
 * The kernel would give the child the memory itself, which its parent's peers read and write, or
 * nothing: a hole, which the child's next mapping might fill. So the child inherits the memory, and
 * puts a copy in its place before fork returns. Fork first copies the pages that were ever written
 * to. What other threads and peers write meanwhile may be in the copy or not. A child of vfork or
 * posix_spawn, which only runs another program, costs nothing.
 *
 * The calls are those of the handlers of fork (forks.c). The one in the child only makes system
 * calls, since other threads may have held any lock at the fork. */
#ifndef DDL_BASE_FORK_COPIES_H
#define DDL_BASE_FORK_COPIES_H

#include <stddef.h>

/* A shared mapping of a whole memory file. */
typedef struct ddl__original {
    void *memory;
    size_t bytes; /* whole pages */
    int fd;
    char *copy; /* during a fork; NULL: none */
} ddl__original;

/* Before fork. Without memory for a copy there is a warning. */
void ddl__original_copy(ddl__original *original);

/* In the parent. */
void ddl__original_drop_copy(ddl__original *original);

/* In the child. Without a copy nothing can be read or written there. */
void ddl__original_replace(const ddl__original *original);

#endif
