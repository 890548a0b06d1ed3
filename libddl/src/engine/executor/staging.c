/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/executor/staging.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "engine/calls/group.h"

/* Copy and scale. Each product is rounded to the dtype. */
static void transfer(const ddl__runner *runner, const ddl__call *call, void *dst, const void *src,
                     int64_t count, double factor)
{
    if (count == 0)
        return;
    if (factor != 0)
        runner->kernels->scale[call->dtype](dst, src, (size_t)count, factor);
    else if (dst != src)
        memcpy(dst, src, (size_t)count * ddl__dtype_size(call->dtype));
}

/* ------------------------------------------------------------------------------------- bundles */

static void pack(const ddl__runner *runner, const ddl__bundle *bundle)
{
    char *at = bundle->scratch;
    for (uint32_t i = 0; i < bundle->n; i++) {
        const ddl__call *call = &bundle->calls[i];
        transfer(runner, call, at, call->send, call->count, call->prescale);
        at += (size_t)call->count * ddl__dtype_size(call->dtype);
    }
}

static void unpack(const ddl__runner *runner, const ddl__bundle *bundle)
{
    const char *at = bundle->scratch;
    for (uint32_t i = 0; i < bundle->n; i++) {
        const ddl__call *call = &bundle->calls[i];
        transfer(runner, call, call->recv, at, call->count, call->postscale);
        at += (size_t)call->count * ddl__dtype_size(call->dtype);
    }
}

/* ------------------------------------------------------------------------------------- scaling */

static ddl__share own_block(const ddl__runner *runner, const ddl__call *call)
{
    if (call->blocks)
        return call->blocks[runner->rank];
    return (ddl__share){runner->rank * call->count, call->count};
}

static int64_t operand_count(const ddl__runner *runner, const ddl__call *call)
{
    if (call->kind != DDL__REDUCE_SCATTER)
        return call->count;
    if (!call->blocks)
        return call->count * runner->size;
    const ddl__share *last = &call->blocks[runner->size - 1];
    return last->start + last->count;
}

/* Scale the operands. In an all-reduce, scaled operands are written to the result's buffer. For
 * other kinds this buffer is too small or must keep its contents, so the operands go to memory of
 * the library. */
static bool scale_operands(const ddl__runner *runner, ddl_work *work)
{
    ddl__call *call = &work->call;
    size_t element = ddl__dtype_size(call->dtype);
    int64_t count = operand_count(runner, call);
    void *scaled = call->recv;
    if (call->kind != DDL__ALLREDUCE) {
        scaled = work->staged = malloc((size_t)count * element + 1);
        if (!scaled)
            return false;
        if (call->kind == DDL__REDUCE_SCATTER && call->send == call->recv)
            call->recv = (char *)call->recv + (size_t)own_block(runner, call).start * element;
    }
    transfer(runner, call, scaled, call->send, count, call->prescale);
    call->send = scaled;
    return true;
}

/* Add the rounding errors of earlier calls to the operand, and clear them, because this call has
 * made none yet. */
static void add_residual(const ddl__runner *runner, ddl__call *call)
{
    const void *operands[] = {call->send, call->residual};
    runner->kernels->reduce[DDL_F32][DDL_SUM](call->recv, operands, 2, (size_t)call->count, 1);
    memset(call->residual, 0, (size_t)call->count * sizeof *call->residual);
    call->send = call->recv;
}

static void scale_result(const ddl__runner *runner, const ddl__call *call)
{
    char *result = call->recv;
    int64_t count = call->count;
    if (call->kind == DDL__REDUCE_TO_ROOT && runner->rank != call->root)
        return;
    if (call->kind == DDL__REDUCE_SCATTER) {
        ddl__share own = own_block(runner, call);
        count = own.count;
        if (call->send == call->recv)
            result += (size_t)own.start * ddl__dtype_size(call->dtype);
    }
    transfer(runner, call, result, result, count, call->postscale);
}

/* ---------------------------------------------------------------------------------------- both */

bool ddl__stage_operands(const ddl__runner *runner, ddl_work *work)
{
    if (work->call.bundle)
        pack(runner, work->call.bundle);
    else if (work->call.prescale != 0 && !scale_operands(runner, work))
        return false;
    if (work->call.residual && work->call.count)
        add_residual(runner, &work->call);
    return true;
}

void ddl__stage_result(const ddl__runner *runner, ddl_work *work)
{
    if (work->call.bundle)
        unpack(runner, work->call.bundle);
    else
        scale_result(runner, &work->call);
}
