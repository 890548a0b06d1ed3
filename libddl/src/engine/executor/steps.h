/* SPDX-License-Identifier: Apache-2.0 */
/* steps.h - helpers for a step of a work's plan: its memory, its links and the received spans. */
#ifndef DDL_ENGINE_EXECUTOR_STEPS_H
#define DDL_ENGINE_EXECUTOR_STEPS_H

#include "engine/calls/frames.h"
#include "engine/calls/ordered.h"
#include "engine/executor/run.h"

static inline const unsigned char *ddl__step_source(const ddl_work *work, const ddl__step *step,
                                                    int64_t k)
{
    const unsigned char *base = step->space == DDL__IN    ? work->in
                                : step->space == DDL__OUT ? work->out
                                                          : work->scratch;
    return base + (size_t)(step->src + k * step->stride) * work->element;
}

static inline unsigned char *ddl__step_destination(const ddl_work *work, const ddl__step *step,
                                                   int64_t k)
{
    unsigned char *base = step->to_scratch ? work->scratch : work->out;
    return base + (size_t)(step->dst + k * step->stride) * work->element;
}

/* Return true if one call can send to both links. */
static inline bool ddl__links_group(const ddl__link *one, const ddl__link *other)
{
    return one->ops == other->ops || one->ops->reserve == other->ops->reserve;
}

/* Store in runner->targets the next targets to which one call can send: links over TCP, or links
 * over this rank's shared memory, some of which may lead to ranks in this process. Return their
 * number. */
static inline unsigned ddl__next_targets(ddl__runner *runner, const ddl_work *work,
                                         const ddl__step *step)
{
    const uint32_t *ranks = work->plan->ranks + step->target;
    unsigned n = 0;
    for (uint32_t i = work->published; i < step->targets; i++) {
        ddl__link *link = runner->links[ranks[i]];
        if (n && (runner->among_frames || !ddl__links_group(link, runner->targets[0])))
            break;
        runner->targets[n++] = link;
    }
    runner->targets[0]->from_memory = work->plan->waves >= DDL__MEMORY_WAVES;
    return n;
}

/* Return true if the next span belongs to the stream, not to messages that share the link. */
static inline bool ddl__comes_next(const ddl__runner *runner, ddl__link *link)
{
    ddl__signature signature;
    size_t bytes;
    return !runner->among_frames ||
           (link->ops->next(link, &signature, &bytes) && !ddl__is_frame(&signature));
}

/* Return the next span of the stream, or NULL. `into`: see link.h. */
static inline const void *ddl__step_peek(const ddl__runner *runner, ddl__link *link, void *into,
                                         size_t bytes, const ddl__signature *signature)
{
    return ddl__comes_next(runner, link)
               ? link->ops->peek(link, runner->ahead, into, bytes, signature)
               : NULL;
}

/* Get all operands of a reduction. Return false if one is missing. Every link is checked even then,
 * so that all of them make progress. */
static inline bool ddl__gather(ddl__runner *runner, ddl_work *work, const ddl__step *step,
                               size_t bytes, int64_t k)
{
    const uint32_t *ranks = work->plan->ranks + step->operand;
    bool whole = true;
    for (uint32_t i = 0; i < step->operands; i++) {
        ddl__link *link = runner->links[ranks[i]];
        runner->operands[i] = link ? ddl__step_peek(runner, link, NULL, bytes, &work->signature)
                                   : ddl__step_source(work, step, k);
        whole = whole && runner->operands[i];
    }
    return whole;
}

/* Return the bytes of one value of an operand, and the bytes that operand `i` sends, in a step over
 * `length` elements of the result. */
static inline size_t ddl__value_bytes(const ddl_work *work, const ddl__step *step, int64_t length)
{
    size_t bytes = (size_t)length * work->element;
    return step->kind == DDL__FOLD ? bytes * work->call.wide : bytes;
}

static inline size_t ddl__operand_bytes(const ddl_work *work, const ddl__step *step, uint32_t i,
                                        int64_t length)
{
    size_t bytes = ddl__value_bytes(work, step, length);
    if (step->kind == DDL__UNPACK || step->kind == DDL__ADD_UNPACKED)
        return ddl__packed_bytes((size_t)length, work->plan->bits);
    if (step->kind != DDL__FOLD)
        return bytes;
    const uint16_t *first = work->plan->folds[step->fold]->first + i;
    return bytes * (size_t)(first[1] - first[0]);
}

/* Get the operands of a fold, in which every value is an operand. Otherwise like ddl__gather. */
static inline bool ddl__gather_values(ddl__runner *runner, ddl_work *work, const ddl__step *step,
                                      int64_t length, int64_t k)
{
    const uint32_t *ranks = work->plan->ranks + step->operand;
    const uint16_t *first = work->plan->folds[step->fold]->first;
    const size_t bytes = ddl__value_bytes(work, step, length);
    const size_t at = ddl__value_bytes(work, step, step->src + k * step->stride);
    const void *const *parts = work->call.parts ? work->call.parts : &work->call.send;
    /* true if this rank's operand is the sum of an earlier level, not its parts */
    const bool partial = step->space != DDL__IN;
    bool whole = true;
    for (uint32_t i = 0; i < step->operands; i++) {
        ddl__link *link = runner->links[ranks[i]];
        const size_t n = (size_t)(first[i + 1] - first[i]);
        const char *span =
            link ? ddl__step_peek(runner, link, NULL, n * bytes, &work->signature) : NULL;
        whole = whole && (span || !link);
        for (size_t j = 0; whole && j < n; j++)
            runner->operands[first[i] + j] = link ? span + j * bytes
                                             : partial
                                                 ? (const char *)ddl__step_source(work, step, k)
                                                 : (const char *)parts[j] + at;
    }
    return whole;
}

/* Remember the links that may still read the memory that was sent. */
static inline void ddl__note_sent(ddl__runner *runner, unsigned n)
{
    for (unsigned i = 0; i < n && runner->targets[0]->ops->zero_copy; i++) {
        ddl__link *link = runner->targets[i];
        if (link->unflushed)
            continue;
        link->unflushed = true;
        runner->unflushed[runner->n_unflushed++] = link;
    }
}

/* Mark the work as lost. Return false. */
__attribute__((cold, noinline)) static bool ddl__lose(ddl_work *work)
{
    work->lost = true;
    return false;
}

/* Release the operands. Return false if the result made from them may be wrong: see release in
 * link.h. The step cannot be repeated, because the other operands are already released. */
static inline bool ddl__release_operands(ddl__runner *runner, ddl_work *work, const ddl__step *step)
{
    const uint32_t *ranks = work->plan->ranks + step->operand;
    bool held = true;
    for (uint32_t i = 0; i < step->operands; i++) {
        ddl__link *link = runner->links[ranks[i]];
        if (link)
            held = link->ops->release(link) && held;
    }
    return held || ddl__lose(work);
}

/* ---- packed.c: the steps of packed spans ---- */

/* Run a step of packed spans, or a copy with rounding, as far as possible. Return true if it is
 * complete. */
bool ddl__packed_run(ddl__runner *runner, ddl_work *work, const ddl__step *step, int64_t k,
                     int64_t length);

/* Send a result to the remaining targets. */
bool ddl__publish_rest(ddl__runner *runner, ddl_work *work, const ddl__step *step,
                       const void *memory, size_t bytes);

/* ---- interleave.c: several steps of a wave at once, a few cache lines of each in turn ---- */

/* Run as many steps of the current wave as can run together, starting with the current step, which
 * must not have started. Return how many ran; the current step is then the last of them. Return 0,
 * without any effect, if the steps must run one after the other. The first call decides, in
 * work->interleaving, whether the work is ever interleaved. */
unsigned ddl__interleave_run(ddl__runner *runner, ddl_work *work);

#endif
