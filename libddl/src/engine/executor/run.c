/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/executor/run.h"

#include <string.h>

#include "base/dtype.h"
#include "engine/calls/describe.h"
#include "engine/executor/steps.h"
#include "net/shm/stores.h"

enum {
    SLICE = 64,                       /* maximum number of steps until the driver reads the clock */
    LEND_LEAST = DDL__LEND_LEAST / 16 /* elements; each has up to 16 bytes */
};

/* The outcome of offering a peer a span that it reads in place, in the caller's buffer
 * (net/shm/lending.h). */
typedef enum loan_outcome { LOAN_MADE, LOAN_FULL, LOAN_REFUSED } loan_outcome;

/* Find the shared regions that contain the work's buffers. If the work can send from them without a
 * copy, its steps are not interleaved. */
static void find_regions(const ddl__runner *runner, ddl_work *work)
{
    const ddl__plan *plan = work->plan;
    const bool pulls_in_place = work->in == work->out && !plan->returns;
    const size_t least = pulls_in_place  ? DDL__LEND_LEAST_IN_PLACE
                         : plan->landing ? DDL__LEND_LEAST_COPIED
                                         : DDL__LEND_LEAST;
    if (!ddl__regions_exist(runner->regions) || (size_t)plan->segment * work->element < least)
        return;
    work->regions[0] = ddl__regions_find(runner->regions, work->in);
    work->regions[1] = ddl__regions_find(runner->regions, work->out);
    work->lends = work->regions[0].base || work->regions[1].base;
    if (work->lends)
        work->interleaving = DDL__INTERLEAVE_NEVER;
}

void ddl__run_start(const ddl__runner *runner, ddl_work *work, const ddl__plan *plan,
                    unsigned char *scratch)
{
    const ddl__call *call = &work->call;
    work->plan = plan;
    work->in = call->send;
    work->out = call->recv;
    work->scratch = scratch;
    work->element = ddl__dtype_size(call->dtype);
    work->wave = 0;
    work->step = 0;
    work->published = 0;
    work->received = work->lost = false;
    work->lands_far = plan->landing >= DDL__FAR_MINIMUM / (int64_t)work->element;
    work->interleaving =
        plan->waves == 1 || plan->bits ? DDL__INTERLEAVE_NEVER : DDL__INTERLEAVE_UNDECIDED;
    work->signature = ddl__signature_of(call, work->sequence);
    if (plan->segment >= LEND_LEAST)
        find_regions(runner, work);
}

/* --------------------------------------------------------------------------------------- steps */

static void copy(const ddl__kernels *kernels, void *dst, const void *src, size_t bytes)
{
    if (bytes < DDL__COPY_MINIMUM)
        memcpy(dst, src, bytes);
    else
        kernels->copy(dst, src, bytes);
}

/* Copy to the caller's buffer, with stores that bypass the caches if the buffer is too long for
 * them. */
static void land(const ddl__runner *runner, const ddl_work *work, void *dst, const void *src,
                 size_t bytes)
{
    if (work->lands_far && bytes >= DDL__COPY_MINIMUM)
        runner->kernels->copy_nontemporal(dst, src, bytes);
    else
        copy(runner->kernels, dst, src, bytes);
}

/* Send memory to the first `n` of runner->targets, which are links of one kind. Zero-copy links can
 * send the memory itself only if no later step overwrites it; otherwise it is first copied to a
 * span. */
static inline bool send_to(ddl__runner *runner, ddl_work *work, const ddl__step *step, unsigned n,
                           const void *memory, size_t bytes)
{
    const ddl__link_ops *ops = runner->targets[0]->ops;
    if (ops->zero_copy && !step->stable) {
        void *span = ops->reserve(runner->targets, n, bytes);
        if (!span)
            return false;
        memcpy(span, memory, bytes);
        ops->publish(runner->targets, n, span, bytes, &work->signature);
    } else if (!ops->send_user(runner->targets, n, memory, bytes, &work->signature)) {
        return false;
    }
    ddl__note_sent(runner, n);
    work->published += n;
    return true;
}

static const ddl__region *region_of(const ddl_work *work, const void *memory, size_t bytes)
{
    for (unsigned i = 0; i < 2; i++)
        if (ddl__region_has(&work->regions[i], memory, bytes))
            return &work->regions[i];
    return NULL;
}

/* Let the next target read the memory in place. If this rank has already stored the result in the
 * target's buffer, report that to the target instead. */
static loan_outcome lend(const ddl__runner *runner, const ddl_work *work, const ddl__step *step,
                         const void *memory, size_t bytes)
{
    ddl__link *link = runner->links[work->plan->ranks[step->target + work->published]];
    if (link->borrowed)
        return link->ops->give_back(link, bytes, &work->signature) ? LOAN_MADE : LOAN_FULL;
    const ddl__region *region =
        step->stable && link->ops->lend ? region_of(work, memory, bytes) : NULL;
    const bool returns = step->returns && step->kind == DDL__PUBLISH;
    return region && link->ops->lend(link, region, memory, bytes, &work->signature, returns)
               ? LOAN_MADE
               : LOAN_REFUSED;
}

/* Return how many of the next n targets precede the first target whose result is stored in
 * place. */
static unsigned count_others(const ddl__runner *runner, unsigned n)
{
    unsigned others = 0;
    while (others < n && !runner->targets[others]->borrowed)
        others++;
    return others;
}

/* Find the buffers in which targets of a reduction want its result, and store them in
 * runner->returns. The operands have been peeked at. Return false if there are none. */
static bool find_returns(ddl__runner *runner, ddl_work *work, const ddl__step *step)
{
    runner->n_returns = 0;
    for (uint32_t i = 0; i < step->targets; i++) {
        ddl__link *link = runner->links[work->plan->ranks[step->target + i]];
        void *memory = link->ops->lend ? link->ops->borrow(link) : NULL;
        if (memory)
            runner->returns[runner->n_returns++] = memory;
    }
    if (runner->n_returns && !work->lends) {
        work->regions[0] = work->regions[1] = (ddl__region){.base = NULL};
        work->lends = true;
    }
    return runner->n_returns;
}

/* Send to the remaining targets, without a copy if possible. */
__attribute__((noinline)) static bool lend_rest(ddl__runner *runner, ddl_work *work,
                                                const ddl__step *step, const void *memory,
                                                size_t bytes)
{
    while (work->published < step->targets) {
        loan_outcome outcome = lend(runner, work, step, memory, bytes);
        if (outcome == LOAN_MADE) {
            work->published++;
            unsigned long long before = atomic_load_explicit(&runner->lent, memory_order_relaxed);
            atomic_store_explicit(&runner->lent, before + bytes, memory_order_relaxed);
            continue;
        }
        unsigned n = count_others(runner, ddl__next_targets(runner, work, step));
        if (outcome == LOAN_FULL || !send_to(runner, work, step, n, memory, bytes))
            return false;
    }
    return true;
}

bool ddl__publish_rest(ddl__runner *runner, ddl_work *work, const ddl__step *step,
                       const void *memory, size_t bytes)
{
    if (work->lends)
        return lend_rest(runner, work, step, memory, bytes);
    while (work->published < step->targets)
        if (!send_to(runner, work, step, ddl__next_targets(runner, work, step), memory, bytes))
            return false;
    return true;
}

static inline bool publish(ddl__runner *runner, ddl_work *work, const ddl__step *step,
                           const void *memory, size_t bytes)
{
    return work->published == step->targets || ddl__publish_rest(runner, work, step, memory, bytes);
}

static void reduce(const ddl__runner *runner, const ddl_work *work, const ddl__step *step,
                   const ddl__fold *fold, void *dst, void *copy, bool nontemporal, int64_t length)
{
    const ddl__call *call = &work->call;
    const int64_t divisor = step->finish ? work->plan->divisor : 1;
    if (!fold) {
        ddl__reduce(runner->kernels, call->dtype, call->op, dst, copy, nontemporal,
                    runner->operands, step->operands, (size_t)length, divisor);
        return;
    }
    ddl__folding folding = {.kernels = runner->kernels,
                            .fold = fold,
                            .dtype = call->dtype,
                            .op = call->op,
                            .wide = call->wide > 1,
                            .widened = !step->finish,
                            .divisor = divisor,
                            .nontemporal = nontemporal};
    ddl__fold_run(&folding, dst, copy, runner->operands, (size_t)length);
}

/* Reduce, and store the result in the targets' buffers. */
__attribute__((noinline)) static bool reduce_and_return(ddl__runner *runner, ddl_work *work,
                                                        const ddl__step *step,
                                                        const ddl__fold *fold, void *kept,
                                                        int64_t length)
{
    size_t bytes = (size_t)length * work->element;
    reduce(runner, work, step, fold, kept, runner->returns[0], false, length);
    for (unsigned i = 1; i < runner->n_returns; i++)
        copy(runner->kernels, runner->returns[i], kept, bytes);
    work->received = ddl__release_operands(runner, work, step);
    return work->received && lend_rest(runner, work, step, kept, bytes);
}

/* Run a reduction or a fold as far as possible. Return true if it is complete. If the targets read
 * this rank's memory, one pass writes the result both to the caller's buffer and to the span. If
 * the result is not kept, it is written only to the span; if user memory is sent, only to the
 * buffer. `fold` is NULL in a reduction, so that inlining removes the code for folds. */
__attribute__((always_inline)) static inline bool run_reduce(ddl__runner *runner, ddl_work *work,
                                                             const ddl__step *step,
                                                             const ddl__fold *fold, int64_t k,
                                                             int64_t length)
{
    size_t bytes = (size_t)length * work->element;
    if (fold && !step->finish)
        bytes *= (size_t)fold->results * work->call.wide;
    unsigned char *kept = step->keep ? ddl__step_destination(work, step, k) : NULL;
    if (!work->received) {
        if (!(fold ? ddl__gather_values(runner, work, step, length, k)
                   : ddl__gather(runner, work, step, bytes, k)))
            return false;
        if (step->returns && bytes >= DDL__LEND_LEAST && find_returns(runner, work, step))
            return reduce_and_return(runner, work, step, fold, kept, length);
        unsigned n = step->targets ? ddl__next_targets(runner, work, step) : 0;
        bool direct =
            n && (!kept || !(step->stable && (runner->targets[0]->ops->zero_copy ||
                                              (work->lends && region_of(work, kept, bytes)))));
        const ddl__link_ops *ops = direct ? runner->targets[0]->ops : NULL;
        void *span = direct ? ops->reserve(runner->targets, n, bytes) : NULL;
        if (direct && !span)
            return false;

        bool nontemporal = span && kept && bytes >= DDL__COPY_MINIMUM &&
                           ddl__links_nontemporal(runner->targets, n, bytes);
        reduce(runner, work, step, fold, kept ? kept : span, kept ? span : NULL, nontemporal,
               length);
        if (!ddl__release_operands(runner, work, step))
            return false;
        if (direct) {
            ops->publish(runner->targets, n, span, bytes, &work->signature);
            ddl__note_sent(runner, n);
            work->published += n;
        }
        work->received = true;
    }
    return publish(runner, work, step, kept, bytes);
}

static bool take(ddl__runner *runner, ddl_work *work, ddl__link *link, void *dst, size_t bytes)
{
    const void *span = ddl__step_peek(runner, link, dst, bytes, &work->signature);
    if (!span)
        return false;
    if (span != dst)
        land(runner, work, dst, span, bytes);
    return link->ops->release(link);
}

static bool run_take(ddl__runner *runner, ddl_work *work, const ddl__step *step, int64_t k,
                     int64_t length)
{
    size_t bytes = (size_t)length * work->element;
    unsigned char *dst = ddl__step_destination(work, step, k);
    if (!work->received) {
        ddl__link *link = runner->links[work->plan->ranks[step->operand]];
        if (!take(runner, work, link, dst, bytes))
            return false;
        work->received = true;
    }
    return publish(runner, work, step, dst, bytes);
}

static bool run_step(ddl__runner *runner, ddl_work *work, const ddl__step *step, int64_t k,
                     int64_t length)
{
    size_t bytes = (size_t)length * work->element;
    switch ((ddl__step_kind)step->kind) {
    case DDL__PUBLISH: return publish(runner, work, step, ddl__step_source(work, step, k), bytes);
    case DDL__REDUCE: return run_reduce(runner, work, step, NULL, k, length);
    case DDL__FOLD: return run_reduce(runner, work, step, work->plan->folds[step->fold], k, length);
    case DDL__TAKE: return run_take(runner, work, step, k, length);
    case DDL__PACK:
    case DDL__REDUCE_PACK:
    case DDL__UNPACK:
    case DDL__ADD_UNPACKED: return ddl__packed_run(runner, work, step, k, length);
    case DDL__COPY:
        if (step->rounds)
            return ddl__packed_run(runner, work, step, k, length);
        land(runner, work, ddl__step_destination(work, step, k), ddl__step_source(work, step, k),
             bytes);
        return true;
    }
    return true;
}

/* Return true if no link uses user memory. */
static inline bool flush(ddl__runner *runner, const ddl_work *work)
{
    bool empty = !work->lends || ddl__loans_flush(runner);
    for (unsigned i = 0; i < runner->n_unflushed;) {
        ddl__link *link = runner->unflushed[i];
        if (link->ops->flush(link) == DDL__LINK_SENDING) {
            i++;
            continue;
        }
        link->unflushed = false;
        runner->unflushed[i] = runner->unflushed[--runner->n_unflushed];
    }
    return empty && !runner->n_unflushed;
}

ddl__progress ddl__run(ddl__runner *runner, ddl_work *work)
{
    const ddl__plan *plan = work->plan;
    unsigned done = 0, together;
    if (work->lost)
        return DDL__BLOCKED;
    for (; work->wave < plan->waves; work->wave++, work->step = 0) {
        for (; work->step < plan->n_steps; work->step++) {
            const ddl__step *step = &plan->steps[work->step];
            int64_t k = work->wave - step->skew, length = ddl__segment_length(step, k);
            if (length == 0)
                continue;
            if (work->interleaving && done < SLICE &&
                (together = ddl__interleave_run(runner, work))) {
                done += together;
                continue;
            }
            if (work->call.blocks && !work->call.order)
                ddl__sign_block(&work->signature, step->count);
            if (done >= SLICE || !run_step(runner, work, step, k, length)) {
                flush(runner, work);
                return done ? DDL__MOVED : DDL__BLOCKED;
            }
            work->published = 0;
            work->received = false;
            done++;
        }
    }
    return flush(runner, work) ? DDL__FINISHED : done ? DDL__MOVED : DDL__BLOCKED;
}

/* ------------------------------------------------------------------------------------- failures */

static ddl__link *failed(ddl__runner *runner, uint32_t candidate, int *rank)
{
    ddl__link *link = runner->links[candidate];
    *rank = (int)candidate;
    return link && link->state != DDL__LINK_OPEN ? link : NULL;
}

ddl__link *ddl__run_blocking_peer(ddl__runner *runner, const ddl_work *work, int *rank)
{
    ddl__link *link;
    const ddl__plan *plan = work->plan;
    if (work->wave >= plan->waves) { /* only user memory is left to send */
        for (int i = 0; i < runner->size; i++)
            if ((link = failed(runner, (uint32_t)i, rank)) && !link->ops->flush(link))
                return link;
        return NULL;
    }
    const ddl__step *step = &plan->steps[work->step];
    int64_t k = work->wave - step->skew;
    int64_t length = ddl__segment_length(step, k);
    /* A peer that left or died after it published this step's operands does not block the work. */
    for (uint32_t i = 0; !work->received && i < step->operands; i++)
        if ((link = failed(runner, plan->ranks[step->operand + i], rank)) &&
            (step->kind == DDL__TAKE || step->kind == DDL__UNPACK || work->lost ||
             !ddl__step_peek(runner, link, NULL, ddl__operand_bytes(work, step, i, length),
                             &work->signature)))
            return link;
    for (uint32_t i = work->published; i < step->targets; i++)
        if ((link = failed(runner, plan->ranks[step->target + i], rank)))
            return link;
    /* A peer that will not read its spans blocks the memory that this step needs for publishing. */
    for (int i = 0; work->published < step->targets && i < runner->size; i++)
        if ((link = failed(runner, (uint32_t)i, rank)) &&
            link->ops->flush(link) != DDL__LINK_DRAINED)
            return link;
    return NULL;
}

bool ddl__loans_flush(const ddl__runner *runner)
{
    bool empty = true;
    for (int i = 0; i < runner->size; i++)
        if (runner->links[i] && runner->links[i]->ops->lend)
            empty = runner->links[i]->ops->flush(runner->links[i]) && empty;
    return empty;
}

void ddl__loans_abandon(const ddl__runner *runner, const ddl_work *work)
{
    if (work->call.hold) /* a device owns this memory, and its contents no longer matter */
        return;
    if (work->lends && work->plan->returns && work->regions[1].base && !ddl__loans_flush(runner))
        ddl__region_detach(runner->regions, &work->regions[1], work->out,
                           (size_t)work->call.count * work->element);
}
