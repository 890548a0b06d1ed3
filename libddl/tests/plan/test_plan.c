/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm for many ranks, sizes and links is simulated. Then plans are broken in many ways,
 * and the simulator must detect each. */
#include "plan_results.h"

/* --------------------------------------------------------------------------------------- tests */

static const char *describe(const world *w)
{
    static char text[256];
    const ddl__request *q = &w->request;
    snprintf(text, sizeof text,
             "%s, kind %d, %d ranks, root %d, count %lld of %zu bytes, %s, uneven %llu, segments "
             "of %lld, window %lld, %u spans",
             w->ranks[0].plan->name, (int)q->kind, q->size, q->root, (long long)q->count,
             q->element, q->in_place ? "in place" : "out of place", (unsigned long long)w->uneven,
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

/* Messages are not planned. */
enum { KINDS = DDL__ALLTOALL, MOST_REPEATS = SANITIZED ? 2 : 10, BROKEN = SANITIZED ? 4 : 5 };

static bool has_blocks(ddl__kind kind)
{
    return kind == DDL__REDUCE_SCATTER || kind == DDL__ALLGATHER || kind == DDL__GATHER ||
           kind == DDL__SCATTER || kind == DDL__ALLTOALL;
}

/* Set the limits that builder.h states: segments in the window, and spans to one peer. */
static void least(const world *w, int64_t *segments, unsigned *spans)
{
    bool direct = strcmp(w->ranks[0].plan->name, "direct") == 0;
    bool both = w->request.kind == DDL__ALLREDUCE || w->request.kind == DDL__REDUCE_TO_ROOT;
    bool reduces = both || w->request.kind == DDL__REDUCE_SCATTER;
    *segments = *spans = 1;
    if (is_ring(w)) {
        *segments = *spans = DDL__RING_DEPTH + 1;
    } else if (direct && w->request.kind != DDL__BROADCAST) { /* two waves */
        *segments = reduces ? 2 * (w->request.size - !both) : 2;
        *spans = both ? 4 : 2;
    } else if (w->ranks[0].plan->by == DDL__ALGORITHM_TREE && has_blocks(w->request.kind)) {
        *segments = *spans = 2; /* of a message, in two waves */
    } else if (w->ranks[0].plan->by == DDL__ALGORITHM_TREE) {
        bool returns = w->request.kind == DDL__ALLREDUCE;
        *segments = returns ? 8 : 1; /* the segments up and down in four waves */
        *spans = returns ? 4 : 1;
    } else if (strcmp(w->ranks[0].plan->name, "pairwise") == 0) {
        int lag = ddl__pairwise_lag(&w->request);
        *segments = lag + 1;
        *spans = (unsigned)(lag / w->request.size + 1);
    }
}

/* Return true if the plan limits its own spans, as a direct exchange does: no rank can run ahead of
 * the results of its peers. */
static bool bounds_itself(const world *w)
{
    return w->request.all_shared && w->ranks[0].plan->by == DDL__ALGORITHM_DIRECT && !w->uneven &&
           !is_rooted(&w->request) && w->request.kind != DDL__BROADCAST;
}

static void check_one(const ddl__request *request, uint64_t uneven, schedule how, bool tight)
{
    world *w = world_create(request, uneven);
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

/* Every kind, size and count, each with some of the element sizes, segments, windows and schedules.
 * Cheap cases have more of these. Only some of the most expensive cases run, and 4099 on 31 ranks
 * never does. */
static void test_all_plans(void)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31};
    static const int64_t segments[] = {0, 1, 64, 128, 1000}, windows[] = {0, 64, 1000, 16384};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int p = sizes[s];
        const int64_t counts[] = {0, 1, 2, p - 1, p, p + 1, 100, 1000, 4099};
        for (unsigned n = 0; n < KINDS * 2 * 2 * 9; n++) {
            ddl__request request = {.kind = (ddl__kind)(1 + n % KINDS),
                                    .size = p,
                                    .count = counts[n / (4 * KINDS)],
                                    .in_place = n / KINDS % 2,
                                    .all_shared = n / (2 * KINDS) % 2};
            if (request.kind == DDL__BARRIER)
                request.in_place = false;
            if (request.kind == DDL__BROADCAST)
                request.in_place = true;
            bool blocks = has_blocks(request.kind);
            int64_t cost = request.count * p * (blocks ? p : 1);
            bool large = cost > 100000;
            int repeats = 1 + (int)(10000 / (cost + 100 * p));
            if (cost > 400000 && (request.in_place != request.all_shared || cost > 2000000))
                continue;
            repeats = repeats < MOST_REPEATS ? repeats : MOST_REPEATS;
            for (int i = 0; i < repeats; i++) {
                request.element = (size_t)1 << random_below(4);
                request.root = (int)random_below((uint64_t)p);
                request.segment_bytes = large ? 1000 : segments[random_below(5)];
                request.window = large ? 0 : windows[random_below(4)];
                request.by = (ddl__algorithm)random_below(DDL__ALGORITHMS);
                uint64_t uneven = blocks && random_below(2) ? 1 + random_below(1 << 20) : 0;
                check_one(&request, uneven, (schedule)random_below(SCHEDULES), random_below(2));
            }
        }
    }
}

/* Each rank sends 2 N (1 - 1/p) bytes, the fewest with which N bytes can be all-reduced. */
static void test_bytes_sent(void)
{
    for (int p = 2; p <= RANKS_MAX; p += p < 9 ? 1 : 11) {
        for (int shared = 0; shared < 2; shared++) {
            ddl__request request = {.kind = DDL__ALLREDUCE,
                                    .size = p,
                                    .count = (int64_t)p * 16 * 70,
                                    .element = 4,
                                    .all_shared = shared,
                                    .by = shared ? DDL__ALGORITHM_DIRECT : DDL__ALGORITHM_RING,
                                    .segment_bytes = 1024};
            world *w = world_create(&request, 0);
            const char *error = simulate(w, IN_TURN);
            CHECK(!error, "%s: %s", error, describe(w));
            int64_t ideal = 2 * request.count * 4 / p * (p - 1);
            for (int r = 0; r < p; r++)
                CHECK(w->ranks[r].sent == ideal, "%lld bytes, not %lld: %s",
                      (long long)w->ranks[r].sent, (long long)ideal, describe(w));
            world_destroy(w);
        }
    }
}

/* Over wires every rank except the root sends its data once, and blocks go directly to their
 * receivers. */
static void test_bytes_of_others(void)
{
    for (int kind = DDL__REDUCE_TO_ROOT; kind <= DDL__ALLTOALL; kind++) {
        ddl__request request = {
            .kind = (ddl__kind)kind, .size = 5, .root = 2, .count = 5000, .element = 4};
        request.by = kind == DDL__REDUCE_TO_ROOT ? DDL__ALGORITHM_TREE : DDL__ALGORITHM_PAIRWISE;
        world *w = world_create(&request, 0);
        const char *error = simulate(w, IN_TURN);
        CHECK(!error, "%s: %s", error, describe(w));
        for (int r = 0; r < request.size; r++) {
            bool is_root = r == request.root;
            int blocks = kind == DDL__ALLTOALL ? 4 : kind == DDL__SCATTER ? 4 * is_root : !is_root;
            CHECK(w->ranks[r].sent == blocks * 20000, "rank %d sent %lld: %s", r,
                  (long long)w->ranks[r].sent, describe(w));
        }
        world_destroy(w);
    }
}

static void test_choice(void)
{
    static const struct {
        ddl__request request;
        const char *name;
    } cases[] = {
        {{.kind = DDL__ALLREDUCE, .size = 1, .count = 9}, "local"},
        {{.kind = DDL__ALLREDUCE, .size = 4, .count = 256}, "one-shot"},
        {{.kind = DDL__ALLREDUCE, .size = 64, .count = 256}, "tree"},
        {{.kind = DDL__ALLREDUCE, .size = 4, .count = 1 << 20}, "ring"},
        {{.kind = DDL__ALLREDUCE, .size = 4, .count = 2048, .all_shared = true}, "one-shot"},
        {{.kind = DDL__ALLREDUCE, .size = 4, .count = 2049, .all_shared = true}, "direct"},
        {{.kind = DDL__REDUCE_SCATTER, .size = 4, .count = 1}, "direct"},
        {{.kind = DDL__ALLGATHER, .size = 64, .count = 1 << 20}, "ring"},
        {{.kind = DDL__ALLGATHER, .size = 4, .count = 1, .all_shared = true}, "direct"},
        {{.kind = DDL__BROADCAST, .size = 3, .count = 1, .in_place = true}, "direct"},
        {{.kind = DDL__BROADCAST, .size = 16, .count = 1, .in_place = true}, "tree"},
        {{.kind = DDL__BROADCAST, .size = 8, .count = 1 << 20, .in_place = true}, "chain"},
        {{.kind = DDL__BARRIER, .size = 4}, "dissemination"},
        {{.kind = DDL__REDUCE_TO_ROOT, .size = 4, .count = 256}, "one-shot"},
        {{.kind = DDL__REDUCE_TO_ROOT, .size = 64, .count = 128}, "tree"},
        {{.kind = DDL__REDUCE_TO_ROOT, .size = 64, .count = 1 << 20}, "chain"},
        {{.kind = DDL__REDUCE_TO_ROOT, .size = 4, .count = 2048, .all_shared = true}, "one-shot"},
        {{.kind = DDL__REDUCE_TO_ROOT, .size = 4, .count = 2049, .all_shared = true}, "direct"},
        {{.kind = DDL__GATHER, .size = 3, .count = 1 << 20}, "pairwise"},
        {{.kind = DDL__GATHER, .size = 64, .count = 1}, "tree"},
        {{.kind = DDL__SCATTER, .size = 64, .count = 100}, "tree"},
        {{.kind = DDL__SCATTER, .size = 64, .count = 1 << 20}, "pairwise"},
        {{.kind = DDL__SCATTER, .size = 4, .count = 1, .all_shared = true}, "pairwise"},
        {{.kind = DDL__ALLTOALL, .size = 4, .count = 1}, "pairwise"},
        {{.kind = DDL__ALLTOALL, .size = 1, .count = 1}, "local"},
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
    for (int n = 0; n < 4000; n++) {
        ddl__request request = {.kind =
                                    n % 8 < 4 ? DDL__ALLREDUCE + n % 8 : DDL__GATHER - 5 + n % 8,
                                .size = 2 + n % 30,
                                .count = (int64_t)random_below(1 << 20),
                                .element = (size_t)1 << n % 4,
                                .in_place = true,
                                .all_shared = n / 8 % 2,
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

/* The largest counts do not overflow, and the last wave has a step that runs. */
static void test_huge(void)
{
    for (int n = 0; n < 8 * 4 * 2 * 2 * KINDS; n++) {
        size_t element = (size_t)1 << n / 8 % 4;
        ddl__request request = {.kind = (ddl__kind)(1 + n / 128),
                                .size = 1 + n % 8,
                                .rank = n % 8 / 2,
                                .count = ((int64_t)1 << 60) / (int64_t)element - n / 64 % 2,
                                .element = element,
                                .in_place = true,
                                .all_shared = n / 32 % 2,
                                .segment_bytes = n % 3 ? 0 : INT64_MAX};
        if (has_blocks(request.kind))
            request.count /= request.size;
        ddl__plan *plan = ddl__plan_create(&request);
        CHECK(plan, "no plan");
        int64_t last = 0, beyond = 0;
        for (uint32_t i = 0; i < plan->n_steps; i++) {
            const ddl__step *step = &plan->steps[i];
            last += ddl__segment_length(step, plan->waves - 1 - step->skew);
            beyond += ddl__segment_length(step, plan->waves - step->skew);
        }
        CHECK((last > 0 || plan->n_steps == 0) && beyond == 0, "%s: last wave", plan->name);
        ddl__plan_destroy(plan);
    }
}

/* ----------------------------------------------------------------------------------- mutations */

typedef enum mutation {
    DROP,
    DOUBLE,
    SHORTEN,
    SHIFT_SRC,
    SHIFT_DST,
    OTHER_SPACE,
    OTHER_HOME,
    NOT_KEPT,
    OTHER_FINISH,
    SWAP_OPERANDS,
    OTHER_OPERAND,
    OTHER_TARGET,
    LESS_SKEW,
    MORE_SKEW,
    SWAP_STEPS,
    LEND_ANYWAY,
    OTHER_RETURNS,
    TELL_FIRST,
    MUTATIONS
} mutation;

/* Return the next rank, modulo the size, that is not this one. */
static uint32_t another(const world *w, int rank, uint32_t old)
{
    uint32_t size = (uint32_t)w->request.size, next = (old + 1) % size;
    return next == (uint32_t)rank ? (next + 1) % size : next;
}

static void double_step(ddl__plan *plan, uint32_t i)
{
    plan->steps = realloc(plan->steps, (plan->n_steps + 1) * sizeof *plan->steps);
    CHECK(plan->steps, "out of memory");
    memmove(plan->steps + i + 1, plan->steps + i, (plan->n_steps - i) * sizeof *plan->steps);
    plan->n_steps++;
}

/* Return true if a tree deadlocks if a rank sends one segment more, or one fewer, to its parent
 * before it takes the first result. test_tree_order gives the reason. */
static bool halts_tree(const world *w, int rank, int more)
{
    const ddl__plan *plan = w->ranks[rank].plan;
    const ddl__step *step = &plan->steps[0];
    bool is_long = step->count > 4 * step->piece, has_child = rank + 1 < w->request.size;
    if (w->request.kind != DDL__ALLREDUCE || plan->by != DDL__ALGORITHM_TREE || rank == 0 ||
        !is_long)
        return false;
    return more > 0 ? rank % 2 == 0 && has_child : rank & (rank - 1);
}

/* Break step `i` of a rank's plan. Return false if the plan would stay right, because the change
 * only makes it slower or leads to the same result in another way. */
static bool break_step(world *w, int rank, uint32_t i, mutation how)
{
    ddl__plan *plan = w->ranks[rank].plan;
    ddl__step *step = &plan->steps[i], old = *step;
    uint32_t *operand = plan->ranks + step->operand, *target = plan->ranks + step->target;
    bool reduces = step->kind == DDL__REDUCE, takes = step->kind == DDL__TAKE;
    bool copies = step->kind == DDL__COPY, barrier = w->request.kind == DDL__BARRIER;
    bool pipelined = w->request.kind == DDL__ALLREDUCE && plan->by != DDL__ALGORITHM_ONE_SHOT &&
                     plan->by != DDL__ALGORITHM_TREE;

    switch (how) {
    case DROP: step->count = 0; return true;
    case DOUBLE: double_step(plan, i); return !copies;
    case SHORTEN: step->count--; return true;
    case SHIFT_SRC: step->src++; return !takes;
    case SHIFT_DST: /* partials: anywhere */
        step->dst++;
        return takes || copies || (step->finish && step->keep);
    case OTHER_SPACE:
        step->space = old.space == DDL__IN ? DDL__OUT : DDL__IN;
        return !takes && !w->request.in_place && !barrier;
    case OTHER_HOME: step->to_scratch ^= 1; return takes || copies;
    case NOT_KEPT: step->keep = 0; return reduces && step->finish && old.keep;
    case OTHER_FINISH: step->finish ^= 1; return reduces;
    case SWAP_OPERANDS:
        if (reduces) {
            uint32_t first = operand[0];
            operand[0] = operand[1];
            operand[1] = first;
        }
        return reduces;
    case OTHER_OPERAND:
        if (step->operands)
            *operand = another(w, rank, *operand);
        return step->operands;
    case OTHER_TARGET:
        if (step->targets)
            *target = another(w, rank, *target);
        return step->targets;
    case LESS_SKEW: step->skew--; return (pipelined || halts_tree(w, rank, -1)) && old.skew > 0;
    case MORE_SKEW: /* a last step may come later */
        step->skew++;
        plan->waves++;
        return (pipelined && (!takes || step->targets)) || halts_tree(w, rank, takes ? 1 : -1);
    case SWAP_STEPS: /* steps of one kind in a direct exchange concern different peers */
        if (!(pipelined || halts_tree(w, rank, -1)) || i + 1 == plan->n_steps ||
            (w->request.all_shared && step[1].kind == old.kind))
            return false;
        step[0] = step[1];
        step[1] = old;
        return true;
    case LEND_ANYWAY: step->stable = 1; return step->targets && !old.stable && !barrier;
    case OTHER_RETURNS: /* a result that is stored there and not taken from there is no error */
        step->returns ^= 1;
        return takes ? !old.returns && !barrier : old.returns;
    case TELL_FIRST: /* before the messages arrive; with 4 ranks no two get the same messages */
        step->skew = (uint32_t)plan->waves++;
        return barrier && takes && w->request.size == 4 && old.skew + 2 < plan->waves;
    case MUTATIONS: break;
    }
    return false;
}

/* Return true if some schedule detects the mutation, or if it does not apply. */
static bool noticed(const ddl__request *request, uint64_t uneven, mutation how, int rank,
                    uint32_t i, int *applied)
{
    for (int run = 0; run < 3 * SCHEDULES; run++) {
        world *w = world_create(request, uneven);
        bool does = break_step(w, rank, i, how);
        bool wrong = does && simulate(w, (schedule)(run % SCHEDULES));
        world_destroy(w);
        *applied += does && run == 0;
        if (wrong || !does)
            return true;
    }
    return false;
}

static void break_plans(ddl__request request, uint64_t uneven, int applied[MUTATIONS])
{
    request.segment_bytes = 64;
    world *w = world_create(&request, uneven);
    for (int rank = 0; rank < request.size; rank++)
        for (uint32_t i = 0; i < w->ranks[rank].plan->n_steps; i++)
            for (int m = 0; m < MUTATIONS; m++)
                CHECK(noticed(&request, uneven, (mutation)m, rank, i, &applied[m]),
                      "mutation %d not noticed in step %u of rank %d: %s", m, i, rank, describe(w));
    world_destroy(w);
}

static void test_simulator(void)
{
    int applied[MUTATIONS] = {0};
    for (int size = 3; size <= BROKEN; size++) {
        for (int shared = 0; shared < 2; shared++) {
            for (int kind = DDL__ALLREDUCE; kind <= KINDS; kind++) {
                bool reduces = kind == DDL__ALLREDUCE || kind == DDL__REDUCE_TO_ROOT;
                ddl__request request = {
                    .kind = (ddl__kind)kind, .size = size, .count = 50, .all_shared = shared};
                request.element = 8;
                request.root = size / 2;
                request.in_place = kind == DDL__BROADCAST;
                break_plans(request, 0, applied); /* the reductions: one-shot */
                if (has_blocks(request.kind))
                    break_plans(request, 1, applied);
                if (kind != DDL__BARRIER) {
                    request.in_place = true;
                    break_plans(request, 0, applied);
                }
                request.in_place = kind == DDL__BROADCAST;
                request.count = 1200;
                if (reduces)
                    break_plans(request, 0, applied);
                request.in_place = kind == DDL__ALLREDUCE;
                if (request.in_place)
                    break_plans(request, 0, applied);
                request.in_place = kind == DDL__BROADCAST;
                static const ddl__algorithm others[] = {DDL__ALGORITHM_PAIRWISE,
                                                        DDL__ALGORITHM_DIRECT, DDL__ALGORITHM_TREE,
                                                        DDL__ALGORITHM_RING, DDL__ALGORITHM_CHAIN};
                for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
                    request.by = others[i];
                    if (ddl__algorithm_fits(request.by, &request))
                        break_plans(request, 0, applied);
                }
            }
        }
    }
    for (int m = 0; m < MUTATIONS; m++)
        CHECK(applied[m] > 0, "mutation %d applied nowhere", m);
}

/* The waves and the order of a tree's steps cannot change the result: each link is used by one step
 * at either end, so it carries segments in order, and a rank uses a segment only when it has it.
 * But they can cause a deadlock. Let the lead of a rank be the number of segments that it sends to
 * its parent before it takes the first result; the root's lead is 1. A rank that waits for a result
 * sends nothing to its parent, so no rank may have a greater lead than the ranks below it. */
static void check_users(const world *w, int rank)
{
    const ddl__plan *plan = w->ranks[rank].plan;
    int from[RANKS_MAX] = {0}, to[RANKS_MAX] = {0};
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const ddl__step *step = &plan->steps[i];
        for (uint32_t o = 0; o < step->operands; o++)
            from[plan->ranks[step->operand + o]]++;
        for (uint32_t t = 0; t < step->targets; t++)
            to[plan->ranks[step->target + t]]++;
    }
    for (int r = 0; r < w->request.size; r++)
        CHECK(r == rank || (from[r] <= 1 && to[r] <= 1), "rank %d, peer %d: %s", rank, r,
              describe(w));
}

/* Set the waves and the order of a rank's two steps so that it has this lead. */
static void set_lead(world *w, int rank, int lead)
{
    ddl__plan *plan = w->ranks[rank].plan;
    uint32_t before = 1 + (uint32_t)random_below(3);
    plan->waves += 16;
    plan->steps[0].skew = before;
    if (plan->n_steps != 2)
        return;
    ddl__step up = plan->steps[0], down = plan->steps[1];
    bool up_first = random_below(2);
    down.skew = before + (uint32_t)lead - up_first;
    plan->steps[0] = up_first ? up : down;
    plan->steps[1] = up_first ? down : up;
}

static void test_tree_order(void)
{
    static const ddl__kind kinds[] = {DDL__ALLREDUCE, DDL__REDUCE_TO_ROOT, DDL__BROADCAST};
    int broken = 0;
    for (int n = 0; n < 3000; n++) {
        ddl__request request = {.kind = kinds[n % 3],
                                .size = 2 + n % 11,
                                .count = 60 + 20 * (n % 7),
                                .element = 8,
                                .in_place = n % 2 || n % 3 == 2,
                                .by = DDL__ALGORITHM_TREE,
                                .segment_bytes = 64};
        request.root = (int)random_below((uint64_t)request.size);
        world *w = world_create(&request, 0);
        int leads[RANKS_MAX] = {1};
        int wrong = n % 2 ? -1 : 1 + (int)random_below((uint64_t)request.size - 1);
        bool breaks = wrong >= 0 && request.kind == DDL__ALLREDUCE;
        for (int r = 0; r < request.size; r++) {
            int parent = r & (r - 1); /* in an all-reduce, whose root is rank 0 */
            leads[r] = r ? leads[parent] + (int)random_below(2) : 1;
            if (breaks && r == wrong)
                leads[r] = leads[parent] - 1;
            check_users(w, r);
            set_lead(w, r, leads[r]);
        }
        const char *error = simulate(w, (schedule)random_below(SCHEDULES));
        if (breaks)
            CHECK(error && strcmp(error, "deadlock") == 0, "%s", describe(w));
        else
            CHECK(!error, "%s: %s", error, describe(w));
        broken += breaks;
        world_destroy(w);
    }
    CHECK(broken > 300, "only %d broken", broken);
}

/* A ring deadlocks if its links have too little room, and the simulator detects it. */
static void test_deadlock(void)
{
    ddl__request request = {
        .kind = DDL__ALLREDUCE, .size = 8, .count = 20000, .element = 4, .segment_bytes = 64};
    request.by = DDL__ALGORITHM_RING;
    world *w = world_create(&request, 0);
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
    test_bytes_of_others();
    test_deadlock();
    test_simulator();
    test_tree_order();
}
