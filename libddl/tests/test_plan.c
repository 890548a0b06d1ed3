/* The plans of all ranks, executed in one process without sockets or threads.
 *
 * The operator is a hash that neither commutes nor associates, and finishing a reduction scrambles
 * it, so a result is right only if every contribution came once, in its order, and was finished
 * once. Links are as narrow as plan.h allows; what is lent is compared when it arrives. At the end
 * plans are broken in many ways, and the simulator must notice each. */
#include "plan/plan.h"

#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "plan/builder.h"

enum { RANKS_MAX = 31 };

typedef struct span {
    uint64_t *values;
    const uint64_t *lent; /* where they still must be on arrival, or NULL */
    int64_t count;
    uint64_t heard; /* the ranks of whom the sender had heard */
    unsigned readers;
    struct span *next; /* in its outlet */
} span;

/* Memory that is reused in order: up to the oldest span that a reader has not released. */
typedef struct outlet {
    span *oldest, **end;
    int64_t bytes;
} outlet;

typedef struct queue {
    span *spans[DDL__LINK_SPANS];
    unsigned first, n;
} queue;

typedef struct simulated_rank {
    ddl__plan *plan;
    uint64_t *in, *out; /* the same in place */
    int64_t wave, sent; /* bytes */
    uint32_t step;
    uint64_t heard;
} simulated_rank;

typedef struct world {
    ddl__request request; /* rank: unused */
    int64_t in_count, out_count, window;
    unsigned queue_room, queue_most;
    simulated_rank ranks[RANKS_MAX];
    queue *queues;     /* size x size: from, to */
    outlet *outlets;   /* size x size: from, to; where memory is shared: from, 0 */
    const char *error; /* the first */
} world;

/* -------------------------------------------------------------------------------------- values */

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % limit;
}

static uint64_t scramble(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
    return (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
}

static uint64_t input(int rank, int64_t i)
{
    return scramble(((uint64_t)rank << 40) + (uint64_t)i + 1);
}

static uint64_t combine(uint64_t a, uint64_t b)
{
    return (a << 13 | a >> 51) * 0x9e3779b97f4a7c15u + b;
}

/* Element i reduced over all ranks, beginning with `first` and going round. */
static uint64_t reduced(const world *w, int first, int64_t i)
{
    int size = w->request.size;
    uint64_t value = input(first % size, i);
    for (int r = 1; r < size; r++)
        value = combine(value, input((first + r) % size, i));
    return size == 1 ? value : scramble(value);
}

/* --------------------------------------------------------------------------------------- world */

static queue *queue_of(const world *w, uint32_t from, uint32_t to)
{
    return &w->queues[from * (uint32_t)w->request.size + to];
}

static outlet *outlet_of(const world *w, uint32_t from, uint32_t to)
{
    return &w->outlets[from * (uint32_t)w->request.size + (w->request.all_shared ? 0 : to)];
}

static int64_t whole(const ddl__request *request)
{
    return request->size * request->count;
}

static void size_buffers(world *w)
{
    const ddl__request *request = &w->request;
    bool barrier = request->kind == DDL__BARRIER;
    w->in_count = w->out_count = barrier ? 1 : request->count;
    if (request->kind == DDL__REDUCE_SCATTER)
        w->in_count = whole(request);
    if (request->kind == DDL__ALLGATHER)
        w->out_count = whole(request);
    if (request->in_place && w->in_count < w->out_count)
        w->in_count = w->out_count;
    if (request->in_place)
        w->out_count = w->in_count;
}

static uint64_t *new_values(int64_t count)
{
    uint64_t *values = malloc((size_t)(count + 1) * sizeof *values);
    CHECK(values, "out of memory");
    return values;
}

/* What a rank's buffer of `count` elements held before. */
static uint64_t original(const world *w, int rank, bool is_in, int64_t i)
{
    if (!is_in && !w->request.in_place)
        return ~input(rank, i);
    if (w->request.kind != DDL__ALLGATHER || !w->request.in_place)
        return input(rank, i);
    int64_t own = i - rank * w->request.count;
    return own >= 0 && own < w->request.count ? input(rank, own) : ~input(rank, i);
}

static world *world_create(const ddl__request *request)
{
    world *w = calloc(1, sizeof *w);
    CHECK(w, "out of memory");
    w->request = *request;
    w->window = request->window ? request->window : INT64_MAX;
    w->queue_room = DDL__LINK_SPANS;
    size_t pairs = (size_t)(request->size * request->size);
    w->queues = calloc(pairs, sizeof *w->queues);
    w->outlets = calloc(pairs, sizeof *w->outlets);
    CHECK(w->queues && w->outlets, "out of memory");
    for (size_t i = 0; i < pairs; i++)
        w->outlets[i].end = &w->outlets[i].oldest;
    size_buffers(w);
    for (int r = 0; r < request->size; r++) {
        simulated_rank *me = &w->ranks[r];
        w->request.rank = r;
        me->plan = ddl__plan_create(&w->request);
        CHECK(me->plan, "no plan");
        me->in = new_values(w->in_count);
        me->out = request->in_place ? me->in : new_values(w->out_count);
        me->heard = (uint64_t)1 << r;
        for (int64_t i = 0; i < w->in_count; i++)
            me->in[i] = original(w, r, true, i);
        for (int64_t i = 0; i < w->out_count; i++)
            me->out[i] = original(w, r, false, i);
    }
    return w;
}

static void drop_released(outlet *from, size_t element, bool all)
{
    span *oldest;
    while ((oldest = from->oldest) && (oldest->readers == 0 || all)) {
        from->oldest = oldest->next;
        from->bytes -= oldest->count * (int64_t)element;
        free(oldest->values);
        free(oldest);
    }
    if (!from->oldest)
        from->end = &from->oldest;
}

static void world_destroy(world *w)
{
    for (int i = 0; i < w->request.size * w->request.size; i++)
        drop_released(&w->outlets[i], w->request.element, true);
    for (int r = 0; r < w->request.size; r++) {
        simulated_rank *me = &w->ranks[r];
        ddl__plan_destroy(me->plan);
        if (me->out != me->in)
            free(me->out);
        free(me->in);
    }
    free(w->queues);
    free(w->outlets);
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
        drop_released(out, w->request.element, false);
        if (queue_of(w, (uint32_t)r, targets[i])->n == w->queue_room ||
            out->bytes + count * (int64_t)w->request.element > w->window)
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

static span *new_span(outlet *in, const uint64_t *values, int64_t count, uint64_t heard)
{
    span *s = calloc(1, sizeof *s);
    CHECK(s, "out of memory");
    s->values = new_values(count);
    memcpy(s->values, values, (size_t)count * sizeof *values);
    s->count = count;
    s->heard = heard;
    *in->end = s;
    in->end = &s->next;
    return s;
}

static void publish(world *w, int r, const ddl__step *step, const uint64_t *values,
                    const uint64_t *lent, int64_t count)
{
    simulated_rank *me = &w->ranks[r];
    const uint32_t *targets = me->plan->ranks + step->target;
    int64_t bytes = count * (int64_t)w->request.element;
    span *s = NULL;
    for (uint32_t i = 0; i < step->targets; i++) {
        outlet *out = outlet_of(w, (uint32_t)r, targets[i]);
        if (!s || !w->request.all_shared) {
            s = new_span(out, values, count, me->heard);
            s->lent = step->stable ? lent : NULL;
            out->bytes += bytes;
        }
        s->readers++;
        queue *to = queue_of(w, (uint32_t)r, targets[i]);
        to->spans[(to->first + to->n++) % DDL__LINK_SPANS] = s;
        w->queue_most = to->n > w->queue_most ? to->n : w->queue_most;
        me->sent += bytes;
    }
}

/* The next span from a peer; it stays in its outlet's memory until its last reader comes here. */
static const uint64_t *consume(world *w, uint32_t from, int r, int64_t count)
{
    queue *q = queue_of(w, from, (uint32_t)r);
    if (q->n == 0) { /* an operand twice */
        fail(w, "a span is missing");
        return NULL;
    }
    span *s = q->spans[q->first];
    q->first = (q->first + 1) % DDL__LINK_SPANS;
    q->n--;
    s->readers--;
    w->ranks[r].heard |= s->heard;
    if (s->count != count)
        fail(w, "a span has another length");
    else if (s->lent && memcmp(s->lent, s->values, (size_t)count * sizeof *s->lent))
        fail(w, "lent memory was overwritten");
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
            result[i] = o == 0 ? values[i] : combine(result[i], values[i]);
    }
    for (int64_t i = 0; step->finish && i < count; i++)
        result[i] = scramble(result[i]);
}

static bool inside(int64_t start, int64_t count, int64_t all)
{
    return start >= 0 && start + count <= all;
}

/* One segment of one step, all or nothing; false if it is blocked or wrong. */
static bool run_step(world *w, int r, const ddl__step *step, int64_t k, int64_t count)
{
    simulated_rank *me = &w->ranks[r];
    int64_t src = step->src + k * me->plan->segment, dst = step->dst + k * me->plan->segment;
    bool reads = step->kind != DDL__TAKE, writes = step->kind != DDL__PUBLISH;
    if (step->kind == DDL__REDUCE)
        writes = step->keep;
    if (reads && !inside(src, count, step->space == DDL__IN ? w->in_count : w->out_count))
        return fail(w, "reads outside");
    if (writes && !inside(dst, count, w->out_count))
        return fail(w, "writes outside");
    if (!has_operands(w, r, step) || !has_room(w, r, step, count))
        return false;

    const uint64_t *from = reads ? (step->space == DDL__IN ? me->in : me->out) + src : NULL;
    uint64_t *kept = writes ? me->out + dst : NULL, *result = NULL;
    const uint64_t *taken;
    switch ((ddl__step_kind)step->kind) {
    case DDL__PUBLISH: publish(w, r, step, from, from, count); break;
    case DDL__COPY: memmove(kept, from, (size_t)count * sizeof *from); break;
    case DDL__REDUCE:
        if (step->stable && !step->keep)
            fail(w, "lends what it does not keep");
        result = new_values(count); /* kept may be an operand too */
        reduce(w, r, step, from, result, count);
        if (kept)
            memcpy(kept, result, (size_t)count * sizeof *kept);
        publish(w, r, step, result, kept, count);
        free(result);
        break;
    case DDL__TAKE:
        taken = consume(w, me->plan->ranks[step->operand], r, count);
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
            int64_t k = me->wave - step->skew, count = ddl__segment_length(me->plan, step, k);
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

/* NULL if all ranks came to their end, else what went wrong. */
static const char *execute(world *w, schedule how)
{
    int size = w->request.size, order[RANKS_MAX], start = 0;
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
        if (w->error)
            return w->error;
        if (done == size)
            break;
        if (last != RAN)
            return "deadlock";
        if (how == IN_TURN)
            start = (start + i) % size;
    }
    for (int i = 0; i < size * size; i++)
        if (w->queues[i].n)
            return "a span was never taken";
    return NULL;
}

/* ------------------------------------------------------------------------------------- results */

static bool is_ring(const world *w)
{
    return strcmp(w->ranks[0].plan->name, "ring") == 0;
}

/* Of an all-reduce; `share` is the one in which i lies. In a ring it starts behind its owner. */
static uint64_t expected(const world *w, int rank, int share, int64_t i)
{
    int64_t count = w->request.count, block = rank * count;
    switch (w->request.kind) {
    case DDL__ALLREDUCE: return reduced(w, is_ring(w) ? share + 1 : 0, i);
    case DDL__REDUCE_SCATTER:
        if (!w->request.in_place)
            return reduced(w, is_ring(w) ? rank + 1 : 0, block + i);
        return i >= block && i < block + count ? reduced(w, is_ring(w) ? rank + 1 : 0, i)
                                               : original(w, rank, false, i);
    case DDL__ALLGATHER: return input((int)(i / count), i % count);
    case DDL__BROADCAST: return input(w->request.root, i);
    case DDL__BARRIER: break;
    }
    return 0;
}

static const char *verify(const world *w)
{
    const ddl__request *request = &w->request;
    uint64_t everybody = ((uint64_t)1 << request->size) - 1;
    for (int r = 0; r < request->size; r++) {
        const simulated_rank *me = &w->ranks[r];
        if (request->kind == DDL__BARRIER && me->heard != everybody)
            return "left the barrier too early";
        for (int64_t i = 0; !request->in_place && i < w->in_count; i++)
            if (me->in[i] != original(w, r, true, i))
                return "wrote to the input";
        if (request->kind == DDL__BARRIER)
            continue;
        for (int64_t i = 0, share = -1, end = 0; i < w->out_count; i++) {
            while (request->kind == DDL__ALLREDUCE && i == end) {
                ddl__share next = ddl__share_of(request, (int)++share);
                end = next.start + next.count;
            }
            if (request->kind == DDL__ALLREDUCE && r > 0) {
                if (me->out[i] != w->ranks[0].out[i]) /* which is right */
                    return "ranks differ";
            } else if (me->out[i] != expected(w, r, (int)share, i)) {
                return "a wrong result";
            }
        }
    }
    return NULL;
}

static const char *simulate(world *w, schedule how)
{
    const char *error = execute(w, how);
    return error ? error : verify(w);
}

/* --------------------------------------------------------------------------------------- tests */

static const char *describe(const world *w)
{
    static char text[256];
    const ddl__request *q = &w->request;
    snprintf(text, sizeof text,
             "%s, kind %d, %d ranks, root %d, count %lld of %zu bytes, %s, segments of %lld, "
             "window %lld, %u spans",
             w->ranks[0].plan->name, (int)q->kind, q->size, q->root, (long long)q->count,
             q->element, q->in_place ? "in place" : "out of place",
             (long long)w->ranks[0].plan->segment, (long long)w->window, w->queue_room);
    return text;
}

static void check_shape(const world *w)
{
    const ddl__plan *first = w->ranks[0].plan;
    int64_t bytes = first->segment * (int64_t)w->request.element;
    CHECK(first->segment >= 1, "%s", describe(w));
    if (w->request.segment_bytes >= (int64_t)w->request.element)
        CHECK(bytes <= w->request.segment_bytes, "%s", describe(w));
    for (int r = 0; r < w->request.size; r++) {
        const ddl__plan *plan = w->ranks[r].plan;
        CHECK(strcmp(plan->name, first->name) == 0, "%s", describe(w));
        CHECK(plan->segment == first->segment, "%s", describe(w));
        CHECK(w->request.count || w->request.kind == DDL__BARRIER || plan->n_steps == 0, "%s",
              describe(w));
    }
}

/* What builder.h claims to need: segments that the window must hold, and spans to one peer. */
static void least(const world *w, int64_t *segments, unsigned *spans)
{
    bool direct = strcmp(w->ranks[0].plan->name, "direct") == 0;
    *segments = *spans = 1;
    if (is_ring(w)) {
        *segments = *spans = DDL__RING_DEPTH + 1;
    } else if (direct && w->request.kind == DDL__ALLREDUCE) {
        *segments = 2 * w->request.size;
        *spans = 4;
    } else if (direct && w->request.kind == DDL__REDUCE_SCATTER) {
        *segments = 2 * (w->request.size - 1);
        *spans = 2;
    } else if (direct && w->request.kind == DDL__ALLGATHER) {
        *segments = *spans = 2;
    }
}

/* Direct exchanges bound themselves: nobody runs further ahead than its peers' results let it. */
static bool bounds_itself(const world *w)
{
    return w->request.all_shared && w->request.kind != DDL__BROADCAST;
}

static void check_one(const ddl__request *request, schedule how, bool tight)
{
    world *w = world_create(request);
    check_shape(w);
    int64_t segments;
    unsigned spans;
    least(w, &segments, &spans);
    int64_t bytes = segments * w->ranks[0].plan->segment * (int64_t)request->element;
    if (tight || w->window < bytes) {
        CHECK(tight || w->ranks[0].plan->segment == 1, "%s", describe(w));
        w->window = bytes;
    }
    if (tight)
        w->queue_room = spans;
    const char *error = simulate(w, how);
    CHECK(!error, "%s: %s, schedule %d", error, describe(w), (int)how);
    CHECK(tight || !bounds_itself(w) || w->queue_most <= 8, "%u spans: %s", w->queue_most,
          describe(w));
    world_destroy(w);
}

/* Every kind, size and count, each with a few of the element sizes, segments, windows and
 * schedules. */
static void test_all_plans(void)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31};
    static const int64_t segments[] = {0, 1, 64, 128, 1000}, windows[] = {0, 64, 1000, 16384};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int p = sizes[s];
        const int64_t counts[] = {0, 1, 2, p - 1, p, p + 1, 100, 1000, 4099};
        for (unsigned n = 0; n < 5 * 2 * 2 * 9; n++) {
            ddl__request request = {.kind = (ddl__kind)(1 + n % 5),
                                    .size = p,
                                    .count = counts[n / 20],
                                    .in_place = n / 5 % 2,
                                    .all_shared = n / 10 % 2};
            if (request.kind == DDL__BARRIER)
                request.in_place = false;
            if (request.kind == DDL__BROADCAST)
                request.in_place = true;
            bool blocks = request.kind == DDL__REDUCE_SCATTER || request.kind == DDL__ALLGATHER;
            int64_t cost = request.count * p * (blocks ? p : 1);
            bool large = cost > 100000;
            int repeats = 1 + (int)(20000 / (cost + 100 * p));
            if (cost > 800000 && request.in_place != request.all_shared)
                continue;
            repeats = repeats < 10 ? repeats : 10;
            for (int i = 0; i < repeats; i++) {
                request.element = (size_t)1 << random_below(4);
                request.root = (int)random_below((uint64_t)p);
                request.segment_bytes = large ? 1000 : segments[random_below(5)];
                request.window = large ? 0 : windows[random_below(4)];
                check_one(&request, (schedule)random_below(SCHEDULES), random_below(2));
            }
        }
    }
}

/* 2 N (1 - 1/p) bytes leave each rank: nothing can reduce and spread N bytes with fewer. */
static void test_bytes_sent(void)
{
    for (int p = 2; p <= RANKS_MAX; p++) {
        for (int shared = 0; shared < 2; shared++) {
            ddl__request request = {.kind = DDL__ALLREDUCE,
                                    .size = p,
                                    .count = (int64_t)p * 16 * 70,
                                    .element = 4,
                                    .all_shared = shared,
                                    .segment_bytes = 1024};
            world *w = world_create(&request);
            CHECK(strcmp(w->ranks[0].plan->name, p > 1 && shared ? "direct" : "ring") == 0 ||
                      request.count * 4 <= DDL__ONE_SHOT_SHARED,
                  "%s", describe(w));
            const char *error = simulate(w, IN_TURN);
            CHECK(!error, "%s: %s", error, describe(w));
            int64_t ideal = 2 * request.count * 4 / p * (p - 1);
            for (int r = 0; strcmp(w->ranks[0].plan->name, "one-shot") && r < p; r++)
                CHECK(w->ranks[r].sent == ideal, "%lld bytes, not %lld: %s",
                      (long long)w->ranks[r].sent, (long long)ideal, describe(w));
            world_destroy(w);
        }
    }
}

static void test_choice(void)
{
    static const struct {
        ddl__request request;
        const char *name;
    } cases[] = {
        {{.kind = DDL__ALLREDUCE, .size = 1, .count = 9}, "alone"},
        {{.kind = DDL__ALLREDUCE, .size = 4, .count = 1024}, "one-shot"},
        {{.kind = DDL__ALLREDUCE, .size = 4, .count = 1025}, "ring"},
        {{.kind = DDL__ALLREDUCE, .size = 9, .count = 1024}, "ring"},
        {{.kind = DDL__ALLREDUCE, .size = 9, .count = 2048, .all_shared = true}, "one-shot"},
        {{.kind = DDL__ALLREDUCE, .size = 4, .count = 2049, .all_shared = true}, "direct"},
        {{.kind = DDL__REDUCE_SCATTER, .size = 4, .count = 1}, "ring"},
        {{.kind = DDL__ALLGATHER, .size = 4, .count = 1, .all_shared = true}, "direct"},
        {{.kind = DDL__BROADCAST, .size = 4, .count = 1, .in_place = true}, "chain"},
        {{.kind = DDL__BARRIER, .size = 4}, "dissemination"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddl__request request = cases[i].request;
        request.element = 4;
        ddl__plan *plan = ddl__plan_create(&request);
        CHECK(plan && strcmp(plan->name, cases[i].name) == 0, "case %zu", i);
        ddl__plan_destroy(plan);
    }
}

static void test_shares(void)
{
    for (int p = 1; p <= RANKS_MAX; p++) {
        for (int n = 0; n < 300; n++) {
            ddl__request request = {
                .kind = DDL__ALLREDUCE, .size = p, .element = (size_t)1 << n % 4};
            int64_t line = DDL__LINE / (int64_t)request.element, longest = 0, end = 0;
            int64_t huge = ((int64_t)1 << 60) / (int64_t)request.element, shortest = huge;
            request.count = n < 290 ? (int64_t)random_below(5000) : huge - (n - 290);
            for (int i = 0; i < p; i++) {
                ddl__share share = ddl__share_of(&request, i);
                CHECK(share.start == end, "share %d of %d starts elsewhere", i, p);
                CHECK(share.start % line == 0 || share.count == 0, "share %d of %d", i, p);
                longest = share.count > longest ? share.count : longest;
                shortest = share.count < shortest ? share.count : shortest;
                end += share.count;
            }
            CHECK(end == request.count && longest - shortest <= line, "%d ranks", p);
        }
    }
}

static void test_segments(void)
{
    for (int n = 0; n < 2000; n++) {
        ddl__request request = {.kind = (ddl__kind)(1 + n % 4),
                                .size = 2 + n % 30,
                                .count = (int64_t)random_below(1 << 20),
                                .element = (size_t)1 << n % 4,
                                .in_place = true,
                                .all_shared = n / 4 % 2,
                                .window = 64 << random_below(18)};
        ddl__plan *plan = ddl__plan_create(&request);
        CHECK(plan, "no plan");
        int64_t element = (int64_t)request.element, bytes = plan->segment * element, longest = 1;
        for (uint32_t i = 0; i < plan->n_steps; i++)
            if (plan->steps[i].count > longest)
                longest = plan->steps[i].count;
        CHECK(bytes * DDL__WAVES <= request.window || plan->segment == 1, "window %lld, %lld",
              (long long)request.window, (long long)bytes);
        CHECK(plan->segment <= longest, "longer than any share");
        CHECK(bytes % DDL__LINE == 0 || bytes < DDL__LINE || plan->segment == longest, "%lld bytes",
              (long long)bytes);
        ddl__plan_destroy(plan);
    }
}

/* The largest counts do not overflow, and the last wave is the last with something to do. */
static void test_huge(void)
{
    for (int n = 0; n < 8 * 4 * 2 * 2 * 5; n++) {
        size_t element = (size_t)1 << n / 8 % 4;
        ddl__request request = {.kind = (ddl__kind)(1 + n / 128),
                                .size = 1 + n % 8,
                                .rank = n % 8 / 2,
                                .count = ((int64_t)1 << 60) / (int64_t)element - n / 64 % 2,
                                .element = element,
                                .in_place = true,
                                .all_shared = n / 32 % 2,
                                .segment_bytes = n % 3 ? 0 : INT64_MAX};
        if (request.kind == DDL__REDUCE_SCATTER || request.kind == DDL__ALLGATHER)
            request.count /= request.size;
        ddl__plan *plan = ddl__plan_create(&request);
        CHECK(plan, "no plan");
        int64_t last = 0, beyond = 0;
        for (uint32_t i = 0; i < plan->n_steps; i++) {
            const ddl__step *step = &plan->steps[i];
            last += ddl__segment_length(plan, step, plan->waves - 1 - step->skew);
            beyond += ddl__segment_length(plan, step, plan->waves - step->skew);
        }
        CHECK((last > 0 || plan->n_steps == 0) && beyond == 0, "%s: last wave", plan->name);
        ddl__plan_destroy(plan);
    }
}

/* ----------------------------------------------------------------------------------- mutations */

/* Each breaks step `i` of a rank's plan, and says whether it did. It leaves alone what would only
 * be slower, or right in another way. */
typedef bool mutation(world *w, int rank, uint32_t i);

static bool drop_step(world *w, int rank, uint32_t i)
{
    w->ranks[rank].plan->steps[i].count = 0;
    return true;
}

static bool double_step(world *w, int rank, uint32_t i)
{
    ddl__plan *plan = w->ranks[rank].plan;
    if (plan->steps[i].kind == DDL__COPY)
        return false;
    plan->steps = realloc(plan->steps, (plan->n_steps + 1) * sizeof *plan->steps);
    CHECK(plan->steps, "out of memory");
    memmove(plan->steps + i + 1, plan->steps + i, (plan->n_steps - i) * sizeof *plan->steps);
    plan->n_steps++;
    return true;
}

static bool shorten(world *w, int rank, uint32_t i)
{
    w->ranks[rank].plan->steps[i].count--;
    return true;
}

static bool shift_src(world *w, int rank, uint32_t i)
{
    w->ranks[rank].plan->steps[i].src++;
    return w->ranks[rank].plan->steps[i].kind != DDL__TAKE;
}

/* A ring's partial results may lie anywhere. */
static bool shift_dst(world *w, int rank, uint32_t i)
{
    ddl__step *step = &w->ranks[rank].plan->steps[i];
    step->dst++;
    return step->kind == DDL__TAKE || step->kind == DDL__COPY || step->finish;
}

static bool other_space(world *w, int rank, uint32_t i)
{
    ddl__step *step = &w->ranks[rank].plan->steps[i];
    step->space = !step->space;
    return !w->request.in_place && w->request.kind != DDL__BARRIER && step->kind != DDL__TAKE;
}

static bool forget_to_keep(world *w, int rank, uint32_t i)
{
    ddl__step *step = &w->ranks[rank].plan->steps[i];
    step->keep = 0;
    return step->kind == DDL__REDUCE && step->finish;
}

static bool flip_finish(world *w, int rank, uint32_t i)
{
    ddl__step *step = &w->ranks[rank].plan->steps[i];
    step->finish = !step->finish;
    return step->kind == DDL__REDUCE;
}

static bool swap_operands(world *w, int rank, uint32_t i)
{
    const ddl__step *step = &w->ranks[rank].plan->steps[i];
    if (step->operands < 2)
        return false;
    uint32_t *operands = w->ranks[rank].plan->ranks + step->operand, first = operands[0];
    operands[0] = operands[1];
    operands[1] = first;
    return true;
}

/* The next rank round that is not this one. */
static uint32_t another(const world *w, int rank, uint32_t old)
{
    uint32_t size = (uint32_t)w->request.size, new = (old + 1) % size;
    return new == (uint32_t)rank ? (new + 1) % size : new;
}

static bool other_target(world *w, int rank, uint32_t i)
{
    const ddl__step *step = &w->ranks[rank].plan->steps[i];
    if (step->targets == 0)
        return false;
    uint32_t *target = &w->ranks[rank].plan->ranks[step->target];
    *target = another(w, rank, *target);
    return true;
}

static bool other_operand(world *w, int rank, uint32_t i)
{
    const ddl__step *step = &w->ranks[rank].plan->steps[i];
    if (step->operands == 0)
        return false;
    uint32_t *operand = &w->ranks[rank].plan->ranks[step->operand];
    *operand = another(w, rank, *operand);
    return true;
}

static bool pipelined_allreduce(const world *w)
{
    return w->request.kind == DDL__ALLREDUCE && strcmp(w->ranks[0].plan->name, "one-shot");
}

static bool less_skew(world *w, int rank, uint32_t i)
{
    ddl__step *step = &w->ranks[rank].plan->steps[i];
    if (step->skew == 0 || !pipelined_allreduce(w))
        return false;
    step->skew--;
    return true;
}

static bool more_skew(world *w, int rank, uint32_t i)
{
    ddl__plan *plan = w->ranks[rank].plan;
    ddl__step *step = &plan->steps[i];
    bool last_of_direct = step->kind == DDL__TAKE && step->targets == 0;
    if (!pipelined_allreduce(w) || last_of_direct)
        return false;
    step->skew++;
    plan->waves++;
    return true;
}

/* Steps of a direct exchange that are of one kind concern different peers. */
static bool swap_steps(world *w, int rank, uint32_t i)
{
    ddl__plan *plan = w->ranks[rank].plan;
    ddl__step *step = &plan->steps[i];
    if (i + 1 == plan->n_steps || !pipelined_allreduce(w) ||
        (w->request.all_shared && step[0].kind == step[1].kind))
        return false;
    ddl__step first = step[0];
    step[0] = step[1];
    step[1] = first;
    return true;
}

/* Only where the plan says that it does not last. */
static bool lend_anyway(world *w, int rank, uint32_t i)
{
    ddl__step *step = &w->ranks[rank].plan->steps[i];
    if (step->stable || !step->targets || w->request.kind == DDL__BARRIER)
        return false;
    step->stable = 1;
    return true;
}

/* A barrier must hear before it tells, but what it then does not tell is only missed where no rank
 * is told of another twice. */
static bool tell_first(world *w, int rank, uint32_t i)
{
    ddl__step *step = &w->ranks[rank].plan->steps[i];
    if (w->request.kind != DDL__BARRIER || w->request.size != 4 || step->kind != DDL__TAKE ||
        step->skew + 1 == w->ranks[rank].plan->waves)
        return false;
    step->skew = (uint32_t)w->ranks[rank].plan->waves++;
    return true;
}

static const struct {
    const char *name;
    mutation *apply;
} mutations[] = {
    {"drop a step", drop_step},
    {"double a step", double_step},
    {"shorten", shorten},
    {"shift src", shift_src},
    {"shift dst", shift_dst},
    {"other space", other_space},
    {"keep nothing", forget_to_keep},
    {"finish", flip_finish},
    {"swap operands", swap_operands},
    {"other target", other_target},
    {"other operand", other_operand},
    {"less skew", less_skew},
    {"more skew", more_skew},
    {"swap steps", swap_steps},
    {"lend anyway", lend_anyway},
    {"tell first", tell_first},
};
enum { MUTATIONS = sizeof mutations / sizeof *mutations };

/* Whether some schedule brings the mutation to light; true too where it does not apply. */
static bool noticed(const ddl__request *request, mutation *apply, int rank, uint32_t i,
                    int *applied)
{
    for (int how = 0; how < 3 * SCHEDULES; how++) {
        world *w = world_create(request);
        bool does = apply(w, rank, i);
        bool wrong = does && simulate(w, (schedule)(how % SCHEDULES));
        world_destroy(w);
        *applied += does && how == 0;
        if (wrong || !does)
            return true;
    }
    return false;
}

static void break_plans(ddl__request request, int applied[MUTATIONS])
{
    request.element = 8;
    request.segment_bytes = 64;
    for (int rank = 0; rank < request.size; rank++) {
        request.rank = rank;
        ddl__plan *plan = ddl__plan_create(&request);
        CHECK(plan, "no plan");
        for (uint32_t i = 0; i < plan->n_steps; i++)
            for (int m = 0; m < MUTATIONS; m++)
                CHECK(noticed(&request, mutations[m].apply, rank, i, &applied[m]),
                      "%s: not noticed in step %u of rank %d of %d, %s, kind %d%s",
                      mutations[m].name, i, rank, request.size, plan->name, (int)request.kind,
                      request.in_place ? " in place" : "");
        ddl__plan_destroy(plan);
    }
}

static void test_simulator(void)
{
    int applied[MUTATIONS] = {0};
    for (int size = 3; size <= 5; size++) {
        for (int shared = 0; shared < 2; shared++) {
            for (int kind = DDL__ALLREDUCE; kind <= DDL__BARRIER; kind++) {
                ddl__request request = {
                    .kind = (ddl__kind)kind, .size = size, .count = 50, .all_shared = shared};
                request.in_place = kind == DDL__BROADCAST;
                break_plans(request, applied); /* the all-reduce: one-shot */
                if (kind != DDL__BARRIER) {
                    request.in_place = true;
                    break_plans(request, applied);
                }
                request.in_place = kind == DDL__BROADCAST;
                request.count = 1200;
                if (kind == DDL__ALLREDUCE)
                    break_plans(request, applied);
            }
        }
    }
    for (int m = 0; m < MUTATIONS; m++)
        CHECK(applied[m] > 0, "%s: applied nowhere", mutations[m].name);
}

/* A ring whose links are narrower than it needs stands still, and that is noticed. */
static void test_deadlock(void)
{
    ddl__request request = {
        .kind = DDL__ALLREDUCE, .size = 8, .count = 20000, .element = 4, .segment_bytes = 64};
    world *w = world_create(&request);
    w->queue_room = DDL__RING_DEPTH - 1;
    const char *error = simulate(w, IN_TURN);
    CHECK(error && strcmp(error, "deadlock") == 0, "%s", describe(w));
    world_destroy(w);
}

int main(void)
{
    test_choice();
    test_shares();
    test_segments();
    test_huge();
    test_all_plans();
    test_bytes_sent();
    test_deadlock();
    test_simulator();
    return 0;
}
