/* SPDX-License-Identifier: Apache-2.0 */
/* fork_copies.h - gives forked children private copies of memory that is shared with other
 * processes.
 *
 * The kernel would give the child either the memory itself, which the parent's peers read and
 * write, or a hole, which the child's next mapping might fill. So the child inherits the memory and
 * replaces it by a copy before fork returns. All pages that were ever written are copied before the
 * fork. The copy may or may not contain data that other threads and peers write at the same time. A
 * child of vfork or posix_spawn, which only runs another program, costs nothing.
 *
 * The fork handlers (forks.c) call these functions. The handler in the child makes only system
 * calls, because at the time of the fork other threads may have held any lock. */
#ifndef DDL_BASE_FORK_COPIES_H
#define DDL_BASE_FORK_COPIES_H

#include <stddef.h>

/* A shared mapping of a whole memory file. */
typedef struct ddl__original {
    void *memory;
    size_t bytes; /* whole pages */
    int fd;
    char *copy; /* the copy during a fork, or NULL if there is none */
} ddl__original;

/* Copy the memory. Called before fork. Logs a warning if there is no memory for a copy. */
void ddl__original_copy(ddl__original *original);

/* Drop the copy. Called in the parent. */
void ddl__original_drop_copy(ddl__original *original);

/* Replace the memory by its copy. Called in the child. Without a copy the memory becomes
 * inaccessible. */
void ddl__original_replace(const ddl__original *original);

#endif
