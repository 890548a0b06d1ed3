/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the stand-in that two processes share. The child is forked before either process calls
 * the stand-in. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "test_standin.h"

enum { UNIT = 2 << 20 };

static void send_bytes(int socket, const void *bytes, size_t n)
{
    CHECK(write(socket, bytes, n) == (ssize_t)n, "write: %m");
}

static void receive_bytes(int socket, void *bytes, size_t n)
{
    CHECK(recv(socket, bytes, n, MSG_WAITALL) == (ssize_t)n, "recv: %m");
}

/* Tell the other process that it may go on, or wait until it says so. */
static void tell(int socket)
{
    send_bytes(socket, "", 1);
}

static void await(int socket)
{
    char byte;
    receive_bytes(socket, &byte, 1);
}

static void send_fd(int socket, int fd)
{
    char byte = 0;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(socket, &message, 0) == 1, "sendmsg: %m");
}

static int receive_fd(int socket)
{
    char byte;
    int fd;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1, "recvmsg: %m");
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_RIGHTS, "no descriptor");
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static void run_both(void (*exporter)(int socket), void (*importer)(int socket))
{
    int sockets[2], status;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), "socketpair: %m");
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    close(sockets[child ? 1 : 0]);
    start_driver();
    if (!child) {
        importer(sockets[1]);
        exit(0);
    }
    exporter(sockets[0]);
    CHECK(waitpid(child, &status, 0) == child && !status, "the importer's status is %#x", status);
}

/* ---------------------------------------------------------------------------------- descriptors */

static const CUmemAllocationProp exported = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                             .requestedHandleTypes =
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
    CUdeviceptr base;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cu.cuMemAddressReserve(&base, UNIT, 0, 0, 0));
    CU(cu.cuMemMap(base, UNIT, 0, handle, 0));
    CU(cu.cuMemSetAccess(base, UNIT, &access, 1));
    return base;
}

static void export_descriptor(int socket)
{
    int fd;
    CUmemGenericAllocationHandle handle, again, private;
    CUmemAllocationProp prop = exported;
    CU(cu.cuMemCreate(&handle, UNIT, &prop, 0));
    CUdeviceptr base = map(handle);
    fill_words(base, 11, NULL);
    CU(cu.cuStreamSynchronize(NULL));
    CU(cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CU(cu.cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    check_device_words(map(again), 11, "the own words");
    CU(cu.cuMemRelease(again));
    send_fd(socket, fd);
    close(fd);
    await(socket);
    check_device_words(base, 12, "the importer's words");
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CU(cu.cuMemCreate(&private, UNIT, &prop, 0));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuMemExportToShareableHandle(
                                        &fd, private, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void import_descriptor(int socket)
{
    int fd = receive_fd(socket), ordinal;
    CUmemGenericAllocationHandle handle;
    CU_IS(CUDA_ERROR_INVALID_VALUE,
          cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)socket,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CU(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CUdeviceptr base = map(handle);
    CU(cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base));
    CHECK(ordinal == 0, "%d", ordinal);
    check_device_words(base, 11, "the exporter's words");
    fill_words(base, 12, NULL);
    CU(cu.cuStreamSynchronize(NULL));
    tell(socket);
    CU(cu.cuMemUnmap(base, UNIT));
    CU(cu.cuMemRelease(handle));
    CU(cu.cuMemAddressFree(base, UNIT));
}

static void descriptors(void)
{
    run_both(export_descriptor, import_descriptor);
}

static void no_descriptors(void)
{
    int value, fd = 0;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = exported;
    start_driver();
    CU(cu.cuDeviceGetAttribute(&value,
                               CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    CHECK(!value, "%d", value);
    CU_IS(CUDA_ERROR_NOT_SUPPORTED, cu.cuMemCreate(&handle, UNIT, &prop, 0));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CU(cu.cuMemCreate(&handle, UNIT, &prop, 0));
    CU_IS(CUDA_ERROR_NOT_SUPPORTED, cu.cuMemExportToShareableHandle(
                                        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

/* ---------------------------------------------------------------------------------- IPC handles */

static void export_handle(int socket)
{
    CUipcMemHandle handle;
    CUdeviceptr own = device_words(), opened;
    fill_words(own, 21, NULL);
    CU(cu.cuStreamSynchronize(NULL));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuIpcGetMemHandle(&handle, own + 4));
    CU(cu.cuIpcGetMemHandle(&handle, own));
    CU_IS(CUDA_ERROR_INVALID_CONTEXT,
          cu.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    send_bytes(socket, &handle, sizeof handle);
    await(socket);
    check_device_words(own, 22, "the importer's words");
    CU(cu.cuMemFree_v2(own));
    tell(socket);
    await(socket);
}

static void open_handle(int socket)
{
    CUipcMemHandle handle;
    CUdeviceptr opened, again;
    size_t bytes;
    receive_bytes(socket, &handle, sizeof handle);
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuIpcOpenMemHandle_v2(&opened, handle, 0));
    CU(cu.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CU(cu.cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(opened == again, "opened twice");
    CU(cu.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, opened));
    CHECK(bytes == BYTES, "%zu", bytes);
    CU(cu.cuIpcCloseMemHandle(again));
    check_device_words(opened, 21, "the exporter's words");
    fill_words(opened, 22, NULL);
    CU(cu.cuStreamSynchronize(NULL));
    tell(socket);
    await(socket); /* the exporter has freed it */
    CU(cu.cuIpcCloseMemHandle(opened));
    CU_IS(CUDA_ERROR_INVALID_VALUE, cu.cuIpcCloseMemHandle(opened));
    CHECK(freopen("/dev/null", "w", stderr), "freopen: %m");
    if (cu.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) !=
        CUDA_ERROR_INVALID_VALUE)
        exit(2);
    tell(socket);
}

static void ipc(void)
{
    run_both(export_handle, open_handle);
}

/* The importer is on device 1. */
static void on_second_device(void)
{
    CUcontext second;
    CU(cu.cuDevicePrimaryCtxRetain(&second, 1));
    CU(cu.cuCtxSetCurrent(second));
}

static void export_to_peer(int socket)
{
    CUipcMemHandle handle;
    CUdeviceptr own = device_words();
    fill_words(own, 31, NULL);
    CU(cu.cuStreamSynchronize(NULL));
    CU(cu.cuIpcGetMemHandle(&handle, own));
    send_bytes(socket, &handle, sizeof handle);
    await(socket);
    bool broken = getenv("DDL_STANDIN_PEERS");
    check_device_words(own, broken ? 31 : 32, "the words after the importer's");
}

static void open_peer(int socket)
{
    CUipcMemHandle handle;
    CUdeviceptr opened;
    bool broken = getenv("DDL_STANDIN_PEERS");
    on_second_device();
    receive_bytes(socket, &handle, sizeof handle);
    CU(cu.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    check_device_words(opened, broken ? 0 : 31, "the exporter's words");
    fill_words(opened, 32, NULL);
    CU(cu.cuStreamSynchronize(NULL));
    tell(socket);
}

static void ipc_peers(void)
{
    run_both(export_to_peer, open_peer);
}

static void offer(int socket)
{
    CUipcMemHandle handle;
    CU(cu.cuIpcGetMemHandle(&handle, device_words()));
    send_bytes(socket, &handle, sizeof handle);
    await(socket);
}

static void refuse(int socket)
{
    CUipcMemHandle handle;
    CUdeviceptr opened;
    on_second_device();
    receive_bytes(socket, &handle, sizeof handle);
    CU_IS(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
          cu.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    tell(socket);
}

static void ipc_no_peers(void)
{
    run_both(offer, refuse);
}

const test_case sharing_cases[] = {
    {"descriptors", descriptors, {0}, false},
    {"no_descriptors", no_descriptors, {"DDL_STANDIN_NO_FD=1"}, false},
    {"ipc", ipc, {0}, false},
    {"ipc_peers", ipc_peers, {"DDL_STANDIN_DEVICES=2"}, false},
    {"ipc_broken_peers", ipc_peers, {"DDL_STANDIN_DEVICES=2", "DDL_STANDIN_PEERS=broken"}, false},
    {"ipc_no_peers", ipc_no_peers, {"DDL_STANDIN_DEVICES=2", "DDL_STANDIN_PEERS=none"}, false},
    {NULL, NULL, {0}, false},
};
