/* SPDX-License-Identifier: Apache-2.0 */
/* memory_file.h - unnamed files in memory (memfd) that another process can map. */
#ifndef DDL_NET_MEMORY_FILE_H
#define DDL_NET_MEMORY_FILE_H

#include <stddef.h>
#include <stdint.h>

/* A file of so many zero bytes, sealed: nobody can change its size. -1 with the message set. */
int ddl__memory_file_create(size_t bytes);

/* What is wrong with a file that a peer gave, of which so many bytes are to be mapped: "can
 * shrink", say, which would end a process that reads it. NULL if nothing is. */
const char *ddl__memory_file_fault(int fd, uint64_t bytes);

#endif
