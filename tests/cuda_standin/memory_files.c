/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files in place of device memory. The name of a file says which device it is, also to
 * another process that got its descriptor. The stand-in maps a file once in each process, however
 * often the program has mapped it. So ThreadSanitizer sees all accesses at the same addresses. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "standin.h"

#define FILE_NAME "cuda-standin-device-"

static memory *memories;

/* Map the file, and keep the descriptor. On failure the descriptor is closed. */
static memory *memory_map(int fd, int device)
{
    struct stat status;
    memory *m = calloc(1, sizeof *m);
    if (!m || fstat(fd, &status))
        goto failed;
    *m = (memory){.fd = fd,
                  .file_device = status.st_dev,
                  .inode = status.st_ino,
                  .bytes = (size_t)status.st_size,
                  .device = device,
                  .references = 1};
    m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m->base == MAP_FAILED)
        goto failed;
    m->next = memories;
    return memories = m;
failed:
    close(fd);
    free(m);
    return NULL;
}

memory *standin_memory_create(int device, size_t bytes)
{
    char name[sizeof FILE_NAME + 16];
    snprintf(name, sizeof name, FILE_NAME "%d", device);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return NULL;
    size_t pages = (bytes + STANDIN_PAGE - 1) / STANDIN_PAGE;
    if (ftruncate(fd, (off_t)(pages * STANDIN_PAGE))) {
        close(fd);
        return NULL;
    }
    /* No process can make it shorter than a mapping. */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    return memory_map(fd, device);
}

/* The device of a stand-in's memory file, or -1. */
static int file_device(int fd)
{
    char link[64], name[128];
    int device;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    name[length < 0 ? 0 : length] = 0;
    return sscanf(name, "/memfd:" FILE_NAME "%d", &device) == 1 ? device : -1;
}

memory *standin_memory_open(int fd)
{
    struct stat status;
    if (fstat(fd, &status))
        return NULL;
    for (memory *m = memories; m; m = m->next)
        if (m->fd >= 0 && m->file_device == status.st_dev && m->inode == status.st_ino) {
            standin_memory_retain(m);
            return m;
        }
    int device = file_device(fd);
    if (device < 0 || device >= standin_settings()->devices)
        return NULL;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return copy < 0 ? NULL : memory_map(copy, device);
}

memory *standin_memory_host(void *base, size_t bytes, int device, void *owned)
{
    memory *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    *m = (memory){.next = memories,
                  .fd = -1,
                  .base = base,
                  .bytes = bytes,
                  .device = device,
                  .references = 1,
                  .owned = owned};
    return memories = m;
}

memory *standin_memory_of_handle(CUmemGenericAllocationHandle handle)
{
    memory *m = memories;
    while (m && (!m->handles || (uintptr_t)m != handle))
        m = m->next;
    return m;
}

void standin_memory_retain(memory *m)
{
    m->references++;
}

void standin_memory_release(memory *m)
{
    if (--m->references)
        return;
    memory **link = &memories;
    while (*link != m)
        link = &(*link)->next;
    *link = m->next;
    if (m->fd >= 0) {
        munmap(m->base, m->bytes);
        close(m->fd);
    }
    free(m->owned);
    free(m);
}
