/* SPDX-License-Identifier: Apache-2.0 */
/* memory_file.h - unnamed files in memory (memfd) that another process can map. */
#ifndef DDL_NET_MEMORY_FILE_H
#define DDL_NET_MEMORY_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Create a file of `bytes` zero bytes whose size is sealed. Return -1 with the message set on
 * failure. */
int ddl__memory_file_create(size_t bytes);

/* Return why a file from a peer must not be mapped over `bytes` bytes, for example "can shrink",
 * which would kill a process that reads it. Return NULL if it is fine. */
const char *ddl__memory_file_fault(int fd, uint64_t bytes);

#endif
