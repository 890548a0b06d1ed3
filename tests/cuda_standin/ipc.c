/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes by handle. A handle names the process and its descriptor of the memory
 * file, which the opener finds in /proc. So both must see the same /proc. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "standin.h"

#define MARK "CUDA stand-in"

typedef struct ipc_handle {
    char mark[16];
    int32_t pid, fd;
    uint64_t inode;
    uint64_t bytes;
} ipc_handle;

_Static_assert(sizeof(ipc_handle) <= sizeof(CUipcMemHandle), "the handle is too long");

/* As documented, the address is that of an allocation, and not within it. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    context *current;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    const range *r = standin_range_of((uintptr_t)address, DEVICE_ALLOCATED);
    if (!handle || !r)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    ipc_handle own = {.mark = MARK,
                      .pid = getpid(),
                      .fd = r->memory->fd,
                      .inode = r->memory->inode,
                      .bytes = r->bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &own, sizeof own);
    return standin_leave(CUDA_SUCCESS);
}

static memory *open_memory(const ipc_handle *own)
{
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", own->pid, own->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        standin_say("cuIpcOpenMemHandle: cannot open %s: %m", path);
        return NULL;
    }
    bool same = !fstat(fd, &status) && status.st_ino == own->inode &&
                (uint64_t)status.st_size >= own->bytes;
    memory *m = same ? standin_memory_open(fd) : NULL;
    if (!m)
        standin_say("cuIpcOpenMemHandle: %s is not the memory any more", path);
    close(fd);
    return m;
}

/* The range by which this context has opened the memory already, or a new one; NULL without memory.
 */
static range *open_range(memory *m, size_t bytes, context *current)
{
    range *opened = standin_range_opened(m, current);
    if (opened) {
        standin_memory_release(m);
        return opened;
    }
    if (m->device != current->device && standin_settings()->peers == PEERS_BROKEN) {
        int device = m->device;
        standin_memory_release(m);
        m = standin_memory_create(device, bytes);
    }
    uintptr_t start = m ? standin_reserve(bytes, STANDIN_PAGE, 0) : 0;
    if (m && !start)
        standin_memory_release(m);
    if (!start)
        return NULL;
    return standin_range_add(OPENED, start, bytes, m, current);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    context *current;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    ipc_handle own;
    memcpy(&own, &handle, sizeof own);
    if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
        memcmp(own.mark, MARK, sizeof MARK))
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (own.pid == getpid())
        return standin_leave(CUDA_ERROR_INVALID_CONTEXT);
    memory *m = open_memory(&own);
    if (!m)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (m->device != current->device && standin_settings()->peers == PEERS_NONE) {
        standin_memory_release(m);
        return standin_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    range *r = open_range(m, own.bytes, current);
    if (!r)
        return standin_leave(CUDA_ERROR_OUT_OF_MEMORY);
    r->opened++;
    *address = r->start;
    return standin_leave(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    context *current;
    CUresult result = standin_enter_context(__func__, &current);
    if (result != CUDA_SUCCESS)
        return result;
    range *r = standin_range_of((uintptr_t)address, OPENED);
    if (!r)
        return standin_leave(CUDA_ERROR_INVALID_VALUE);
    if (r->opened > 1) {
        r->opened--;
        return standin_leave(CUDA_SUCCESS);
    }
    return standin_leave(standin_range_free((uintptr_t)address, OPENED, CUDA_ERROR_INVALID_VALUE));
}
