/* SPDX-License-Identifier: Apache-2.0 */
/* handler.c - the function that XLA calls for an operation of ddl_jax in a compiled program.
 *
 * Design notes
 *   One handler serves all operations; an attribute of the call selects the operation. Each call
 *   takes a token that the previous one returned, so XLA runs them in the order of the program,
 *   which is the same on all ranks, as libddl requires.
 *   On a GPU the operation runs in the stream of the program. The handler still waits until it is
 *   complete, so that the program that contains the operation reports a failure. The handler blocks
 *   a thread of XLA. Compiled programs outlive comms, so they do not contain the comm: it is stored
 *   here, and ddl_jax_close waits for the calls that use it (callers.h). */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "ddl/ddl.h"

#include "callers.h"
#include "orders.h"
#include "pages.h"
#include "xla/ffi/api/c_api.h"

enum { MESSAGE_BYTES = 256, PARTS_MAX = 256 };

/* ---- the comm ---- */

/* Comms of some ranks; guarded by lock. Calls that have entered may use them. Their numbers start
 * at 1 and are not reused, because programs that contain a number outlive the comm. */
static ddl_comm *parts[PARTS_MAX];
static int parts_count, parts_before; /* parts_before: comms of earlier worlds */

DDL_API void ddl_jax_open(ddl_comm *comm)
{
    open_world(comm);
    pthread_mutex_lock(&lock);
    parts_before += parts_count;
    parts_count = 0;
    pthread_mutex_unlock(&lock);
}

/* Let calls use a comm of some ranks, which the caller keeps until after ddl_jax_close. Return its
 * number, or 0 if there are too many. */
DDL_API int ddl_jax_add(ddl_comm *comm)
{
    pthread_mutex_lock(&lock);
    int number = 0;
    if (parts_count < PARTS_MAX) {
        parts[parts_count++] = comm;
        number = parts_before + parts_count;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

/* Return the comm with this number for a call that has entered, or NULL. */
static ddl_comm *part(int64_t number)
{
    pthread_mutex_lock(&lock);
    int64_t i = number - parts_before - 1;
    ddl_comm *comm = i >= 0 && i < parts_count ? parts[i] : NULL;
    pthread_mutex_unlock(&lock);
    return comm;
}

static void abort_all(ddl_comm *comm, const char *reason)
{
    ddl_comm_abort(comm, reason);
    for (int i = 0; i < parts_count; i++)
        ddl_comm_abort(parts[i], reason);
}

/* Return whether the comm may be destroyed. */
DDL_API int ddl_jax_close(void)
{
    return close_world(abort_all);
}

/* ---- reading the call ---- */

static int64_t number(const XLA_FFI_CallFrame *frame, const char *name)
{
    for (int64_t i = 0; i < frame->attrs.size; i++) {
        const XLA_FFI_ByteSpan *found = frame->attrs.names[i];
        if (frame->attrs.types[i] == XLA_FFI_AttrType_SCALAR && found->len == strlen(name) &&
            memcmp(found->ptr, name, found->len) == 0)
            return *(const int64_t *)((const XLA_FFI_Scalar *)frame->attrs.attrs[i])->value;
    }
    return 0;
}

static bool kind_is(const XLA_FFI_CallFrame *frame, const char *kind)
{
    for (int64_t i = 0; i < frame->attrs.size; i++) {
        if (frame->attrs.types[i] == XLA_FFI_AttrType_STRING) {
            const XLA_FFI_ByteSpan *text = frame->attrs.attrs[i];
            return text->len == strlen(kind) && memcmp(text->ptr, kind, text->len) == 0;
        }
    }
    return false;
}

static const XLA_FFI_Buffer *given(const XLA_FFI_CallFrame *frame, int64_t i)
{
    return frame->args.args[i];
}

static const XLA_FFI_Buffer *result(const XLA_FFI_CallFrame *frame, int64_t i)
{
    return frame->rets.rets[i];
}

/* Return the number of array operands; a token may follow them. */
static int64_t arrays(const XLA_FFI_CallFrame *frame)
{
    int64_t last = frame->args.size - 1;
    return last >= 0 && given(frame, last)->dtype == XLA_FFI_DataType_TOKEN ? last : last + 1;
}

static int64_t elements(const XLA_FFI_Buffer *buffer)
{
    int64_t count = 1;
    for (int64_t i = 0; i < buffer->rank; i++)
        count *= buffer->dims[i];
    return count;
}

static ddl_dtype type_of(const XLA_FFI_Buffer *buffer)
{
    static const unsigned char known[] = {
        [XLA_FFI_DataType_PRED] = DDL_BOOL,      [XLA_FFI_DataType_S8] = DDL_I8,
        [XLA_FFI_DataType_U8] = DDL_U8,          [XLA_FFI_DataType_S16] = DDL_I16,
        [XLA_FFI_DataType_U16] = DDL_U16,        [XLA_FFI_DataType_S32] = DDL_I32,
        [XLA_FFI_DataType_U32] = DDL_U32,        [XLA_FFI_DataType_S64] = DDL_I64,
        [XLA_FFI_DataType_U64] = DDL_U64,        [XLA_FFI_DataType_F16] = DDL_F16,
        [XLA_FFI_DataType_BF16] = DDL_BF16,      [XLA_FFI_DataType_F32] = DDL_F32,
        [XLA_FFI_DataType_F64] = DDL_F64,        [XLA_FFI_DataType_F8E4M3FN] = DDL_F8_E4M3,
        [XLA_FFI_DataType_F8E5M2] = DDL_F8_E5M2, [XLA_FFI_DataType_C64] = DDL_C64,
        [XLA_FFI_DataType_C128] = DDL_C128,
    };
    size_t type = (size_t)buffer->dtype;
    return type < sizeof known ? (ddl_dtype)known[type] : (ddl_dtype)0;
}

/* ---- operations ---- */

static ddl_status allreduce(ddl_comm *comm, const XLA_FFI_CallFrame *frame, int64_t i,
                            const ddl_options *options)
{
    const XLA_FFI_Buffer *send = given(frame, i);
    return ddl_allreduce(comm, send->data, result(frame, i)->data, elements(send), type_of(send),
                         (ddl_op)number(frame, "op"), options, NULL);
}

static ddl_status grouped_allreduce(ddl_comm *comm, const XLA_FFI_CallFrame *frame,
                                    const ddl_options *options)
{
    int64_t count = arrays(frame);
    if (count == 1)
        return allreduce(comm, frame, 0, options);
    ddl_group *group = NULL;
    ddl_status status = ddl_group_create(comm, &group);
    ddl_options each = {.struct_size = sizeof each, .group = group, .memory = options->memory};
    for (int64_t i = 0; i < count && status == DDL_OK; i++)
        status = allreduce(comm, frame, i, &each);
    if (status == DDL_OK)
        status = ddl_group_submit(group, options, NULL);
    ddl_group_destroy(group);
    return status;
}

/* A sum of float32 in a wire format, and the new residual of this rank. */
static ddl_status allreduce_packed(ddl_comm *comm, const XLA_FFI_CallFrame *frame,
                                   const ddl_options *options)
{
    const XLA_FFI_Buffer *before = given(frame, 1), *after = result(frame, 1);
    ddl_options packed = *options;
    packed.wire = (uint32_t)number(frame, "wire");
    packed.residual = after->data;
    if (after->data != before->data)
        memcpy(after->data, before->data, (size_t)elements(before) * sizeof(float));
    return allreduce(comm, frame, 0, &packed);
}

static bool on_gpu(const ddl_options *options)
{
    return options->memory == DDL_MEMORY_CUDA;
}

/* On a GPU the result has the array's memory (primitives.py). */
static ddl_status broadcast(ddl_comm *comm, const XLA_FFI_CallFrame *frame,
                            const ddl_options *options)
{
    const XLA_FFI_Buffer *send = given(frame, 0), *recv = result(frame, 0);
    int root = (int)number(frame, "root");
    int64_t count = elements(send);
    if (root == ddl_comm_rank(comm) && send->data != recv->data && count && !on_gpu(options))
        memcpy(recv->data, send->data, (size_t)count * ddl_dtype_size(type_of(send)));
    return ddl_broadcast(comm, recv->data, count, type_of(send), root, options, NULL);
}

/* The sum on the root, zeros elsewhere: the transpose of a broadcast. On a GPU the result is zero
 * from the start (primitives.py). */
static ddl_status reduce(ddl_comm *comm, const XLA_FFI_CallFrame *frame, const ddl_options *options)
{
    const XLA_FFI_Buffer *send = given(frame, 0), *recv = result(frame, 0);
    int root = (int)number(frame, "root");
    int64_t count = elements(send);
    ddl_status status = ddl_reduce(comm, send->data, recv->data, count, type_of(send), DDL_SUM,
                                   root, options, NULL);
    if (status == DDL_OK && root != ddl_comm_rank(comm) && count && !on_gpu(options))
        memset(recv->data, 0, (size_t)count * ddl_dtype_size(type_of(send)));
    return status;
}

static ddl_status exchange(ddl_comm *comm, const XLA_FFI_CallFrame *frame,
                           const ddl_options *options)
{
    bool sends = arrays(frame) > 0, receives = !kind_is(frame, "send");
    const XLA_FFI_Buffer *send = sends ? given(frame, 0) : NULL;
    const XLA_FFI_Buffer *recv = receives ? result(frame, 0) : NULL;
    int dest = (int)number(frame, "dest"), send_tag = (int)number(frame, "send_tag");
    int source = (int)number(frame, "source"), recv_tag = (int)number(frame, "recv_tag");
    if (!receives)
        return ddl_send(comm, send->data, elements(send), type_of(send), dest, send_tag, options,
                        NULL);
    if (!sends) {
        int sender = source;
        ddl_status status = ddl_recv(comm, recv->data, elements(recv), type_of(recv), source,
                                     recv_tag, &sender, options, NULL);
        if (status == DDL_OK && frame->rets.size > 1 &&
            result(frame, 1)->dtype == XLA_FFI_DataType_S32)
            *(int32_t *)result(frame, 1)->data = sender;
        return status;
    }
    return ddl_sendrecv(comm, send->data, elements(send), dest, send_tag, recv->data,
                        elements(recv), source, recv_tag, type_of(send), options, NULL);
}

/* The ordered sum of the workers' operands; the parts of this rank are their sums (ops "add"). */
static ddl_status sum_parts(ddl_comm *comm, const XLA_FFI_CallFrame *frame,
                            const ddl_options *options)
{
    const XLA_FFI_Buffer *recv = result(frame, 0);
    int64_t n = number(frame, "parts");
    const void *sums[n + 1];
    for (int64_t k = 0; k < n; k++)
        sums[k] = given(frame, k)->data;
    ddl_order *order = NULL;
    ddl_status status = order_of((int)number(frame, "workers"), ddl_comm_size(comm), &order);
    if (status != DDL_OK)
        return status;
    return (kind_is(frame, "allreduce_parts") ? ddl_allreduce_ordered : ddl_reduce_scatter_ordered)(
        comm, order, sums, recv->data, elements(recv), type_of(recv), (ddl_op)number(frame, "op"),
        options, NULL);
}

/* Prepare results that are not in place: their memory was never touched. */
static void expect_results(const XLA_FFI_CallFrame *frame)
{
    for (int64_t i = 0; i < frame->rets.size; i++) {
        const XLA_FFI_Buffer *recv = result(frame, i);
        if (i >= arrays(frame) || recv->data != given(frame, i)->data)
            expect_large_pages(recv->data, (size_t)elements(recv) * ddl_dtype_size(type_of(recv)));
    }
}

static ddl_status run(ddl_comm *comm, const XLA_FFI_CallFrame *frame, const ddl_options *options)
{
    if (kind_is(frame, "allreduce"))
        return grouped_allreduce(comm, frame, options);
    if (kind_is(frame, "allreduce_packed"))
        return allreduce_packed(comm, frame, options);
    if (kind_is(frame, "barrier"))
        return ddl_barrier(comm, options, NULL);
    if (kind_is(frame, "broadcast"))
        return broadcast(comm, frame, options);
    if (kind_is(frame, "reduce"))
        return reduce(comm, frame, options);
    if (kind_is(frame, "send") || kind_is(frame, "recv") || kind_is(frame, "sendrecv"))
        return exchange(comm, frame, options);
    if (kind_is(frame, "allreduce_parts") || kind_is(frame, "reduce_scatter_parts"))
        return sum_parts(comm, frame, options);
    if (kind_is(frame, "add"))
        return ddl_add(result(frame, 0)->data, given(frame, 0)->data, given(frame, 1)->data,
                       elements(result(frame, 0)), type_of(result(frame, 0)));

    const XLA_FFI_Buffer *send = given(frame, 0), *recv = result(frame, 0);
    int64_t size = ddl_comm_size(comm);
    if (kind_is(frame, "allgather"))
        return ddl_allgather(comm, send->data, recv->data, elements(send), type_of(send), options,
                             NULL);
    if (kind_is(frame, "reduce_scatter"))
        return ddl_reduce_scatter(comm, send->data, recv->data, elements(recv), type_of(send),
                                  (ddl_op)number(frame, "op"), options, NULL);
    return ddl_alltoall(comm, send->data, recv->data, elements(send) / size, type_of(send), options,
                        NULL);
}

/* ---- the entry point ---- */

static XLA_FFI_Error *refuse(const XLA_FFI_CallFrame *frame, XLA_FFI_Error_Code code,
                             const char *message)
{
    XLA_FFI_Error_Create_Args args = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE, .message = message, .errc = code};
    return frame->api->XLA_FFI_Error_Create(&args);
}

static XLA_FFI_Error_Code code_of(ddl_status status)
{
    switch (status) {
    case DDL_EINVAL: return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    case DDL_EUNSUPPORTED: return XLA_FFI_Error_Code_UNIMPLEMENTED;
    case DDL_ESTATE:
    case DDL_EMISMATCH: return XLA_FFI_Error_Code_FAILED_PRECONDITION;
    case DDL_ENOMEM:
    case DDL_ESYSTEM: return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    case DDL_EPEER:
    case DDL_EMINORITY:
    case DDL_EUNREACHABLE:
    case DDL_EREFUSED: return XLA_FFI_Error_Code_UNAVAILABLE;
    case DDL_EABORTED: return XLA_FFI_Error_Code_ABORTED;
    case DDL_ETIMEDOUT:
    case DDL_EEXPIRED: return XLA_FFI_Error_Code_DEADLINE_EXCEEDED;
    case DDL_OK:
    case DDL_INPROGRESS:
    case DDL_EINTERNAL: break;
    }
    return XLA_FFI_Error_Code_INTERNAL;
}

/* Return true if XLA has prepared the results. On a GPU some results have the memory of an operand:
 * primitives.py. */
static bool has_prepared_results(const XLA_FFI_CallFrame *frame)
{
    bool reduces = kind_is(frame, "reduce");
    if ((!reduces && !kind_is(frame, "broadcast")) || elements(result(frame, 0)) == 0)
        return true;
    return given(frame, reduces)->data == result(frame, 0)->data;
}

static XLA_FFI_Error *call(ddl_comm *comm, const XLA_FFI_CallFrame *frame,
                           const ddl_options *options)
{
    int64_t chosen = number(frame, "comm");
    if (chosen && !(comm = part(chosen)))
        return refuse(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                      "ddl: this program has a communicator created before ddl_jax.shutdown()");
    int compiled = (int)number(frame, "size"), size = ddl_comm_size(comm);
    if (compiled != size) {
        char text[MESSAGE_BYTES];
        snprintf(text, sizeof text,
                 "ddl: this program was compiled for %d ranks, but there are %d now; "
                 "jax.clear_caches() has it compiled anew",
                 compiled, size);
        return refuse(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION, text);
    }
    if (!on_gpu(options))
        expect_results(frame);
    else if (!has_prepared_results(frame))
        return refuse(frame, XLA_FFI_Error_Code_INTERNAL,
                      "ddl: XLA did not let the result have the memory of an operand");
    ddl_status status = run(comm, frame, options);
    return status == DDL_OK ? NULL : refuse(frame, code_of(status), ddl_last_error());
}

/* Return the version that this was compiled with, which XLA requests before the first call. */
static bool answers_metadata(const XLA_FFI_CallFrame *frame)
{
    XLA_FFI_Extension_Base *extension = frame->extension_start;
    if (!extension || extension->type != XLA_FFI_Extension_Metadata)
        return false;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)(void *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return true;
}

static bool executes(const XLA_FFI_CallFrame *frame)
{
    return !answers_metadata(frame) && frame->stage == XLA_FFI_ExecutionStage_EXECUTE;
}

static XLA_FFI_Error *enter_and_call(const XLA_FFI_CallFrame *frame, const ddl_options *options)
{
    ddl_comm *comm = enter();
    if (!comm)
        return refuse(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                      "ddl: not initialized: call ddl_jax.init() first");
    XLA_FFI_Error *error = call(comm, frame, options);
    leave();
    return error;
}

DDL_API XLA_FFI_Error *ddl_jax_call(XLA_FFI_CallFrame *frame)
{
    ddl_options options = {.struct_size = sizeof options};
    return executes(frame) ? enter_and_call(frame, &options) : NULL;
}

/* The entry point on an NVIDIA GPU. */
DDL_API XLA_FFI_Error *ddl_jax_call_cuda(XLA_FFI_CallFrame *frame)
{
    if (!executes(frame))
        return NULL;
    XLA_FFI_Stream_Get_Args args = {.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE,
                                    .ctx = frame->ctx};
    XLA_FFI_Error *error = frame->api->XLA_FFI_Stream_Get(&args);
    ddl_options options = {
        .struct_size = sizeof options, .memory = DDL_MEMORY_CUDA, .stream = args.stream};
    return error ? error : enter_and_call(frame, &options);
}
