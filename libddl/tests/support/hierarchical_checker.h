/* SPDX-License-Identifier: Apache-2.0 */
/* hierarchical_checker.h - the hierarchical plans of all ranks of a machine, executed in one
 * process.
 *
 * Ranks of a host share one bounded window, others are connected by wires with few slots. Spans
 * that a link may send without a copy are compared when they arrive. There are two operators: a
 * hash that neither commutes nor associates checks the order of additions; a plain sum checks that
 * every contribution arrived exactly once, in any order. Finishing a reduction scrambles the
 * result. */
#ifndef DDL_TESTS_HIERARCHICAL_CHECKER_H
#define DDL_TESTS_HIERARCHICAL_CHECKER_H

#include "plan/exchanges.h"
#include "plan_spans.h"

typedef struct inbox { /* the spans of one sender */
    uint32_t from;
    queue spans;
} inbox;

typedef struct member {
    ddl__plan *plan;
    uint64_t *in, *out;
    int64_t wave;
    uint32_t step;
    inbox *inboxes;
    unsigned n_inboxes;
    outlet published;    /* spans for its own host that are not freed */
    int64_t wire, local; /* bytes sent */
} member;

typedef struct machine {
    ddl__request request;
    const ddl__topology *topology;
    bool ordered;    /* add by the hash */
    bool one_window; /* all ranks share memory, whatever the topology is */
    unsigned slots;
    member *members;
    const char *error; /* the first error */
} machine;

static uint64_t add(const machine *m, uint64_t a, uint64_t b)
{
    return m->ordered ? combine(a, b) : a + b;
}

/* ------------------------------------------------------------------------------------- machines */

static machine *machine_create(const ddl__request *request, bool ordered)
{
    machine *m = calloc(1, sizeof *m);
    CHECK(m, "out of memory");
    *m = (machine){.request = *request,
                   .topology = request->topology,
                   .ordered = ordered,
                   .slots = DDL__LINK_SPANS / 2};
    size_t bytes = (size_t)(request->count + 1) * sizeof(uint64_t);
    m->members = calloc((size_t)request->size, sizeof *m->members);
    CHECK(m->members, "out of memory");
    for (int r = 0; r < request->size; r++) {
        member *me = &m->members[r];
        m->request.rank = r;
        me->plan = ddl__plan_create(&m->request);
        me->in = malloc(bytes);
        me->out = request->in_place ? me->in : malloc(bytes);
        me->published.end = &me->published.oldest;
        CHECK(me->plan && me->in && me->out, "out of memory");
        for (int64_t i = 0; i < request->count; i++) {
            me->out[i] = ~input(r, i);
            me->in[i] = input(r, i);
        }
    }
    return m;
}

static bool share_memory(const machine *m, uint32_t a, uint32_t b)
{
    return m->one_window || ddl__topology_group(m->topology, DDL__HOSTS, (int)a) ==
                                ddl__topology_group(m->topology, DDL__HOSTS, (int)b);
}

/* Free the spans that arrived over a wire and were not taken. */
static void drop_inbox(machine *m, uint32_t rank, inbox *box)
{
    queue *q = &box->spans;
    for (; q->n && !share_memory(m, rank, box->from); q->n--)
        free(q->spans[q->first++ % DDL__LINK_SPANS]);
}

static void machine_destroy(machine *m)
{
    for (int r = 0; r < m->request.size; r++) {
        member *me = &m->members[r];
        for (unsigned i = 0; i < me->n_inboxes; i++)
            drop_inbox(m, (uint32_t)r, &me->inboxes[i]);
        outlet_drop(&me->published, m->request.element, true);
        ddl__plan_destroy(me->plan);
        if (me->out != me->in)
            free(me->out);
        free(me->in);
        free(me->inboxes);
    }
    free(m->members);
    free(m);
}

/* ---------------------------------------------------------------------------------------- steps */

static bool fail(machine *m, const char *error)
{
    if (!m->error)
        m->error = error;
    return false;
}

static queue *inbox_of(machine *m, uint32_t to, uint32_t from)
{
    member *me = &m->members[to];
    for (unsigned i = 0; i < me->n_inboxes; i++)
        if (me->inboxes[i].from == from)
            return &me->inboxes[i].spans;
    me->inboxes = realloc(me->inboxes, (me->n_inboxes + 1) * sizeof *me->inboxes);
    CHECK(me->inboxes, "out of memory");
    me->inboxes[me->n_inboxes] = (inbox){.from = from};
    return &me->inboxes[me->n_inboxes++].spans;
}

static bool has_operands(machine *m, uint32_t r, const ddl__step *step)
{
    const uint32_t *operands = m->members[r].plan->ranks + step->operand;
    for (uint32_t i = 0; i < step->operands; i++)
        if (operands[i] != r && inbox_of(m, r, operands[i])->n == 0)
            return false;
    return true;
}

static bool has_room(machine *m, uint32_t r, const ddl__step *step, int64_t count)
{
    member *me = &m->members[r];
    const uint32_t *targets = me->plan->ranks + step->target;
    int64_t bytes = count * (int64_t)m->request.element;
    outlet_drop(&me->published, m->request.element, false);
    for (uint32_t i = 0; i < step->targets; i++) {
        if (targets[i] == r)
            return fail(m, "sends to itself");
        if (inbox_of(m, targets[i], r)->n == m->slots)
            return false;
        if (m->request.window && share_memory(m, r, targets[i]) &&
            me->published.bytes + bytes > m->request.window)
            return false;
    }
    return true;
}

/* Publish a span. All ranks of the host read one span. On wires each target has its own span, which
 * it frees. */
static void publish(machine *m, uint32_t r, const ddl__step *step, const uint64_t *memory,
                    int64_t count)
{
    member *me = &m->members[r];
    const uint32_t *targets = me->plan->ranks + step->target;
    int64_t bytes = count * (int64_t)m->request.element;
    span *shared = NULL;
    for (uint32_t i = 0; i < step->targets; i++) {
        bool local = share_memory(m, r, targets[i]);
        span *s = local ? shared : NULL;
        if (!s)
            s = span_create(memory, count);
        if (local && !shared) {
            shared = s;
            outlet_add(&me->published, s, m->request.element);
        }
        s->lent = step->stable ? memory : NULL;
        *(local ? &me->local : &me->wire) += bytes;
        queue_add(inbox_of(m, targets[i], r), s);
    }
}

/* Read the next span of a peer. Return false if it is not as expected. */
static bool consume(machine *m, uint32_t r, uint32_t from, int64_t count, uint64_t *values)
{
    const char *error = NULL;
    span *s = queue_take(inbox_of(m, r, from), count, &error);
    if (error)
        fail(m, error);
    else
        memcpy(values, s->values, (size_t)count * sizeof *values);
    if (!share_memory(m, r, from))
        free(s);
    return !error;
}

static void reduce(machine *m, uint32_t r, const ddl__step *step, const uint64_t *own,
                   uint64_t *result, int64_t count)
{
    const uint32_t *operands = m->members[r].plan->ranks + step->operand;
    uint64_t *values = malloc((size_t)count * sizeof *values);
    CHECK(values, "out of memory");
    for (uint32_t o = 0; o < step->operands && !m->error; o++) {
        const uint64_t *operand = operands[o] == r ? own : values;
        if (operand == values && !consume(m, r, operands[o], count, values))
            break;
        for (int64_t i = 0; i < count; i++)
            result[i] = o ? add(m, result[i], operand[i]) : operand[i];
    }
    for (int64_t i = 0; step->finish && i < count; i++)
        result[i] = scramble(result[i]);
    free(values);
}

static bool inside(const machine *m, int64_t start, int64_t count)
{
    return start >= 0 && start + count <= m->request.count;
}

/* Run one segment of one step completely or not at all. Return false if it is blocked or wrong. */
static bool run_step(machine *m, uint32_t r, const ddl__step *step, int64_t k, int64_t count)
{
    member *me = &m->members[r];
    int64_t src = step->src + k * step->stride, dst = step->dst + k * step->stride;
    if ((step->kind != DDL__TAKE && !inside(m, src, count)) ||
        (step->kind != DDL__PUBLISH && !inside(m, dst, count)))
        return fail(m, "outside of the buffers");
    if (!has_operands(m, r, step) || !has_room(m, r, step, count))
        return false;
    const uint64_t *from = (step->space == DDL__IN ? me->in : me->out) + src;
    if (step->kind == DDL__PUBLISH) {
        publish(m, r, step, from, count);
    } else if (step->kind == DDL__TAKE) {
        if (consume(m, r, me->plan->ranks[step->operand], count, me->out + dst))
            publish(m, r, step, me->out + dst, count);
    } else {
        uint64_t *result = malloc((size_t)count * sizeof *result);
        CHECK(result, "out of memory");
        reduce(m, r, step, from, result, count);
        if (step->keep && !m->error)
            memcpy(me->out + dst, result, (size_t)count * sizeof *result);
        publish(m, r, step, step->keep ? me->out + dst : result, count);
        free(result);
    }
    return !m->error;
}

/* Run a rank until it has made `limit` steps or is blocked. */
static int run_rank(machine *m, uint32_t r, int limit)
{
    member *me = &m->members[r];
    int made = 0;
    for (; me->wave < me->plan->waves; me->wave++, me->step = 0)
        for (; me->step < me->plan->n_steps; me->step++) {
            const ddl__step *step = &me->plan->steps[me->step];
            int64_t k = me->wave - step->skew, count = ddl__segment_length(step, k);
            if (count && (made == limit || !run_step(m, r, step, k, count)))
                return made;
            made += count > 0;
        }
    return made;
}

static bool all_done(const machine *m)
{
    for (int r = 0; r < m->request.size; r++)
        if (m->members[r].wave < m->members[r].plan->waves)
            return false;
    return true;
}

/* -------------------------------------------------------------------------------------- results */

/* Return element i reduced over a group of a level, the children of the group in order. */
static uint64_t reduced(const machine *m, const ddl__hierarchy *hierarchy, int level, int group,
                        int64_t i)
{
    if (level == 0)
        return input(group, i);
    const int *above = hierarchy->groups + level * hierarchy->size,
              *below = above - hierarchy->size;
    uint64_t value = 0;
    int last = -1;
    for (int r = 0; r < hierarchy->size; r++)
        if (above[r] == group && below[r] > last) {
            uint64_t child = reduced(m, hierarchy, level - 1, below[r], i);
            value = last < 0 ? child : add(m, value, child);
            last = below[r];
        }
    return value;
}

/* Compare rank 0's result with the expected one: in the order of the hierarchy, or if that is NULL,
 * in any order. */
static const char *verify(const machine *m, const ddl__hierarchy *hierarchy)
{
    const uint64_t *out = m->members[0].out;
    for (int64_t i = 0; i < m->request.count; i++) {
        uint64_t want = 0;
        for (int r = 0; !m->ordered && r < m->request.size; r++)
            want += input(r, i);
        if (m->ordered && hierarchy)
            want = reduced(m, hierarchy, hierarchy->n, 0, i);
        if ((!m->ordered || hierarchy) && out[i] != scramble(want))
            return "a wrong result";
    }
    for (int r = 0; r < m->request.size; r++) {
        const member *me = &m->members[r];
        if (memcmp(me->out, out, (size_t)m->request.count * sizeof *out))
            return "ranks differ";
        for (int64_t i = 0; me->in != me->out && i < m->request.count; i++)
            if (me->in[i] != input(r, i))
                return "wrote to the input";
        for (unsigned b = 0; b < me->n_inboxes; b++)
            if (me->inboxes[b].spans.n)
                return "a span was never taken";
    }
    return NULL;
}

/* Execute the plans. NULL if all is right. Ranks take turns of random or of maximal length. */
static const char *execute(machine *m, bool at_random, const ddl__hierarchy *hierarchy)
{
    uint32_t size = (uint32_t)m->request.size;
    while (!m->error) {
        uint64_t start = random_below(size);
        int made = 0;
        for (uint32_t i = 0; i < size && !m->error; i++)
            made += run_rank(m, (uint32_t)((start + i) % size),
                             at_random ? (int)random_below(4) + 1 : INT32_MAX);
        if (made == 0)
            break;
    }
    if (m->error)
        return m->error;
    return all_done(m) ? verify(m, hierarchy) : "deadlock";
}

#endif
