/* SPDX-License-Identifier: Apache-2.0 */
/* Interleaved steps.
 *
 * Ranks that share memory send, reduce and take in each wave. Sending waits for cache lines that
 * the reader's core owns. Taking waits for lines that the writer's core owns. With buffers longer
 * than the caches, all three wait for memory. A core can have only a limited number of lines in
 * flight in each direction. If it runs the steps one after the other, it uses one direction at a
 * time. If it alternates between the steps after every few cache lines, it uses all directions at
 * once.
 *
 * With buffers that fit into the caches, alternating costs more than it gains, unless the cores are
 * far apart: then stores of spans bypass the caches. Even then only an all-reduce gains, because it
 * sends, reduces and takes. The other operations lose at all lengths: nearly all of their stores
 * bypass the caches, and a core that alternates between several such streams stores at half the
 * rate.
 *
 * A step is interleaved with others if its spans have arrived, if there is room for the spans that
 * it sends, and if it is independent: it neither writes memory that an earlier step reads or
 * writes, nor reads memory that an earlier step writes. Each step does what it would do alone,
 * element by element, so the results are the same. Spans are published after the last turn. A step
 * waits briefly for a missing span. After a wait that failed, steps do not wait at all for some
 * time.
 *
 * Interleaved steps are not timed. Therefore one of LEARN waves runs step by step, so that the
 * faster kind of stores can be learned (stores.h). */

#include <string.h>

#include "engine/executor/steps.h"
#include "net/shm/stores.h"

enum {
    /* The maximum number of ranks for interleaving. With more ranks, each sends to several ranks at
     * a time. With interleaving, four ranks on two cores took 1.25 times as long; four ranks with a
     * core each were not measured. */
    RANKS = 2,
    CURSORS = 4,
    LEAST_WAVES = 8,
    SHORTEST = 16 * 1024,    /* minimum bytes of one step */
    LONG = 32 * 1024 * 1024, /* minimum bytes of all steps together for interleaving to be faster */
    LONG_NEAR = 1024 * 1024, /* the minimum bytes if the rings are in second-level caches */
    LEAST_WAVES_NONTEMPORAL = 3,
    LONG_NONTEMPORAL = 3 * 512 * 1024, /* the minimum bytes with non-temporal stores: all steps of a
                                          1 MiB all-reduce together */
    SPIN_BUDGET = 2000,                /* polls for a missing span: some tens of microseconds */
    /* maximum number of calls that return without waiting after a failed wait */
    CLAIM_BACKOFF_MAX = 256,
    TURN = 2 * DDL__LINES,
    TURN_NONTEMPORAL = DDL__LINES, /* in operations of LONG bytes */
    LINE = 64,
    LEARN = 8 /* one wave of this many runs step by step */
};

_Static_assert((int)SHORTEST > (int)DDL__LINK_SHORT, "not among a link's own words");

/* A step that is interleaved with others, and its progress. */
typedef struct step_cursor {
    const ddl__step *step;
    int64_t k;
    const char *from;       /* source of a copy; a reduction has operands instead */
    char *to, *span;        /* first destination, and second one, or NULL */
    size_t bytes, at;       /* at: number of bytes that are done */
    ddl__reduce_fn *reduce; /* NULL: the step copies */
    int64_t divisor;
    ddl__copy_fn *store; /* stores into the span, or stores a copy */
    const char *read;    /* the part of the caller's buffers that the step reads; or NULL */
    char *written;       /* the part of the caller's buffers that the step writes; or NULL */
} step_cursor;

static bool ranges_overlap(const char *a, const char *b, size_t bytes_a, size_t bytes_b)
{
    return a && b && (uintptr_t)a < (uintptr_t)b + bytes_b && (uintptr_t)b < (uintptr_t)a + bytes_a;
}

static bool cursor_is_independent(const step_cursor *cursors, unsigned n, const step_cursor *s)
{
    for (const step_cursor *other = cursors; other < cursors + n; other++)
        if (ranges_overlap(s->written, other->read, s->bytes, other->bytes) ||
            ranges_overlap(s->written, other->written, s->bytes, other->bytes) ||
            ranges_overlap(s->read, other->written, s->bytes, other->bytes) ||
            (s->step->kind == DDL__REDUCE && other->step->kind == DDL__REDUCE))
            return false; /* the runner has one array of operands */
    return true;
}

static bool cursor_find_operands(ddl__runner *runner, ddl_work *work, step_cursor *s)
{
    const uint32_t *ranks = work->plan->ranks + s->step->operand;
    if (s->step->kind == DDL__REDUCE) {
        if (!ddl__gather(runner, work, s->step, s->bytes, s->k))
            return false;
    } else if (s->step->operands) {
        s->from = ddl__step_peek(runner, runner->links[ranks[0]], NULL, s->bytes, &work->signature);
        if (!s->from)
            return false;
    }
    return true;
}

/* Reserve room for the span that the step sends to all targets. Return false if there is none. */
static bool cursor_reserve(ddl__runner *runner, ddl_work *work, step_cursor *s)
{
    unsigned n = s->step->targets;
    if (!n)
        return true;
    if (ddl__next_targets(runner, work, s->step) < n)
        return false;
    s->span = runner->targets[0]->ops->reserve(runner->targets, n, s->bytes);
    if (s->span && ddl__links_nontemporal(runner->targets, n, s->bytes))
        s->store = runner->kernels->copy_nontemporal_lines;
    return s->span;
}

static void cursor_init(const ddl_work *work, step_cursor *s)
{
    bool reduces = s->step->kind == DDL__REDUCE, takes = s->step->kind == DDL__TAKE;
    s->from = (const char *)ddl__step_source(work, s->step, s->k);
    s->read = takes ? NULL : s->from;
    if (takes || s->step->kind == DDL__COPY || (reduces && s->step->keep))
        s->written = (char *)ddl__step_destination(work, s->step, s->k);
}

/* Get the operands and the room that the step needs. Return false, with nothing changed, if one is
 * missing. */
static bool cursor_claim(ddl__runner *runner, ddl_work *work, step_cursor *s)
{
    const ddl__step *step = s->step;
    const ddl__kernels *kernels = runner->kernels;
    bool reduces = step->kind == DDL__REDUCE, lands = s->written && !reduces;
    if (step->kind == DDL__TAKE && step->targets) /* run.c may forward it without a copy */
        return false;
    s->reduce = reduces ? kernels->reduce[work->call.dtype][work->call.op] : NULL;
    s->divisor = step->finish ? work->plan->divisor : 1;
    s->store = lands && work->lands_far ? kernels->copy_nontemporal_lines : kernels->copy_lines;
    if (!cursor_find_operands(runner, work, s) || !cursor_reserve(runner, work, s))
        return false;
    s->to = s->written;
    if (!s->to) {
        s->to = s->span;
        s->span = NULL;
    }
    const uint32_t *ranks = work->plan->ranks + step->operand;
    for (uint32_t i = 0; i < step->operands; i++)
        if (runner->links[ranks[i]])
            runner->ahead++;
    return true;
}

/* ------------------------------------------------------------------------------------ in turn */

static inline void cursor_reduce(const ddl__runner *runner, step_cursor *s, size_t count)
{
    s->reduce(s->to + s->at, runner->operands, s->step->operands, count, s->divisor);
}

static inline void cursor_advance(const ddl__runner *runner, step_cursor *s, size_t bytes,
                                  size_t count)
{
    char *to = s->to + s->at;
    if (s->reduce) {
        cursor_reduce(runner, s, count);
        for (uint32_t i = 0; i < s->step->operands; i++)
            runner->operands[i] = (const char *)runner->operands[i] + bytes;
    } else {
        s->store(to, s->from + s->at, bytes);
    }
    if (s->span)
        s->store(s->span + s->at, to, bytes);
    s->at += bytes;
}

/* Process less than a turn: the end of a step, or the start of a copy up to the first cache line
 * boundary of its destination. Spans are aligned. */
static void cursor_advance_partly(const ddl__runner *runner, step_cursor *s, size_t bytes,
                                  size_t element)
{
    bytes = bytes < s->bytes - s->at ? bytes : s->bytes - s->at;
    if (!bytes)
        return;
    if (s->reduce)
        cursor_reduce(runner, s, bytes / element);
    else
        memcpy(s->to + s->at, s->from + s->at, bytes);
    if (s->span)
        memcpy(s->span + s->at, s->to + s->at, bytes);
    s->at += bytes;
}

static void cursors_run(const ddl__runner *runner, step_cursor *cursors, unsigned n, size_t element,
                        bool is_long)
{
    size_t bytes = TURN;
    for (step_cursor *s = cursors; s < cursors + n; s++)
        if (is_long && s->store == runner->kernels->copy_nontemporal_lines)
            bytes = TURN_NONTEMPORAL;
    size_t count = bytes / element;
    for (step_cursor *s = cursors; s < cursors + n; s++)
        if (!s->reduce)
            cursor_advance_partly(runner, s, -(uintptr_t)s->to % LINE, element);
    for (bool more = true; more;) {
        more = false;
        for (step_cursor *s = cursors; s < cursors + n; s++)
            if (s->bytes - s->at >= bytes) {
                cursor_advance(runner, s, bytes, count);
                more = true;
            }
    }
    for (step_cursor *s = cursors; s < cursors + n; s++)
        cursor_advance_partly(runner, s, bytes, element);
    /* copy 0 bytes, only to execute the store fence */
    runner->kernels->copy_nontemporal(cursors->to, cursors->to, 0);
}

/* Complete the step. Return false if its result may be wrong; it then sends nothing more. */
static bool cursor_finish(ddl__runner *runner, ddl_work *work, const step_cursor *s)
{
    if (!ddl__release_operands(runner, work, s->step))
        return false;
    unsigned n = s->step->targets ? ddl__next_targets(runner, work, s->step) : 0;
    if (n)
        runner->targets[0]->ops->publish(runner->targets, n, s->span ? s->span : s->to, s->bytes,
                                         &work->signature);
    return true;
}

/* Stop the work at this step, which can never complete. */
static unsigned stay_at(ddl_work *work, const step_cursor *s)
{
    work->interleaving = DDL__INTERLEAVE_NEVER;
    work->step = (uint32_t)(s->step - work->plan->steps) - 1; /* the caller advances by one step */
    return 1;
}

/* Find the first step from *from on that has a segment in this wave. Return false if there is none
 * or if it is too short. */
static bool cursor_next(const ddl_work *work, uint32_t *from, step_cursor *s)
{
    for (; *from < work->plan->n_steps; ++*from) {
        const ddl__step *step = &work->plan->steps[*from];
        int64_t k = work->wave - step->skew;
        size_t bytes = (size_t)ddl__segment_length(step, k) * work->element;
        *s = (step_cursor){.step = step, .k = k, .bytes = bytes};
        if (bytes)
            return bytes >= SHORTEST;
    }
    return false;
}

static const ddl__link *peer(const ddl__runner *runner)
{
    return runner->links[1 - runner->rank];
}

/* Claim the step, with up to SPIN_BUDGET attempts. The limit is low because claimed steps are not
 * sent meanwhile, and the peer may wait for them if its plan takes them in the same wave. */
static bool cursor_await(ddl__runner *runner, ddl_work *work, bool first, step_cursor *s)
{
    ddl__backoff *claim_backoff = &runner->claim_backoff;
    for (int looks = 0; !cursor_claim(runner, work, s); looks++) {
        if (first || claim_backoff->left || peer(runner)->state != DDL__LINK_OPEN)
            return false;
        if (looks == SPIN_BUDGET) {
            claim_backoff->length = claim_backoff->length < CLAIM_BACKOFF_MAX / 2
                                        ? 2 * claim_backoff->length + 1
                                        : CLAIM_BACKOFF_MAX;
            claim_backoff->left = claim_backoff->length + 1; /* this call is counted, too */
            return false;
        }
        ddl__pause();
    }
    return true;
}

/* Decide if the steps of a plan with elements of `element` bytes run interleaved. */
static ddl__interleaving plan_interleaving(const ddl__runner *runner, const ddl__plan *plan,
                                           size_t element)
{
    const int64_t is_long = runner->rings_are_near ? LONG_NEAR : LONG;
    int64_t bytes = 0;
    bool all_reduces = false;
    if (plan->n_steps < 2 || plan->waves < LEAST_WAVES_NONTEMPORAL)
        return DDL__INTERLEAVE_NEVER;
    for (const ddl__step *step = plan->steps; step < plan->steps + plan->n_steps; step++) {
        if (step->kind == DDL__FOLD)
            return DDL__INTERLEAVE_NEVER;
        bytes += step->count * (int64_t)element;
        all_reduces = all_reduces || (step->kind == DDL__REDUCE && step->targets);
    }
    if (bytes >= is_long && plan->waves >= LEAST_WAVES)
        return all_reduces ? DDL__INTERLEAVE_ALWAYS : DDL__INTERLEAVE_PLAIN;
    return all_reduces && bytes >= LONG_NONTEMPORAL ? DDL__INTERLEAVE_NONTEMPORAL
                                                    : DDL__INTERLEAVE_NEVER;
}

/* Return true if the steps must not be interleaved with the kind of stores (plain or non-temporal)
 * that is now used for spans of the current step's length. */
static bool stores_forbid(const ddl__runner *runner, const ddl_work *work)
{
    if (work->interleaving == DDL__INTERLEAVE_ALWAYS)
        return false;
    const ddl__step *step = &work->plan->steps[work->step];
    size_t bytes = (size_t)ddl__segment_length(step, work->wave - step->skew) * work->element;
    ddl__link *to = runner->links[1 - runner->rank];
    to->from_memory = work->plan->waves >= DDL__MEMORY_WAVES;
    bool nontemporal = ddl__links_nontemporal(&to, 1, bytes);
    return nontemporal != (work->interleaving == DDL__INTERLEAVE_NONTEMPORAL);
}

unsigned ddl__interleave_run(ddl__runner *runner, ddl_work *work)
{
    step_cursor cursors[CURSORS];
    unsigned n = 0;
    uint32_t last = work->step, next = work->step;
    if (work->interleaving == DDL__INTERLEAVE_UNDECIDED)
        work->interleaving = plan_interleaving(runner, work->plan, work->element);
    if (work->interleaving == DDL__INTERLEAVE_NEVER || runner->size != RANKS ||
        !peer(runner)->shared || runner->among_frames || work->call.blocks || work->received ||
        work->published || work->wave % LEARN == 0 || stores_forbid(runner, work))
        return 0;
    for (; n < CURSORS && cursor_next(work, &next, &cursors[n]); n++) {
        cursor_init(work, &cursors[n]);
        if (!cursor_is_independent(cursors, n, &cursors[n]) ||
            !cursor_await(runner, work, n == 0, &cursors[n]))
            break;
        last = next++;
    }
    runner->ahead = 0;
    if (!n)
        return 0;
    ddl__backoff_pass(&runner->claim_backoff, true);
    cursors_run(runner, cursors, n, work->element, work->interleaving == DDL__INTERLEAVE_ALWAYS);
    for (unsigned i = 0; i < n; i++)
        if (!cursor_finish(runner, work, &cursors[i]))
            return stay_at(work, &cursors[i]);
    work->step = last;
    return n;
}
