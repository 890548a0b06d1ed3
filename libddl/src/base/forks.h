/* SPDX-License-Identifier: Apache-2.0 */
/* forks.h - what a forked child does not share with its parent. It closes our descriptors:
 * otherwise the children of a process, such as data loader workers, would keep its connections open
 * after its end. It gets a copy of memory that peers share. It cannot use the objects that it
 * inherits. */
#ifndef DDL_BASE_FORKS_H
#define DDL_BASE_FORKS_H

#include <stdbool.h>
#include <stddef.h>

/* Close this descriptor in every child that is forked before ddl__close_guarded. Returns fd, which
 * may be negative. */
int ddl__guard(int fd);

/* Close a descriptor here; a negative one is ignored. */
void ddl__close_guarded(int fd);

/* Every child that is forked before ddl__unguard_memory gets a copy (fork_copies.h) of `bytes`
 * whole pages at `memory`, a shared mapping of all of file `fd`. False when out of memory. */
bool ddl__guard_memory(void *memory, size_t bytes, int fd);

/* Before the memory is unmapped. Nothing happens if it is not guarded. */
void ddl__unguard_memory(const void *memory);

/* The number of forks between the first process and this one. An object stores it when it is
 * created. */
unsigned ddl__generation(void);

#endif
