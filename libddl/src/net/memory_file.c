#include "net/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/status.h"

/* Resize an empty file. Above RLIMIT_FSIZE the kernel would end the process by SIGXFSZ, unless that
 * is handled. */
static bool memfd_resize(int fd, size_t total)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < total) {
        ddl__fail(DDL_ESYSTEM,
                  "shared memory of %zu bytes is a file, and files may have %llu bytes here: raise "
                  "ulimit -f",
                  total, (unsigned long long)limit.rlim_cur);
        return false;
    }
    if (ftruncate(fd, (off_t)total)) {
        ddl__fail(DDL_ESYSTEM, "memfd of %zu bytes: %s", total, strerror(errno));
        return false;
    }
    return true;
}

int ddl__memory_file_create(size_t bytes)
{
    int fd = memfd_create("libddl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        ddl__fail(DDL_ESYSTEM, "no memory file (memfd_create): %s", strerror(errno));
        return -1;
    }
    if (!memfd_resize(fd, bytes)) {
        close(fd);
        return -1;
    }
    /* Peers must be able to trust the size. */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

bool ddl__memory_file_is_sealed(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && seals & F_SEAL_SHRINK;
}
