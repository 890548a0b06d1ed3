/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fork_copies.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

/* Copy only the parts of the file that have pages, because all other parts are zero. */
static bool copy_data(const ddl__original *o)
{
    off_t at = 0, end = 0, whole = (off_t)o->bytes;
    while (at < whole && (at = lseek(o->fd, at, SEEK_DATA)) >= 0) {
        end = lseek(o->fd, at, SEEK_HOLE);
        for (ssize_t got; at < end && at < whole; at += got) {
            got = pread(o->fd, o->copy + at, (size_t)(whole < end ? whole - at : end - at), at);
            if (got <= 0)
                return false;
        }
    }
    return at >= 0 || errno == ENXIO; /* ENXIO means that no more data follows */
}

void ddl__original_copy(ddl__original *original)
{
    original->copy = mmap(NULL, original->bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (original->copy == MAP_FAILED)
        original->copy = NULL;
    if (original->copy && copy_data(original))
        return;
    ddl__log(DDL__WARN,
             "cannot copy %zu bytes of ddl_alloc for a forked child, which must not touch them: %s",
             original->bytes, strerror(errno));
    ddl__original_drop_copy(original);
}

void ddl__original_drop_copy(ddl__original *original)
{
    if (original->copy)
        munmap(original->copy, original->bytes);
    original->copy = NULL;
}

/* Replace the original by its copy. This uses the system call, because UCX replaces mremap() by a
 * function that ignores the new address. */
void ddl__original_replace(const ddl__original *original)
{
    size_t bytes = original->bytes;
    if (!original->copy || syscall(SYS_mremap, original->copy, bytes, bytes,
                                   MREMAP_MAYMOVE | MREMAP_FIXED, original->memory) < 0)
        mprotect(original->memory, bytes, PROT_NONE);
}
