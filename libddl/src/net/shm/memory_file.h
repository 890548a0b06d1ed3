/* SPDX-License-Identifier: Apache-2.0 */
/* memory_file.h - unnamed files in memory (memfd) that another process can map. */
#ifndef DDL_NET_MEMORY_FILE_H
#define DDL_NET_MEMORY_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Create a file of `bytes` zero bytes whose size is sealed. Return -1 with the message set on
 * failure. */
int ddl__memory_file_create(size_t bytes);

/* Return NULL if `bytes` bytes of a peer's file can be mapped safely, else a text such as "can
 * shrink": a read beyond the end of a file that has shrunk would kill this process. */
const char *ddl__memory_file_fault(int fd, uint64_t bytes);

#endif
