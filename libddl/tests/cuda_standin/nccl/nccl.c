/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's libnccl.so.2, for use with the stand-in for libcuda.so.1, whose devices
 * are memory files. Communicators do not block: a call is often "in progress", and its work is
 * queued only after the caller has polled a few times, and after all ranks have called an operation
 * of its kind. Ending a communicator waits until all other ranks end theirs. An aborted
 * communicator is not freed, because its operations may still run. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../extensions.h"
#include "operations.h"

static atomic_ullong n_operations;
/* keeps them reachable, so that they are not reported as leaks */
static _Atomic(struct ncclComm *) aborted_comms;

unsigned long long standin_nccl_operations(void)
{
    return atomic_load(&n_operations);
}

ncclResult_t ncclGetVersion(int *version)
{
    const char *wanted = getenv("DDL_STANDIN_NCCL");
    *version = wanted && !strcmp(wanted, "old") ? 22605 : NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "from the stand-in for NCCL";
}

/* ------------------------------------------------------------------------------ communicators */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    return world_name(id) ? ncclSuccess : ncclSystemError;
}

/* With DDL_STANDIN_NCCL=broken, rank 1 of each communicator fails. */
static bool is_broken(int rank)
{
    const char *wanted = getenv("DDL_STANDIN_NCCL");
    return rank == 1 && wanted && !strcmp(wanted, "broken");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (!comm || !config || config->size < sizeof *config ||
        config->magic != (unsigned)NCCL_MAGIC || config->blocking != 0 || rank < 0 || rank >= size)
        return ncclInvalidArgument;
    if (is_broken(rank))
        return ncclSystemError;
    struct ncclComm *made = calloc(1, sizeof *made);
    if (!made || !(made->world = world_open(&id, size))) {
        free(made);
        return ncclSystemError;
    }
    made->rank = rank;
    made->size = size;
    made->last = &made->late;
    world_join(made->world, rank);
    *comm = made;
    return ncclInProgress;
}

static ncclResult_t queue_late(struct ncclComm *c)
{
    for (operation *o; (o = c->late);) {
        if (!world_has_kind(c->world, c->rank, o->kind))
            return ncclInProgress;
        c->late = o->next;
        if (!c->late)
            c->last = &c->late;
        atomic_fetch_add(&c->queued, 1);
        if (standin_launch(o->stream, operation_run, o) != CUDA_SUCCESS)
            return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    *state = ncclInProgress;
    if (!world_is_complete(c->world) || c->polls++ % 3)
        return ncclSuccess;
    *state = c->is_finalized && atomic_load(&c->queued) ? ncclInProgress : queue_late(c);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    c->is_finalized = true;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (!c->is_finalized || atomic_load(&c->queued))
        return ncclInvalidUsage;
    world_end(c->world, c->rank);
    world_close(c->world);
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    atomic_store(&c->aborted, true);
    for (operation *o; (o = c->late);) {
        c->late = o->next;
        operation_free(o);
    }
    c->next_aborted = atomic_exchange(&aborted_comms, c);
    while (atomic_load(&c->queued))
        usleep(100);
    world_end(c->world, c->rank);
    return ncclSuccess;
}

/* --------------------------------------------------------------------------------- operations */

static _Thread_local bool in_group;
static _Thread_local operation *exchange; /* exchange of the group */

static ncclResult_t queue(operation *o)
{
    struct ncclComm *c = o->comm;
    o->next = NULL;
    *c->last = o;
    c->last = &o->next;
    atomic_fetch_add(&n_operations, 1);
    return c->polls % 2 ? ncclInProgress : queue_late(c);
}

static ncclResult_t collective(const operation *asked)
{
    operation *o = in_group ? NULL : malloc(sizeof *o);
    if (!o)
        return in_group ? ncclInvalidUsage : ncclSystemError;
    *o = *asked;
    return queue(o);
}

static CUdeviceptr address_of(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* With the arguments that all have, and others. */
#define COLLECTIVE(which, ...)                                                                     \
    collective(&(operation){.comm = comm,                                                          \
                            .kind = which,                                                         \
                            .dtype = dtype,                                                        \
                            .count = count,                                                        \
                            .send = address_of(send),                                              \
                            .recv = address_of(recv),                                              \
                            .stream = stream,                                                      \
                            __VA_ARGS__})

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, CUstream stream)
{
    return COLLECTIVE(ALL_REDUCE, .op = op);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream)
{
    return COLLECTIVE(REDUCE, .op = op, .root = root);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, CUstream stream)
{
    return COLLECTIVE(REDUCE_SCATTER, .op = op);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, CUstream stream)
{
    return COLLECTIVE(ALL_GATHER, .root = 0);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, CUstream stream)
{
    return COLLECTIVE(BROADCAST, .root = root);
}

/* ------------------------------------------------------------------------------------ messages */

ncclResult_t ncclGroupStart(void)
{
    in_group = true;
    return ncclSuccess;
}

/* Return the group's exchange, in which each rank sends at most one message to each rank. */
static operation *exchange_of(ncclComm_t comm, CUstream stream)
{
    if (exchange || !in_group)
        return exchange;
    operation *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->comm = comm;
    o->kind = EXCHANGE;
    o->stream = stream;
    o->to = calloc((size_t)comm->size, sizeof *o->to);
    o->from = calloc((size_t)comm->size, sizeof *o->from);
    if (o->to && o->from)
        return exchange = o;
    operation_free(o);
    return NULL;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, CUstream stream)
{
    operation *o = exchange_of(comm, stream);
    if (!o || peer < 0 || peer >= comm->size || o->to[peer].address)
        return ncclInvalidUsage;
    o->to[peer] = (message){address_of(send), count * dtype_bytes(dtype)};
    return ncclSuccess;
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      CUstream stream)
{
    operation *o = exchange_of(comm, stream);
    if (!o || peer < 0 || peer >= comm->size || o->from[peer].address)
        return ncclInvalidUsage;
    o->from[peer] = (message){address_of(recv), count * dtype_bytes(dtype)};
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    operation *o = exchange;
    exchange = NULL;
    in_group = false;
    return o ? queue(o) : ncclSuccess;
}
