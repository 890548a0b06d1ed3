/* Steps that run together, a few cache lines of each in turn.
 *
 * Ranks that share memory send, reduce and take in each wave. To send is to wait for lines that the
 * reader's core has, to take for lines of the writer's, and where buffers are longer than caches
 * all wait for memory: each way there is only so much under way at a time. Done one after the
 * other, a core uses one way while the others rest; in turn, it has something under way on all.
 * Where the buffers fit into caches, taking turns costs more than that gains, unless the cores are
 * far from each other: then spans are streamed, past all caches. Even so only an all-reduce gains,
 * which sends, reduces and takes.
 *
 * Which steps: those whose spans have come and have room, in their order, and none that touches
 * memory that one before it writes, or writes what one before it reads. Each does what it would do
 * alone, element by element, so results are the same; what it sends is published after the last
 * round of turns. What has not come is waited for, a moment only, and not when that was in vain
 * lately: the steps that have it run at once then.
 *
 * Nothing here is timed, so each few waves are left to run step by step, which learn how to store
 * (stores.h).
 */
#include "engine/braid.h"

#include <string.h>

#include "base/pause.h"
#include "engine/steps.h"

enum {
    /* Of more ranks than that each sends to several at a time: four on two cores took 1.25 times as
     * long so. With a core for each it was not measured. */
    RANKS = 2,
    STRANDS = 4,
    LEAST_WAVES = 8,
    SHORTEST = 16 * 1024,    /* bytes of a step, */
    LONG = 32 * 1024 * 1024, /* and of all steps, from which on this pays */
    LEAST_WAVES_STREAMED = 3,
    LONG_STREAMED = 3 * 512 * 1024, /* of an all-reduce whose spans are streamed: 1 MiB */
    SPIN_BUDGET = 2000,             /* looks for what has not come: some tens of microseconds */
    CLAIM_BACKOFF_MAX = 256, /* braids that wait for nothing, after some that waited in vain */
    TURN = 2 * DDL__LINES,
    TURN_STREAMED = DDL__LINES, /* of what is LONG */
    LINE = 64,
    LEARN = 8 /* of so many waves one is not braided */
};

_Static_assert((int)SHORTEST > (int)DDL__LINK_SHORT, "not among a link's own words");

/* One step of a braid. */
typedef struct strand {
    const ddl__step *step;
    int64_t k;
    const char *from;       /* the memory that is read, but for the operands of a reduction */
    char *to, *span;        /* stored first; and then, or NULL */
    size_t bytes, at;       /* at: done */
    ddl__reduce_fn *reduce; /* or NULL */
    int64_t divisor;
    ddl__copy_fn *store; /* into `span`, or what is copied */
    const char *read;    /* of the work's buffers; or NULL, as: */
    char *written;
} strand;

static bool overlap(const char *a, const char *b, size_t bytes_a, size_t bytes_b)
{
    return a && b && (uintptr_t)a < (uintptr_t)b + bytes_b && (uintptr_t)b < (uintptr_t)a + bytes_a;
}

static bool independent(const strand *strands, unsigned n, const strand *s)
{
    for (const strand *other = strands; other < strands + n; other++)
        if (overlap(s->written, other->read, s->bytes, other->bytes) ||
            overlap(s->written, other->written, s->bytes, other->bytes) ||
            overlap(s->read, other->written, s->bytes, other->bytes) ||
            (s->step->kind == DDL__REDUCE && other->step->kind == DDL__REDUCE))
            return false; /* there is one array of operands */
    return true;
}

static bool has_operands(ddl__runner *runner, ddl_work *work, strand *s)
{
    const uint32_t *ranks = work->plan->ranks + s->step->operand;
    if (s->step->kind == DDL__REDUCE) {
        if (!ddl__gather(runner, work, s->step, s->bytes, s->k))
            return false;
    } else if (s->step->operands) {
        s->from = ddl__step_peek(runner, runner->links[ranks[0]], s->bytes, &work->signature);
        if (!s->from)
            return false;
    }
    return true;
}

/* Room for what it sends, to all targets at once, or false. */
static bool reserve(ddl__runner *runner, ddl_work *work, strand *s)
{
    unsigned n = s->step->targets;
    if (!n)
        return true;
    if (ddl__next_targets(runner, work, s->step) < n)
        return false;
    s->span = runner->targets[0]->ops->reserve(runner->targets, n, s->bytes);
    if (s->span && ddl__streams(runner, work, s->step, n, s->bytes))
        s->store = runner->kernels->stream_lines;
    return s->span;
}

static void describe(const ddl_work *work, strand *s)
{
    bool reduces = s->step->kind == DDL__REDUCE, takes = s->step->kind == DDL__TAKE;
    s->from = (const char *)ddl__step_source(work, s->step, s->k);
    s->read = takes ? NULL : s->from;
    if (takes || s->step->kind == DDL__COPY || (reduces && s->step->keep))
        s->written = (char *)ddl__step_destination(work, s->step, s->k);
}

/* Have its operands and room for what it sends, or leave all as it was. */
static bool claim(ddl__runner *runner, ddl_work *work, strand *s)
{
    const ddl__step *step = s->step;
    const ddl__kernels *kernels = runner->kernels;
    bool reduces = step->kind == DDL__REDUCE, lands = s->written && !reduces;
    if (step->kind == DDL__TAKE && step->targets) /* passing on may be lending */
        return false;
    s->reduce = reduces ? kernels->reduce[work->call.dtype][work->call.op] : NULL;
    s->divisor = step->finish ? runner->size : 1;
    s->store = lands && work->lands_far ? kernels->stream_lines : kernels->copy_lines;
    if (!has_operands(runner, work, s) || !reserve(runner, work, s))
        return false;
    s->to = s->written;
    if (!s->to) {
        s->to = s->span;
        s->span = NULL;
    }
    const uint32_t *ranks = work->plan->ranks + step->operand;
    for (uint32_t i = 0; i < step->operands; i++)
        if (runner->links[ranks[i]])
            runner->links[ranks[i]]->ops->hold(runner->links[ranks[i]]);
    return true;
}

/* ------------------------------------------------------------------------------------ in turn */

static inline void reduce(const ddl__runner *runner, strand *s, size_t count)
{
    s->reduce(s->to + s->at, runner->operands, s->step->operands, count, s->divisor);
}

static inline void turn(const ddl__runner *runner, strand *s, size_t bytes, size_t count)
{
    char *to = s->to + s->at;
    if (s->reduce) {
        reduce(runner, s, count);
        for (uint32_t i = 0; i < s->step->operands; i++)
            runner->operands[i] = (const char *)runner->operands[i] + bytes;
    } else {
        s->store(to, s->from + s->at, bytes);
    }
    if (s->span)
        s->store(s->span + s->at, to, bytes);
    s->at += bytes;
}

/* What fills no turn, so that those of a copy begin where a cache line does. Spans begin there. */
static void part(const ddl__runner *runner, strand *s, size_t bytes, size_t element)
{
    bytes = bytes < s->bytes - s->at ? bytes : s->bytes - s->at;
    if (!bytes)
        return;
    if (s->reduce)
        reduce(runner, s, bytes / element);
    else
        memcpy(s->to + s->at, s->from + s->at, bytes);
    if (s->span)
        memcpy(s->span + s->at, s->to + s->at, bytes);
    s->at += bytes;
}

static void run_in_turn(const ddl__runner *runner, strand *strands, unsigned n, size_t element,
                        bool is_long)
{
    size_t bytes = TURN;
    for (strand *s = strands; s < strands + n; s++)
        if (is_long && s->store == runner->kernels->stream_lines)
            bytes = TURN_STREAMED;
    size_t count = bytes / element;
    for (strand *s = strands; s < strands + n; s++)
        if (!s->reduce)
            part(runner, s, -(uintptr_t)s->to % LINE, element);
    for (bool more = true; more;) {
        more = false;
        for (strand *s = strands; s < strands + n; s++)
            if (s->bytes - s->at >= bytes) {
                turn(runner, s, bytes, count);
                more = true;
            }
    }
    for (strand *s = strands; s < strands + n; s++)
        part(runner, s, bytes, element);
    runner->kernels->stream(strands->to, strands->to, 0); /* the fence of those that stream */
}

static void finish(ddl__runner *runner, ddl_work *work, const strand *s)
{
    unsigned n = s->step->targets ? ddl__next_targets(runner, work, s->step) : 0;
    if (n)
        runner->targets[0]->ops->publish(runner->targets, n, s->span ? s->span : s->to, s->bytes,
                                         &work->signature);
    ddl__release_operands(runner, work, s->step);
}

/* A step of the work from `from` on that has something to do in this wave, as a strand. */
static bool next_strand(const ddl_work *work, uint32_t *from, strand *s)
{
    for (; *from < work->plan->n_steps; ++*from) {
        const ddl__step *step = &work->plan->steps[*from];
        int64_t k = work->wave - step->skew;
        size_t bytes = (size_t)ddl__segment_length(step, k) * work->element;
        *s = (strand){.step = step, .k = k, .bytes = bytes};
        if (bytes)
            return bytes >= SHORTEST;
    }
    return false;
}

static const ddl__link *peer(const ddl__runner *runner)
{
    return runner->links[1 - runner->rank];
}

/* Claim it, after a moment if need be. No longer: meanwhile what is claimed is not sent, and the
 * peer may wait for that, where a plan has it taken in the wave that sends it. */
static bool await_claim(ddl__runner *runner, ddl_work *work, bool first, strand *s)
{
    ddl__backoff *claim_backoff = &runner->claim_backoff;
    for (int looks = 0; !claim(runner, work, s); looks++) {
        if (first || claim_backoff->left || peer(runner)->state != DDL__LINK_OPEN)
            return false;
        if (looks == SPIN_BUDGET) {
            claim_backoff->length = claim_backoff->length < CLAIM_BACKOFF_MAX / 2
                                        ? 2 * claim_backoff->length + 1
                                        : CLAIM_BACKOFF_MAX;
            claim_backoff->left = claim_backoff->length + 1; /* with this one */
            return false;
        }
        ddl__pause();
    }
    return true;
}

ddl__braiding ddl__braids(const ddl__plan *plan, size_t element)
{
    int64_t bytes = 0;
    bool all_reduces = false;
    if (plan->n_steps < 2 || plan->waves < LEAST_WAVES_STREAMED)
        return DDL__APART;
    for (const ddl__step *step = plan->steps; step < plan->steps + plan->n_steps; step++) {
        bytes += step->count * (int64_t)element;
        all_reduces = all_reduces || (step->kind == DDL__REDUCE && step->targets);
    }
    if (bytes >= LONG && plan->waves >= LEAST_WAVES)
        return DDL__TOGETHER;
    return all_reduces && bytes >= LONG_STREAMED ? DDL__STREAMED_TOGETHER : DDL__APART;
}

/* Whether spans as long as the present step's are streamed to the peer. */
static bool streams(const ddl__runner *runner, const ddl_work *work)
{
    const ddl__step *step = &work->plan->steps[work->step];
    size_t bytes = (size_t)ddl__segment_length(step, work->wave - step->skew) * work->element;
    return runner->stores[1 - runner->rank][ddl__stores_class(bytes)].streaming;
}

unsigned ddl__braid(ddl__runner *runner, ddl_work *work)
{
    strand strands[STRANDS];
    unsigned n = 0;
    uint32_t last = work->step, next = work->step;
    if (runner->size != RANKS || !peer(runner)->ops->shared || runner->among_frames ||
        runner->meter || work->call.blocks || work->received || work->published ||
        work->wave % LEARN == 0 ||
        (work->braids == DDL__STREAMED_TOGETHER && !streams(runner, work)))
        return 0;
    for (; n < STRANDS && next_strand(work, &next, &strands[n]); n++) {
        describe(work, &strands[n]);
        if (!independent(strands, n, &strands[n]) ||
            !await_claim(runner, work, n == 0, &strands[n]))
            break;
        last = next++;
    }
    if (!n)
        return 0;
    ddl__backoff_pass(&runner->claim_backoff, true);
    run_in_turn(runner, strands, n, work->element, work->braids == DDL__TOGETHER);
    for (unsigned i = 0; i < n; i++)
        finish(runner, work, &strands[i]);
    work->step = last;
    return n;
}
