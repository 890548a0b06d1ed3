/* SPDX-License-Identifier: Apache-2.0 */
/* plan_simulator.h - the plans of all ranks, executed in one process without sockets or threads.
 *
 * The operator is a hash that neither commutes nor associates, and finishing a reduction scrambles
 * it, so a result is right only if every contribution came once and in order, and was finished
 * once. Where no order is defined, it is a plain sum. Links have only as much room as plan.h
 * requires. Spans that a link may lend are compared when they arrive. */
#ifndef DDL_TESTS_PLAN_SIMULATOR_H
#define DDL_TESTS_PLAN_SIMULATOR_H

#include "plan_spans.h"

enum { RANKS_MAX = 64 }; /* more only in reductions to all */

/* A rank's connection with another one: the spans from it, and the spans to it that have separate
 * memory. */
typedef struct peer {
    struct peer *next;
    uint32_t rank;
    queue from;
    outlet to;
} peer;

typedef struct simulated_rank {
    ddl__plan *plan;
    int parts; /* of an ordered sum, one after another in `in` */
    ddl__order_part part[RANKS_MAX];
    bool in_place;
    int64_t in_count, out_count, part_count; /* part_count: of one part, in results */
    uint64_t *in, *out;                      /* the same in place */
    uint64_t *scratch;
    ddl__share to[RANKS_MAX], from[RANKS_MAX];
    int64_t wave, sent, wires; /* bytes; of those to other hosts */
    uint32_t step;
    uint64_t heard;
    peer *peers[RANKS_MAX]; /* by the number, modulo RANKS_MAX */
} simulated_rank;

typedef struct world {
    ddl__request request; /* rank and blocks: unused */
    uint64_t uneven;      /* tells uneven blocks from others; 0: even */
    int64_t window;
    unsigned queue_room, queue_most;
    bool in_any_order; /* adding by a plain sum */
    bool any_result;   /* rank 0's result counts as right, since the order is not defined */
    bool one_window;   /* all ranks share memory, whatever the topology says */
    bool wide_wires;   /* the window applies to shared memory alone */
    simulated_rank *ranks;
    const char *error; /* the first */
} world;

static uint64_t add(const world *w, uint64_t a, uint64_t b)
{
    return w->in_any_order ? a + b : combine(a, b);
}

/* Round a value as the wire formats do: a second rounding changes nothing. */
static uint64_t rounded(uint64_t value)
{
    return value | 0xff;
}

static void round_all(uint64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = rounded(values[i]);
}

/* Element i reduced over all ranks, from `first` on, modulo the size. */
static uint64_t reduced(const world *w, int first, int64_t i)
{
    int size = w->request.size;
    uint64_t value = input(first % size, i);
    for (int r = 1; r < size; r++)
        value = combine(value, input((first + r) % size, i));
    return size == 1 ? value : scramble(value);
}

/* --------------------------------------------------------------------------------------- world */

static peer *peer_of(const world *w, uint32_t rank, uint32_t other)
{
    peer **first = &w->ranks[rank].peers[other % RANKS_MAX], *p = *first;
    while (p && p->rank != other)
        p = p->next;
    if (p)
        return p;
    p = calloc(1, sizeof *p);
    CHECK(p, "out of memory");
    p->next = *first;
    p->rank = other;
    p->to.end = &p->to.oldest;
    return *first = p;
}

static queue *queue_of(const world *w, uint32_t from, uint32_t to)
{
    return &peer_of(w, to, from)->from;
}

/* A span to several ranks is stored once if all share memory. Pairwise exchanges get one window for
 * all peers on wires too, because some peers may share memory. */
static bool has_one_outlet(const world *w)
{
    return w->one_window || w->request.all_shared || w->request.kind >= DDL__GATHER;
}

static bool on_one_host(const world *w, uint32_t from, uint32_t to)
{
    const ddl__topology *t = w->request.topology;
    return t && ddl__topology_group(t, DDL__HOSTS, (int)from) ==
                    ddl__topology_group(t, DDL__HOSTS, (int)to);
}

/* True if rank `to` reads the memory of rank `from`: all ranks do, or those of its host. */
static bool reads_memory(const world *w, uint32_t from, uint32_t to)
{
    return has_one_outlet(w) || on_one_host(w, from, to);
}

/* Return the outlet between two ranks. A rank's outlet to itself is its memory. */
static outlet *outlet_of(const world *w, uint32_t from, uint32_t to)
{
    return &peer_of(w, from, reads_memory(w, from, to) ? from : to)->to;
}

static bool is_rooted(const ddl__request *request)
{
    return request->kind == DDL__REDUCE_TO_ROOT || request->kind == DDL__GATHER ||
           request->kind == DDL__SCATTER;
}

/* Elements that rank a has for rank b, in operations with blocks. */
static int64_t pair_count(const world *w, int a, int b)
{
    const ddl__request *request = &w->request;
    if ((request->kind == DDL__GATHER && b != request->root) ||
        (request->kind == DDL__SCATTER && a != request->root))
        return 0;
    if (!w->uneven)
        return request->count;
    if (request->kind == DDL__GATHER || request->kind == DDL__ALLGATHER)
        b = 0;
    if (request->kind == DDL__SCATTER || request->kind == DDL__REDUCE_SCATTER)
        a = 0;
    if (request->in_place && a > b) { /* each gets as much as it gives */
        int other = a;
        a = b;
        b = other;
    }
    uint64_t random = scramble(w->uneven + (uint64_t)(a * 64 + b));
    return random % 4 ? (int64_t)(random / 4 % (uint64_t)(2 * request->count + 1)) : 0;
}

/* Place the blocks one after another; uneven blocks have gaps and start anywhere. Returns the
 * length of the buffer. */
static int64_t lay_out(const world *w, ddl__share *blocks, uint64_t seed)
{
    int size = w->request.size, first = seed ? (int)(scramble(seed) % (uint64_t)size) : 0;
    int64_t end = 0;
    for (int i = 0; i < size; i++) {
        ddl__share *block = &blocks[(first + i) % size];
        block->start = end + (seed ? (int64_t)(scramble(seed + 1 + (uint64_t)i) % 3) : 0);
        end = block->start + block->count;
    }
    return end;
}

static void make_blocks(world *w, int r)
{
    const ddl__request *request = &w->request;
    simulated_rank *me = &w->ranks[r];
    uint64_t seed = w->uneven ? w->uneven * 64 + (uint64_t)r : 0;
    for (int i = 0; i < request->size; i++) {
        me->to[i].count = pair_count(w, r, i);
        me->from[i].count = pair_count(w, i, r);
    }
    if (request->kind == DDL__ALLGATHER)
        me->in_count = me->to[0].count;
    else
        me->in_count = lay_out(w, me->to, request->kind == DDL__REDUCE_SCATTER ? 0 : seed);
    if (request->kind == DDL__GATHER && r != request->root) { /* its one block */
        me->to[request->root].start = 0;
        me->in_count = me->to[request->root].count;
    }
    if (request->kind == DDL__GATHER && r == request->root)
        me->to[r].start = 0;
    if (request->kind == DDL__REDUCE_SCATTER)
        me->out_count = me->from[0].count;
    else
        me->out_count = lay_out(w, me->from, me->in_place ? seed : 3 * seed);
    if (request->kind == DDL__SCATTER) {
        me->from[request->root].start = 0;
        me->out_count = me->from[request->root].count;
    }
}

static void size_buffers(world *w, int r)
{
    const ddl__request *request = &w->request;
    simulated_rank *me = &w->ranks[r];
    me->in_place = request->in_place && (!is_rooted(request) || r == request->root);
    me->in_count = me->out_count = request->kind == DDL__BARRIER ? 1 : request->count;
    switch (request->kind) {
    case DDL__REDUCE_TO_ROOT: me->out_count = r == request->root ? request->count : 0; break;
    case DDL__REDUCE_SCATTER:
    case DDL__ALLGATHER:
    case DDL__GATHER:
    case DDL__SCATTER:
    case DDL__ALLTOALL: make_blocks(w, r); break;
    case DDL__ORDERED_ALLREDUCE:
    case DDL__ORDERED_REDUCE_SCATTER:
    case DDL__ALLREDUCE:
    case DDL__BROADCAST:
    case DDL__BARRIER:
    case DDL__SEND:
    case DDL__RECV: break;
    }
    me->part_count = me->in_count;
    if (request->order) {
        me->parts = ddl__order_parts(request->order, r, me->part, RANKS_MAX);
        me->in_count *= me->parts * request->wide;
    }
    if (me->in_place && me->in_count < me->out_count)
        me->in_count = me->out_count;
    if (me->in_place)
        me->out_count = me->in_count;
}

static uint64_t *new_values(int64_t count)
{
    uint64_t *values = malloc((size_t)(count + 1) * sizeof *values);
    CHECK(values, "out of memory");
    return values;
}

/* The content of a rank's buffer of `count` elements before the operation. */
static uint64_t original(const world *w, int rank, bool is_in, int64_t i)
{
    const simulated_rank *me = &w->ranks[rank];
    bool gathers = w->request.kind == DDL__ALLGATHER || w->request.kind == DDL__GATHER;
    if (!is_in && !me->in_place)
        return ~input(rank, i);
    if (w->request.order) {
        int64_t words = me->part_count * w->request.wide;
        const ddl__order_part *part = &me->part[i / words];
        return tree_sum(part->first, part->size, i % words);
    }
    if (!gathers || !me->in_place)
        return input(rank, i);
    int64_t own = i - me->from[rank].start;
    return own >= 0 && own < me->from[rank].count ? input(rank, own) : ~input(rank, i);
}

static void rank_create(world *w, int r)
{
    simulated_rank *me = &w->ranks[r];
    ddl__request request = w->request;
    size_buffers(w, r);
    request.rank = r;
    request.in_place = me->in_place;
    request.sent = w->uneven ? me->to : NULL;
    request.received = w->uneven ? me->from : NULL;
    me->plan = ddl__plan_create(&request);
    CHECK(me->plan, "no plan");
    me->in = new_values(me->in_count);
    me->out = me->in_place ? me->in : new_values(me->out_count);
    me->scratch = new_values(me->plan->scratch);
    for (int64_t i = 0; i < me->plan->scratch; i++)
        me->scratch[i] = scramble((uint64_t)i); /* nobody's */
    me->heard = (uint64_t)1 << r % RANKS_MAX;
    for (int64_t i = 0; i < me->in_count; i++)
        me->in[i] = original(w, r, true, i);
    for (int64_t i = 0; i < me->out_count; i++)
        me->out[i] = original(w, r, false, i);
}

static world *world_create(const ddl__request *request, uint64_t uneven)
{
    world *w = calloc(1, sizeof *w);
    CHECK(w, "out of memory");
    w->request = *request;
    w->uneven = uneven;
    w->window = request->window ? request->window : INT64_MAX;
    w->queue_room = DDL__LINK_SPANS;
    w->ranks = calloc((size_t)request->size, sizeof *w->ranks);
    CHECK(w->ranks, "out of memory");
    for (int r = 0; r < request->size; r++)
        rank_create(w, r);
    return w;
}

static void world_destroy(world *w)
{
    for (int r = 0; r < w->request.size; r++) {
        simulated_rank *me = &w->ranks[r];
        for (int i = 0; i < RANKS_MAX; i++)
            for (peer *p = me->peers[i], *next; p; p = next) {
                next = p->next;
                outlet_drop(&p->to, w->request.element, true);
                free(p);
            }
        ddl__plan_destroy(me->plan);
        if (me->out != me->in)
            free(me->out);
        free(me->in);
        free(me->scratch);
    }
    free(w->ranks);
    free(w);
}

/* --------------------------------------------------------------------------------------- steps */

static bool fail(world *w, const char *error)
{
    if (!w->error)
        w->error = error;
    return false;
}

static bool has_room(world *w, int r, const ddl__step *step, int64_t count)
{
    const uint32_t *targets = w->ranks[r].plan->ranks + step->target;
    for (uint32_t i = 0; i < step->targets; i++) {
        if (targets[i] == (uint32_t)r)
            return fail(w, "sends to itself");
        outlet *out = outlet_of(w, (uint32_t)r, targets[i]);
        outlet_drop(out, w->request.element, false);
        bool wide = w->wide_wires && !reads_memory(w, (uint32_t)r, targets[i]);
        if (queue_of(w, (uint32_t)r, targets[i])->n == w->queue_room ||
            (!wide && out->bytes + count * (int64_t)w->request.element > w->window))
            return false;
    }
    return true;
}

static bool has_operands(world *w, int r, const ddl__step *step)
{
    const uint32_t *operands = w->ranks[r].plan->ranks + step->operand;
    for (uint32_t i = 0; i < step->operands; i++)
        if (operands[i] != (uint32_t)r && queue_of(w, operands[i], (uint32_t)r)->n == 0)
            return false;
    return true;
}

static void publish(world *w, int r, const ddl__step *step, const uint64_t *values,
                    const uint64_t *lent, int64_t count)
{
    simulated_rank *me = &w->ranks[r];
    const uint32_t *targets = me->plan->ranks + step->target;
    int64_t bytes = count * (int64_t)w->request.element;
    span *shared = NULL;
    for (uint32_t i = 0; i < step->targets; i++) {
        outlet *out = outlet_of(w, (uint32_t)r, targets[i]);
        bool reads = reads_memory(w, (uint32_t)r, targets[i]);
        span *s = reads ? shared : NULL;
        if (!s) {
            s = span_create(values, count);
            s->heard = me->heard;
            s->lent = step->stable ? lent : NULL;
            s->returns = step->returns && step->kind == DDL__PUBLISH;
            outlet_add(out, s, w->request.element);
        }
        if (reads)
            shared = s;
        if (!on_one_host(w, (uint32_t)r, targets[i]))
            me->wires += bytes;
        queue *to = queue_of(w, (uint32_t)r, targets[i]);
        queue_add(to, s);
        w->queue_most = to->n > w->queue_most ? to->n : w->queue_most;
        me->sent += bytes;
    }
}

/* Read the next span from a peer. Its memory is kept until its last reader has read it. */
static const uint64_t *consume(world *w, uint32_t from, int r, int64_t count)
{
    const char *error = NULL;
    span *s = queue_take(queue_of(w, from, (uint32_t)r), count, &error);
    if (s)
        w->ranks[r].heard |= s->heard;
    if (error)
        fail(w, error);
    return w->error ? NULL : s->values;
}

static void reduce(world *w, int r, const ddl__step *step, const uint64_t *own, uint64_t *result,
                   int64_t count)
{
    const uint32_t *operands = w->ranks[r].plan->ranks + step->operand;
    for (uint32_t o = 0; o < step->operands; o++) {
        const uint64_t *values =
            operands[o] == (uint32_t)r ? own : consume(w, operands[o], r, count);
        if (!values)
            return;
        for (int64_t i = 0; i < count; i++)
            result[i] = o == 0 ? values[i] : add(w, result[i], values[i]);
    }
    for (int64_t i = 0; step->finish && i < count; i++)
        result[i] = scramble(result[i]);
}

/* Store the result where the targets want it, over the operands that they sent. */
static void give_back(world *w, int r, const ddl__step *step, const uint64_t *result, int64_t count)
{
    const uint32_t *targets = w->ranks[r].plan->ranks + step->target;
    for (uint32_t i = 0; i < step->targets; i++) {
        const span *s = queue_last_taken(queue_of(w, targets[i], (uint32_t)r));
        if (!s || !s->returns || !s->lent)
            fail(w, "returns a result that is not wanted");
        else
            memcpy((uint64_t *)s->lent, result, (size_t)count * sizeof *result);
    }
}

/* As `reduce`, with packed operands and results. */
static void fold(world *w, int r, const ddl__step *step, int64_t k, const uint64_t *from,
                 uint64_t *results, int64_t count)
{
    const simulated_rank *me = &w->ranks[r];
    const ddl__fold *f = me->plan->folds[step->fold];
    const uint32_t *ranks = me->plan->ranks + step->operand;
    int64_t wide = w->request.wide, words = count * wide;
    const uint64_t *operands[64];
    for (int i = 0; i < f->spans; i++) {
        int n = f->first[i + 1] - f->first[i];
        bool own = ranks[i] == (uint32_t)r;
        const uint64_t *values = !own ? consume(w, ranks[i], r, n * words)
                                 : step->space == DDL__IN
                                     ? me->in + (step->src + k * step->stride) * wide
                                     : from;
        if (!values)
            return;
        for (int j = 0; j < n; j++)
            operands[f->first[i] + j] = values + j * (own ? me->part_count * wide : words);
    }
    for (int64_t i = 0; i < words; i++)
        fold_word(f, operands, i, results, words);
    for (int64_t i = 0; step->finish && i < count; i++)
        results[i] = narrowed(results + i * wide, (int)wide);
}

/* Elements that a step stores or sends. */
static int64_t output_of(const world *w, int r, const ddl__step *step, int64_t count)
{
    int results = step->kind == DDL__FOLD ? w->ranks[r].plan->folds[step->fold]->results : 1;
    return step->kind == DDL__FOLD && !step->finish ? results * w->request.wide * count : count;
}

static bool inside(int64_t start, int64_t count, int64_t all)
{
    return start >= 0 && start + count <= all;
}

/* Run one segment of one step completely or not at all. False if it is blocked or wrong. */
static bool run_step(world *w, int r, const ddl__step *step, int64_t k, int64_t count)
{
    simulated_rank *me = &w->ranks[r];
    int64_t src = step->src + k * step->stride, dst = step->dst + k * step->stride;
    bool reads = step->kind != DDL__TAKE && step->kind != DDL__UNPACK;
    bool writes = step->kind != DDL__PUBLISH && step->kind != DDL__PACK;
    bool folds = step->kind == DDL__FOLD;
    if (step->kind == DDL__REDUCE || step->kind == DDL__REDUCE_PACK || folds)
        writes = step->keep;
    const int64_t counts[] = {folds ? me->part_count : me->in_count, me->out_count,
                              me->plan->scratch};
    int64_t output = output_of(w, r, step, count);
    uint64_t *const spaces[] = {me->in, me->out, me->scratch};
    ddl__space to = step->to_scratch ? DDL__SCRATCH : DDL__OUT;
    if (reads && !inside(src, count, counts[step->space]))
        return fail(w, "reads outside");
    if (writes && !inside(dst, output, counts[to]))
        return fail(w, "writes outside");
    if (!has_operands(w, r, step) || !has_room(w, r, step, output))
        return false;

    const uint64_t *from = reads ? spaces[step->space] + src : NULL;
    uint64_t *kept = writes ? spaces[to] + dst : NULL, *result = NULL;
    const uint64_t *taken;
    switch ((ddl__step_kind)step->kind) {
    case DDL__PUBLISH: publish(w, r, step, from, from, count); break;
    case DDL__PACK:
        result = new_values(count);
        memcpy(result, from, (size_t)count * sizeof *from);
        round_all(result, count);
        publish(w, r, step, result, NULL, count);
        free(result);
        break;
    case DDL__ADD_UNPACKED:
        taken = consume(w, me->plan->ranks[step->operand], r, count);
        for (int64_t i = 0; taken && i < count; i++) {
            uint64_t sum = add(w, from[i], taken[i]);
            kept[i] = step->finish ? scramble(sum) : sum;
        }
        if (step->rounds)
            round_all(kept, count);
        break;
    case DDL__COPY:
        memmove(kept, from, (size_t)count * sizeof *from);
        if (step->rounds)
            round_all(kept, count);
        break;
    case DDL__REDUCE:
    case DDL__REDUCE_PACK:
    case DDL__FOLD:
        if (step->stable && !step->keep)
            fail(w, "lends what it does not keep");
        result = new_values(output * w->request.wide + count); /* kept may be an operand too */
        if (folds)
            fold(w, r, step, k, from, result, count);
        else
            reduce(w, r, step, from, result, count);
        if (step->returns && !w->error)
            give_back(w, r, step, result, count);
        if (step->kind == DDL__REDUCE_PACK)
            round_all(result, output);
        if (kept)
            memcpy(kept, result, (size_t)output * sizeof *kept);
        publish(w, r, step, result, kept, output);
        free(result);
        break;
    case DDL__TAKE:
    case DDL__UNPACK:
        taken = consume(w, me->plan->ranks[step->operand], r, count);
        if (taken && step->returns && memcmp(kept, taken, (size_t)count * sizeof *taken))
            fail(w, "a result was not returned to where it is taken");
        if (taken)
            memcpy(kept, taken, (size_t)count * sizeof *taken);
        publish(w, r, step, kept, kept, count);
        break;
    }
    return !w->error;
}

/* ----------------------------------------------------------------------------------- schedules */

typedef enum outcome { RAN, BLOCKED, DONE } outcome;

static outcome advance(world *w, int r)
{
    simulated_rank *me = &w->ranks[r];
    for (; me->wave < me->plan->waves; me->wave++, me->step = 0) {
        for (; me->step < me->plan->n_steps; me->step++) {
            const ddl__step *step = &me->plan->steps[me->step];
            int64_t k = me->wave - step->skew, count = ddl__segment_length(step, k);
            if (count == 0)
                continue;
            if (!run_step(w, r, step, k, count))
                return BLOCKED;
            me->step++;
            return RAN;
        }
    }
    return DONE;
}

typedef enum schedule {
    IN_TURN, /* a step each */
    RANDOM,
    FAR,      /* each rank runs as far as possible */
    PRIORITY, /* always the first that can, in a random order of the ranks */
    SCHEDULES
} schedule;

static void shuffle(int *order, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)random_below((uint64_t)i + 1), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

/* Run the plans. Return NULL if all ranks finished, otherwise the error. */
static const char *execute(world *w, schedule how)
{
    int size = w->request.size, start = 0, *order = malloc((size_t)size * sizeof *order);
    CHECK(order, "out of memory");
    for (int i = 0; i < size; i++)
        order[i] = i;
    if (how == PRIORITY)
        shuffle(order, size);
    for (;;) {
        int done = 0, i = 0;
        outcome last = BLOCKED;
        if (how == RANDOM)
            start = (int)random_below((uint64_t)size);
        for (; i < size && last != RAN && !w->error; i++) {
            last = advance(w, order[(start + i) % size]);
            done += last == DONE;
        }
        if (!w->error && done < size && last != RAN)
            fail(w, "deadlock");
        if (w->error || done == size)
            break;
        if (how == IN_TURN || how == FAR)
            start = (start + i - (how == FAR)) % size;
    }
    free(order);
    for (int r = 0; r < size && !w->error; r++)
        for (int i = 0; i < RANKS_MAX; i++)
            for (const peer *p = w->ranks[r].peers[i]; p; p = p->next)
                if (p->from.n)
                    return "a span was never taken";
    return w->error;
}

#endif
