/* SPDX-License-Identifier: Apache-2.0 */
/* The steps whose spans have a wire format (reduce/pack.h). A sum is computed and packed piece by
 * piece, and the pieces stay in the nearest cache. */
#include <string.h>

#include "engine/executor/steps.h"

enum { PIECE = 16 * DDL__PACK_BLOCK };

static ddl__pack_fn *packer(const ddl__runner *runner, const ddl_work *work)
{
    return runner->kernels->pack[work->call.wire];
}

static ddl__unpack_fn *unpacker(const ddl__runner *runner, const ddl_work *work)
{
    return runner->kernels->unpack[work->call.wire];
}

static int64_t piece_at(int64_t at, int64_t length)
{
    return length - at < PIECE ? length - at : PIECE;
}

/* Return true if the element, or in integer formats any element of its block, has become an
 * infinity or a NaN. */
static bool is_special(const ddl_work *work, const unsigned char *packed, float rounded, int64_t i)
{
    const size_t block = (size_t)(i - i % DDL__PACK_BLOCK);
    return work->plan->bits == 16
               ? rounded - rounded != 0
               : packed[ddl__packed_bytes(block, work->plan->bits)] == DDL__PACK_SPECIAL;
}

/* Store the rounding error of each element, for the error feedback. The error counts as 0 where
 * there is an infinity or a NaN, because the program will discard such a result. */
static void keep_errors(const ddl_work *work, float *residual, const unsigned char *packed,
                        const float *exact, const float *rounded, double factor, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        residual[i] =
            is_special(work, packed, rounded[i], i) ? 0 : (exact[i] - rounded[i]) * (float)factor;
}

static void pack_piece(const ddl__runner *runner, const ddl_work *work, const float *values,
                       unsigned char *packed, float *residual, int64_t count)
{
    packer(runner, work)(packed, values, (size_t)count);
    if (!residual)
        return;
    float rounded[PIECE];
    unpacker(runner, work)(rounded, packed, (size_t)count);
    keep_errors(work, residual, packed, values, rounded, 1, count);
}

/* Write the source, or the sum of the operands, to a span. The recv buffer is already rounded. */
static void fill(const ddl__runner *runner, const ddl_work *work, const ddl__step *step, int64_t k,
                 unsigned char *span, int64_t length)
{
    float sum[PIECE];
    const void *operands[step->operands + 1];
    const float *source = (const float *)ddl__step_source(work, step, k);
    bool is_result = step->space == DDL__OUT;
    for (int64_t at = 0; at < length; at += PIECE) {
        int64_t count = piece_at(at, length), first = step->src + k * step->stride + at;
        for (uint32_t i = 0; i < step->operands; i++)
            operands[i] = (const float *)runner->operands[i] + at;
        if (step->kind == DDL__REDUCE_PACK)
            runner->kernels->reduce[DDL_F32][DDL_SUM](sum, operands, step->operands, (size_t)count,
                                                      1);
        pack_piece(runner, work, step->kind == DDL__PACK ? source + at : sum,
                   span + ddl__packed_bytes((size_t)at, work->plan->bits),
                   work->call.residual && !is_result ? work->call.residual + first : NULL, count);
    }
}

/* Send a packed span to each target. */
static bool run_pack(ddl__runner *runner, ddl_work *work, const ddl__step *step, int64_t k,
                     int64_t length)
{
    const size_t bytes = ddl__packed_bytes((size_t)length, work->plan->bits);
    if (step->kind == DDL__REDUCE_PACK &&
        !ddl__gather(runner, work, step, (size_t)length * sizeof(float), k))
        return false;
    while (work->published < step->targets) {
        unsigned n = ddl__next_targets(runner, work, step);
        const ddl__link_ops *ops = runner->targets[0]->ops;
        void *span = ops->reserve(runner->targets, n, bytes);
        if (!span)
            return false;
        fill(runner, work, step, k, span, length);
        if (step->kind == DDL__REDUCE_PACK && !ddl__release_operands(runner, work, step))
            return false; /* such a step has one target, so the loop does this once */
        ops->publish(runner->targets, n, span, bytes, &work->signature);
        ddl__note_sent(runner, n);
        work->published += n;
    }
    return true;
}

/* Round a piece to values of the wire format, as packing and unpacking would. dst may be src. */
static void round_piece(const ddl__runner *runner, const ddl_work *work, float *dst,
                        const float *src, float *residual, int64_t count)
{
    unsigned char packed[2 * PIECE];
    float exact[PIECE];
    memcpy(exact, src, (size_t)count * sizeof *exact);
    packer(runner, work)(packed, exact, (size_t)count);
    unpacker(runner, work)(dst, packed, (size_t)count);
    if (residual) /* the residual is in units of the sum, which is the average times the number of
                     ranks */
        keep_errors(work, residual, packed, exact, dst,
                    work->call.op == DDL_AVERAGE ? work->plan->divisor : 1, count);
}

/* Copy with rounding. */
static void run_copy(const ddl__runner *runner, const ddl_work *work, const ddl__step *step,
                     int64_t k, int64_t length)
{
    const float *src = (const float *)ddl__step_source(work, step, k);
    float *dst = (float *)ddl__step_destination(work, step, k);
    for (int64_t at = 0; at < length; at += PIECE)
        round_piece(runner, work, dst + at, src + at, NULL, piece_at(at, length));
}

static void add(const ddl__runner *runner, const ddl_work *work, const ddl__step *step, int64_t k,
                const unsigned char *span, int64_t length)
{
    float other[PIECE];
    const float *own = (const float *)ddl__step_source(work, step, k);
    float *dst = (float *)ddl__step_destination(work, step, k), *residual = work->call.residual;
    for (int64_t at = 0; at < length; at += PIECE) {
        int64_t count = piece_at(at, length), first = step->dst + k * step->stride + at;
        const void *operands[] = {own + at, other};
        unpacker(runner, work)(other, span + ddl__packed_bytes((size_t)at, work->plan->bits),
                               (size_t)count);
        runner->kernels->reduce[DDL_F32][work->call.op](dst + at, operands, 2, (size_t)count,
                                                        step->finish ? work->plan->divisor : 1);
        if (step->rounds)
            round_piece(runner, work, dst + at, dst + at, residual ? residual + first : NULL,
                        count);
    }
}

/* Receive a packed span, unpack or add it, and forward the result. */
static bool run_unpack(ddl__runner *runner, ddl_work *work, const ddl__step *step, int64_t k,
                       int64_t length)
{
    ddl__link *link = runner->links[work->plan->ranks[step->operand]];
    float *dst = (float *)ddl__step_destination(work, step, k);
    if (!work->received) {
        const void *span = ddl__step_peek(
            runner, link, NULL, ddl__operand_bytes(work, step, 0, length), &work->signature);
        if (!span)
            return false;
        if (step->kind == DDL__UNPACK)
            unpacker(runner, work)(dst, span, (size_t)length);
        else
            add(runner, work, step, k, span, length);
        if (!link->ops->release(link))
            return ddl__lose(work);
        work->received = true;
    }
    return work->published == step->targets ||
           ddl__publish_rest(runner, work, step, dst, (size_t)length * sizeof(float));
}

bool ddl__packed_run(ddl__runner *runner, ddl_work *work, const ddl__step *step, int64_t k,
                     int64_t length)
{
    bool sends = step->kind == DDL__PACK || step->kind == DDL__REDUCE_PACK;
    if (step->kind == DDL__COPY) {
        run_copy(runner, work, step, k, length);
        return true;
    }
    return sends ? run_pack(runner, work, step, k, length)
                 : run_unpack(runner, work, step, k, length);
}
