/* SPDX-License-Identifier: Apache-2.0 */
#include "net/shm/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/status.h"

/* Resize an empty file. Above RLIMIT_FSIZE the kernel would kill the process by SIGXFSZ, so check
 * the limit first. */
static bool memfd_resize(int fd, size_t total)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < total) {
        ddl__fail(
            DDL_ESYSTEM,
            "shared memory of %zu bytes exceeds the file size limit of %llu bytes: raise ulimit -f",
            total, (unsigned long long)limit.rlim_cur);
        return false;
    }
    if (ftruncate(fd, (off_t)total)) {
        ddl__fail(DDL_ESYSTEM, "cannot resize a memory file to %zu bytes: %s", total,
                  strerror(errno));
        return false;
    }
    return true;
}

int ddl__memory_file_create(size_t bytes)
{
    int fd = memfd_create("libddl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        ddl__fail(DDL_ESYSTEM, "cannot create a memory file (memfd_create): %s", strerror(errno));
        return -1;
    }
    if (!memfd_resize(fd, bytes)) {
        close(fd);
        return -1;
    }
    /* Seal the size, so that peers can trust it. */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

const char *ddl__memory_file_fault(int fd, uint64_t bytes)
{
    struct stat status;
    struct statfs system;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &status) || fstatfs(fd, &system) || system.f_type != TMPFS_MAGIC)
        return "is not a memory file";
    if (!(seals & F_SEAL_SHRINK))
        return "can shrink";
    return (uint64_t)status.st_size < bytes ? "is too short" : NULL;
}
