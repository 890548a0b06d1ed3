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

/* Return the memory for changed operands, or NULL if out of memory. In an all-reduce it is the
 * result's buffer. For other kinds this buffer is too small or must keep its contents, so it is
 * memory of the library. */
static void *changed_operands(const ddl__runner *runner, ddl_work *work)
{
    ddl__call *call = &work->call;
    size_t element = ddl__dtype_size(call->dtype);
    if (call->kind == DDL__ALLREDUCE)
        return call->recv;
    if (work->staged) /* they are changed a second time */
        return work->staged;
    work->staged = malloc((size_t)operand_count(runner, call) * element + 1);
    if (work->staged && call->kind == DDL__REDUCE_SCATTER && call->send == call->recv)
        call->recv = (char *)call->recv + (size_t)own_block(runner, call).start * element;
    return work->staged;
}

static bool scale_operands(const ddl__runner *runner, ddl_work *work)
{
    ddl__call *call = &work->call;
    void *scaled = changed_operands(runner, work);
    if (!scaled)
        return false;
    transfer(runner, call, scaled, call->send, operand_count(runner, call), call->prescale);
    call->send = scaled;
    return true;
}

/* Add the rounding errors of earlier calls to the operands, and clear them, because this call has
 * made none yet. */
static bool add_residual(const ddl__runner *runner, ddl_work *work)
{
    ddl__call *call = &work->call;
    const size_t count = (size_t)operand_count(runner, call);
    void *sums = count ? changed_operands(runner, work) : NULL;
    if (!sums)
        return !count;
    const void *operands[] = {call->send, call->residual};
    runner->kernels->reduce[DDL_F32][DDL_SUM](sums, operands, 2, count, 1);
    memset(call->residual, 0, count * sizeof *call->residual);
    call->send = sums;
    return true;
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
    return !work->call.residual || add_residual(runner, work);
}

void ddl__stage_result(const ddl__runner *runner, ddl_work *work)
{
    if (work->call.bundle)
        unpack(runner, work->call.bundle);
    else
        scale_result(runner, &work->call);
}
