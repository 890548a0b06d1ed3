/* memory_file.h - unnamed files in memory (memfd) that another process can map. */
#ifndef DDL_NET_MEMORY_FILE_H
#define DDL_NET_MEMORY_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* A file of so many zero bytes, sealed: nobody can change its size. -1 with the message set. */
int ddl__memory_file_create(size_t bytes);

/* Whether the file cannot shrink: reading a mapping of one that can may end this process. */
bool ddl__memory_file_is_sealed(int fd);

#endif
