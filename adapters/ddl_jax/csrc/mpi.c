/* SPDX-License-Identifier: Apache-2.0 */
/* mpi.c - an MPI for jaxlib, so that jax's own collectives use libddl.
 *
 * Design notes
 *   With jax_cpu_collectives_implementation="mpi" jaxlib calls MPI through MPItrampoline, which
 *   loads $MPITRAMPOLINE_LIB and looks up all of MPI there, under its own names. The few functions
 *   that XLA needs are implemented here; every other one fails with its name.
 *   MPI_COMM_WORLD is the comm that ddl_jax.initialize() sets. Handles are integers, as
 *   MPItrampoline requires: a ddl_dtype for a type, a ddl_op for an op, pointers for further comms
 *   and for requests. A failed call keeps its message for MPI_Error_string, which XLA calls next on
 *   the same thread.
 *   A comm, even one that XLA frees, is destroyed only when no call uses it (callers.h). A thread
 *   between MPI_Isend and MPI_Wait is in no call. Works outlive their comms and are then complete,
 *   so MPI_Wait tests before it waits. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddl/ddl.h"

#include "callers.h"
#include "pages.h"

typedef uintptr_t handle;

enum { SUCCESS = 0, FAILED = 15, WORLD = 1, COLOR_UNDEFINED = -32766, MESSAGE_BYTES = 256 };

/* ---- symbols for which MPItrampoline looks ---- */

DDL_API int mpiwrapper_version_major = 2;
DDL_API int mpiwrapper_version_minor = 11;
DDL_API int mpiwrapper_version_patch = 0;
DDL_API int mpiabi_version_major = 2;
DDL_API int mpiabi_version_minor = 9;
DDL_API int mpiabi_version_patch = 0;
DDL_API int mpiabi_loaded_version_major;
DDL_API int mpiabi_loaded_version_minor;
DDL_API int mpiabi_loaded_version_patch;

DDL_API void mpiwrapper_export_fortran_constants_(void)
{
}

#define IS(name, value) DDL_API handle MPIABI_##name = (handle)(value);
IS(SUCCESS, SUCCESS)
IS(ERR_OTHER, FAILED)
IS(COMM_WORLD, WORLD)
IS(COMM_NULL, 0)
IS(REQUEST_NULL, 0)
IS(UNDEFINED, COLOR_UNDEFINED)

IS(BYTE, DDL_U8)
IS(CHAR, DDL_I8)
IS(SIGNED_CHAR, DDL_I8)
IS(UNSIGNED_CHAR, DDL_U8)
IS(SHORT, DDL_I16)
IS(UNSIGNED_SHORT, DDL_U16)
IS(INT, DDL_I32)
IS(UNSIGNED, DDL_U32)
IS(LONG, DDL_I64)
IS(UNSIGNED_LONG, DDL_U64)
IS(LONG_LONG, DDL_I64)
IS(UNSIGNED_LONG_LONG, DDL_U64)
IS(INT8_T, DDL_I8)
IS(UINT8_T, DDL_U8)
IS(INT16_T, DDL_I16)
IS(UINT16_T, DDL_U16)
IS(INT32_T, DDL_I32)
IS(UINT32_T, DDL_U32)
IS(INT64_T, DDL_I64)
IS(UINT64_T, DDL_U64)
IS(FLOAT, DDL_F32)
IS(DOUBLE, DDL_F64)
IS(C_BOOL, DDL_BOOL)
IS(CXX_BOOL, DDL_BOOL)
IS(C_COMPLEX, DDL_C64)
IS(C_FLOAT_COMPLEX, DDL_C64)
IS(C_DOUBLE_COMPLEX, DDL_C128)

IS(SUM, DDL_SUM)
IS(PROD, DDL_PRODUCT)
IS(MIN, DDL_MIN)
IS(MAX, DDL_MAX)
IS(BAND, DDL_BIT_AND)
IS(BOR, DDL_BIT_OR)
IS(BXOR, DDL_BIT_XOR)
IS(LAND, DDL_LOGICAL_AND)
IS(LOR, DDL_LOGICAL_OR)

/* All other constants have a value that is no type, op or comm. (IS is not used: stdio.h has macros
 * with such names.) */
#define CONSTANT(name) DDL_API handle MPIABI_##name = (handle)-32765;
#include "mpi_names.h"
#undef CONSTANT

/* ---- failures ---- */

static _Thread_local char message[MESSAGE_BYTES];

static int failed(const char *text)
{
    snprintf(message, sizeof message, "%s", text);
    return FAILED;
}

static int told(ddl_status status)
{
    return status == DDL_OK ? SUCCESS : failed(ddl_last_error());
}

static int refused(const char *name)
{
    snprintf(message, sizeof message, "libddl: jaxlib called %s, which ddl_jax does not have",
             name);
    fprintf(stderr, "%s\n", message);
    return FAILED;
}

#define REFUSED(name)                                                                              \
    DDL_API int MPIABI_##name(void);                                                               \
    DDL_API int MPIABI_##name(void)                                                                \
    {                                                                                              \
        return refused("MPI_" #name);                                                              \
    }
#include "mpi_names.h"
#undef REFUSED

/* ---- the world ---- */

/* Select this file, at `path`, as the MPI: MPItrampoline reads the environment while jaxlib is
 * loaded. */
DDL_API void ddl_jax_mpi_announce(const char *path)
{
    setenv("MPITRAMPOLINE_LIB", path, 1);
    setenv("MPITRAMPOLINE_DLOPEN_MODE", "dlopen", 1); /* this libddl, not a second one */
}

/* Set MPI_COMM_WORLD, before jaxlib's first call. The caller keeps the comm. */
DDL_API void ddl_jax_mpi_open(ddl_comm *comm)
{
    open_world(comm);
}

/* A comm that XLA has split off. It must not outlive the world's endpoint, so if XLA has not freed
 * it by then, it is destroyed here; freeing it later does nothing. */
typedef struct part {
    ddl_comm *comm;
    bool freed; /* no new call may use it; destroyed when no call uses it */
    struct part *next;
} part;

static part *parts; /* guarded by lock */

/* Take ownership of the comm. Return false if out of memory. */
static bool remember(ddl_comm *comm)
{
    part *made = malloc(sizeof *made);
    if (!made)
        return false;
    pthread_mutex_lock(&lock);
    *made = (part){.comm = comm, .next = parts};
    parts = made;
    pthread_mutex_unlock(&lock);
    return true;
}

/* Destroy the freed comms, or all. With the lock held, and while no call uses them. */
static void destroy_parts(bool all)
{
    for (part **link = &parts, *each; (each = *link);) {
        if (!all && !each->freed) {
            link = &each->next;
            continue;
        }
        *link = each->next;
        ddl_comm_destroy(each->comm);
        free(each);
    }
}

/* leave() for calls that use a handle's comm. */
static void leave_comm(void)
{
    pthread_mutex_lock(&lock);
    if (inside == 1)
        destroy_parts(false);
    leave_locked();
    pthread_mutex_unlock(&lock);
}

static void abort_all(ddl_comm *comm, const char *reason)
{
    ddl_comm_abort(comm, reason);
    for (part *each = parts; each; each = each->next)
        ddl_comm_abort(each->comm, reason);
}

/* Take the world back. Return whether it may be destroyed; if not, the comms that were split off
 * stay as well. */
DDL_API int ddl_jax_mpi_close(void)
{
    if (!close_world(abort_all))
        return 0;
    pthread_mutex_lock(&lock);
    destroy_parts(true);
    pthread_mutex_unlock(&lock);
    return 1;
}

/* Return the comm of a handle; end the call with leave_comm(). Return NULL, with a message, if the
 * handle is unknown or the world is closed. */
static ddl_comm *enter_comm(handle comm)
{
    ddl_comm *all = enter(), *found = comm == WORLD ? all : NULL;
    if (!all) {
        failed("libddl: not initialized, or shut down: see ddl_jax.initialize()");
        return NULL;
    }
    pthread_mutex_lock(&lock);
    for (part *each = parts; each && !found; each = each->next) {
        if (each->comm == (ddl_comm *)comm && !each->freed)
            found = each->comm;
    }
    pthread_mutex_unlock(&lock);
    if (!found) {
        failed("libddl: jaxlib gave a comm that is no more");
        leave_comm();
    }
    return found;
}

static int told_leaving(ddl_status status)
{
    int code = told(status);
    leave_comm();
    return code;
}

/* Prepare the memory of a collective's result: `count` elements for each of `blocks` ranks. */
static void expect_result(const void *send, void *recv, int count, int blocks, handle type)
{
    if (send != recv)
        expect_large_pages(recv, (size_t)count * (size_t)blocks * ddl_dtype_size((ddl_dtype)type));
}

/* ---- functions that XLA calls ---- */

DDL_API int MPIABI_Init_thread(int *count, char ***arguments, int required, int *provided)
{
    (void)count, (void)arguments;
    *provided = required;
    if (!enter_comm(WORLD))
        return FAILED;
    leave_comm();
    return SUCCESS;
}

/* Return true for every thread: libddl has no main thread. */
DDL_API int MPIABI_Is_thread_main(int *flag)
{
    *flag = 1;
    return SUCCESS;
}

DDL_API int MPIABI_Comm_rank(handle comm, int *rank)
{
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    *rank = ddl_comm_rank(used);
    leave_comm();
    return SUCCESS;
}

DDL_API int MPIABI_Comm_size(handle comm, int *size)
{
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    *size = ddl_comm_size(used);
    leave_comm();
    return SUCCESS;
}

static int split(ddl_comm *comm, int color, int key, handle *result)
{
    ddl_comm *made = NULL;
    int code = told(ddl_comm_split(comm, color < 0 ? -1 : color, key, NULL, &made));
    if (code != SUCCESS)
        return code;
    if (made && !remember(made)) {
        ddl_comm_destroy(made);
        return failed("libddl: out of memory");
    }
    *result = (handle)made;
    return SUCCESS;
}

DDL_API int MPIABI_Comm_split(handle comm, int color, int key, handle *result)
{
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    int code = split(used, color, key, result);
    leave_comm();
    return code;
}

DDL_API int MPIABI_Comm_free(handle *comm)
{
    ddl_comm *used = *comm == WORLD ? NULL : enter_comm(*comm);
    if (used) {
        pthread_mutex_lock(&lock);
        for (part *each = parts; each; each = each->next)
            each->freed = each->freed || each->comm == used;
        pthread_mutex_unlock(&lock);
        leave_comm();
    }
    *comm = 0;
    return SUCCESS;
}

DDL_API int MPIABI_Allreduce(const void *send, void *recv, int count, handle type, handle op,
                             handle comm)
{
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    expect_result(send, recv, count, 1, type);
    return told_leaving(
        ddl_allreduce(used, send, recv, count, (ddl_dtype)type, (ddl_op)op, NULL, NULL));
}

DDL_API int MPIABI_Allgather(const void *send, int count, handle type, void *recv, int recv_count,
                             handle recv_type, handle comm)
{
    if (recv_count != count || recv_type != type)
        return failed("libddl: MPI_Allgather of unequal counts or types");
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    expect_result(send, recv, count, ddl_comm_size(used), type);
    return told_leaving(ddl_allgather(used, send, recv, count, (ddl_dtype)type, NULL, NULL));
}

static bool equal(const int *counts, int size)
{
    for (int rank = 1; rank < size; rank++) {
        if (counts[rank] != counts[0])
            return false;
    }
    return true;
}

DDL_API int MPIABI_Reduce_scatter(const void *send, void *recv, const int *counts, handle type,
                                  handle op, handle comm)
{
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    if (!equal(counts, ddl_comm_size(used))) {
        leave_comm();
        return failed("libddl: MPI_Reduce_scatter of unequal counts");
    }
    expect_result(send, recv, counts[0], 1, type);
    return told_leaving(
        ddl_reduce_scatter(used, send, recv, counts[0], (ddl_dtype)type, (ddl_op)op, NULL, NULL));
}

DDL_API int MPIABI_Isend(const void *buffer, int count, handle type, int dest, int tag, handle comm,
                         handle *request)
{
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    return told_leaving(
        ddl_send(used, buffer, count, (ddl_dtype)type, dest, tag, NULL, (ddl_work **)request));
}

DDL_API int MPIABI_Irecv(void *buffer, int count, handle type, int source, int tag, handle comm,
                         handle *request)
{
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    return told_leaving(ddl_recv(used, buffer, count, (ddl_dtype)type, source, tag, NULL, NULL,
                                 (ddl_work **)request));
}

/* Return the work's result when it is complete. */
static ddl_status finish(ddl_work *work)
{
    for (;;) {
        bool open = enter();
        ddl_status status = ddl_work_test(work);
        if (status == DDL_INPROGRESS && open)
            status = ddl_work_wait(work, -1);
        if (open)
            leave_comm();
        if (status != DDL_INPROGRESS)
            return status;
        /* Either the world is closed, and the comm is about to be destroyed, which completes its
         * works; or it was aborted. */
        struct timespec moment = {.tv_nsec = 1000000};
        nanosleep(&moment, NULL);
    }
}

/* XLA passes MPI_STATUS_IGNORE, so statuses are not set. */
DDL_API int MPIABI_Wait(handle *request, void *status)
{
    (void)status;
    ddl_work *work = (ddl_work *)*request;
    if (!work)
        return SUCCESS;
    int code = told(finish(work));
    ddl_work_destroy(work);
    *request = 0;
    return code;
}

DDL_API int MPIABI_Sendrecv(const void *send, int send_count, handle send_type, int dest,
                            int send_tag, void *recv, int recv_count, handle recv_type, int source,
                            int recv_tag, handle comm, void *status)
{
    (void)status;
    if (send_type != recv_type)
        return failed("libddl: MPI_Sendrecv of unequal types");
    ddl_comm *used = enter_comm(comm);
    if (!used)
        return FAILED;
    return told_leaving(ddl_sendrecv(used, send, send_count, dest, send_tag, recv, recv_count,
                                     source, recv_tag, (ddl_dtype)send_type, NULL, NULL));
}

DDL_API int MPIABI_Error_string(int code, char *text, int *length)
{
    *length = snprintf(text, MESSAGE_BYTES, "%s", code == SUCCESS ? "success" : message);
    return SUCCESS;
}

DDL_API int MPIABI_Finalize(void)
{
    return SUCCESS;
}

#define HAS_NO(device)                                                                             \
    DDL_API int MPIXABI_Query_##device##_support(void)                                             \
    {                                                                                              \
        return 0;                                                                                  \
    }
HAS_NO(cuda)
HAS_NO(hip)
HAS_NO(ze)
