/* SPDX-License-Identifier: Apache-2.0 */
/* forks.h - separates a forked child from its parent. The child closes the library's descriptors:
 * otherwise the children of a process, such as data loader workers, would keep its connections open
 * after its exit. The child gets a copy of memory that peers share. It cannot use the library
 * objects that it inherits. */
#ifndef DDL_BASE_FORKS_H
#define DDL_BASE_FORKS_H

#include <stdbool.h>
#include <stddef.h>

/* Close this descriptor in every child that is forked before ddl__close_guarded. Return fd, which
 * may be negative. */
int ddl__guard(int fd);

/* Close a guarded descriptor; a negative one is ignored. */
void ddl__close_guarded(int fd);

/* Give a copy of this memory (fork_copies.h) to every child that is forked before
 * ddl__unguard_memory. `memory` is a shared mapping of the whole file `fd`; `bytes` is a multiple
 * of the page size. Return false if out of memory. */
bool ddl__guard_memory(void *memory, size_t bytes, int fd);

/* Stop guarding the memory, before it is unmapped. Does nothing if it is not guarded. */
void ddl__unguard_memory(const void *memory);

/* Return the number of forks between the first process and this one. An object stores it when it is
 * created. */
unsigned ddl__generation(void);

#endif
