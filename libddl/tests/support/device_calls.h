/* SPDX-License-Identifier: Apache-2.0 */
/* device_calls.h - all operations on even blocks, on buffers of a GPU and on host memory. */
#ifndef DDL_TESTS_DEVICE_CALLS_H
#define DDL_TESTS_DEVICE_CALLS_H

#include "device_buffers.h"
#include "processes.h"

enum { KINDS = 9 };

typedef struct call {
    const char *name;
    int sent, received;               /* number of blocks; -1: one for each rank */
    bool rooted_send, rooted_receive; /* only the root has the blocks */
    bool reduces;
} call;

static const call calls[KINDS] = {
    {"allreduce", 1, 1, false, false, true},   {"reduce_scatter", -1, 1, false, false, true},
    {"allgather", 1, -1, false, false, false}, {"broadcast", 1, 1, true, false, false},
    {"reduce", 1, 1, false, true, true},       {"gather", 1, -1, false, true, false},
    {"scatter", -1, 1, true, false, false},    {"alltoall", -1, -1, false, false, false},
    {"barrier", 0, 0, false, false, false}};

static inline ddl_status run(int kind, ddl_comm *comm, const void *send, void *recv, int64_t count,
                             ddl_dtype dtype, int root, const ddl_options *options, ddl_work **work)
{
    switch (kind) {
    case 0: return ddl_allreduce(comm, send, recv, count, dtype, DDL_SUM, options, work);
    case 1: return ddl_reduce_scatter(comm, send, recv, count, dtype, DDL_SUM, options, work);
    case 2: return ddl_allgather(comm, send, recv, count, dtype, options, work);
    case 3: return ddl_broadcast(comm, recv, count, dtype, root, options, work);
    case 4: return ddl_reduce(comm, send, recv, count, dtype, DDL_SUM, root, options, work);
    case 5: return ddl_gather(comm, send, recv, count, dtype, root, options, work);
    case 6: return ddl_scatter(comm, send, recv, count, dtype, root, options, work);
    case 7: return ddl_alltoall(comm, send, recv, count, dtype, options, work);
    default: return ddl_barrier(comm, options, work);
    }
}

static inline size_t bytes_of(int blocks, int size, int64_t count, ddl_dtype dtype)
{
    return (size_t)(blocks < 0 ? size : blocks) * (size_t)count * ddl_dtype_size(dtype);
}

/* Fill in finite values of any dtype whose sums stay exact. */
static inline void fill(void *buffer, size_t bytes, ddl_dtype dtype, int rank)
{
    size_t element = ddl_dtype_size(dtype);
    for (size_t i = 0; i < bytes / element; i++) {
        unsigned value = (unsigned)(i * 7 + (size_t)rank * 13) % 29;
        if (dtype == DDL_F32)
            ((float *)buffer)[i] = (float)value + 1.0F / (float)(1 + i % 5);
        else if (dtype == DDL_F64)
            ((double *)buffer)[i] = value * 0.1;
        else if (dtype == DDL_BF16)
            ((uint16_t *)buffer)[i] = (uint16_t)(0x3f80 + value * 3);
        else
            memset((unsigned char *)buffer + i * element, (int)value, element);
    }
}

static const ddl_options on_device = {.struct_size = sizeof on_device, .memory = DDL_MEMORY_CUDA};

/* Run the same operation on host memory and on the device, and compare all bits, including memory
 * that must not be written. */
static inline void compare(ddl_comm *comm, int kind, ddl_dtype dtype, int64_t count, bool in_place)
{
    const call *c = &calls[kind];
    int rank = ddl_comm_rank(comm), size = ddl_comm_size(comm), root = (kind + 1) % size;
    size_t sent = bytes_of(c->sent, size, count, dtype);
    size_t received = bytes_of(c->received, size, count, dtype);
    size_t longer = sent > received ? sent : received;
    unsigned char *send = malloc(longer + 1), *recv = malloc(longer + 1);
    fill(send, longer, dtype, rank);
    memset(recv, 0x55, longer);
    if (in_place || kind == 3)
        memcpy(recv, send, longer);
    void *device_send = device_copy(send, longer), *device_recv = device_copy(recv, longer);
    bool roots = rank == root;
    if (in_place && ((kind != 5 && kind != 6) || roots)) {
        OK(run(kind, comm, kind == 6 ? recv : NULL, kind == 6 ? NULL : recv, count, dtype, root,
               NULL, NULL));
        OK(run(kind, comm, kind == 6 ? device_recv : NULL, kind == 6 ? NULL : device_recv, count,
               dtype, root, &on_device, NULL));
    } else {
        OK(run(kind, comm, send, recv, count, dtype, root, NULL, NULL));
        OK(run(kind, comm, device_send, device_recv, count, dtype, root, &on_device, NULL));
    }
    unsigned char *result = malloc(longer + 1);
    device_read(result, device_recv, longer);
    CHECK(!memcmp(result, recv, longer), "%s of %lld, dtype %d, %s: other bits", c->name,
          (long long)count, dtype, in_place ? "in place" : "out of place");
    device_read(result, device_send, longer);
    CHECK(!memcmp(result, send, longer), "%s: its send buffer was written", c->name);
    device_free(device_send);
    device_free(device_recv);
    free(send);
    free(recv);
    free(result);
}

#endif
