/* Executes the plans of all ranks on numbers. Checks that every element of the result has the
 * contribution of every rank exactly once, and that no rank waits for ever on links of
 * DDL__LINK_SPANS spans. Sums are of integers, so their order does not matter; a finished reduction
 * is marked by one more summand. For property tests; the checkers in libddl/tests check the order.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

typedef struct span {
    int64_t count;
    uint64_t values[];
} span;

typedef struct queue {
    span *spans[DDL__LINK_SPANS];
    unsigned first, n;
} queue;

typedef struct rank_state {
    ddl__plan *plan;
    uint64_t *buffer, *scratch;
    int64_t wave;
    uint32_t step;
} rank_state;

typedef struct execution {
    ddl__request request;
    int64_t length; /* of a rank's buffer */
    rank_state *ranks;
    queue *queues; /* [size * from + to] */
    const char *error;
} execution;

static const uint64_t finished = 0x9e3779b97f4a7c15u;

static uint64_t input(int rank, int64_t i)
{
    uint64_t x = ((uint64_t)rank << 40) + (uint64_t)i + 1;
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
    return (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
}

static queue *queue_of(const execution *s, uint32_t from, uint32_t to)
{
    return &s->queues[from * (uint32_t)s->request.size + to];
}

static bool fail(execution *s, const char *error)
{
    if (!s->error)
        s->error = error;
    return false;
}

static bool step_can_run(execution *s, uint32_t r, const ddl__step *step)
{
    const uint32_t *ranks = s->ranks[r].plan->ranks;
    for (uint32_t i = 0; i < step->operands; i++)
        if (ranks[step->operand + i] != r && !queue_of(s, ranks[step->operand + i], r)->n)
            return false;
    for (uint32_t i = 0; i < step->targets; i++)
        if (queue_of(s, r, ranks[step->target + i])->n == DDL__LINK_SPANS)
            return false;
    return true;
}

static void send(execution *s, uint32_t r, uint32_t to, const uint64_t *values, int64_t count)
{
    queue *q = queue_of(s, r, to);
    span *sent = malloc(sizeof *sent + (size_t)count * sizeof *values);
    if (to == r || !sent) {
        free(sent);
        fail(s, to == r ? "a rank sends to itself" : "out of memory");
        return;
    }
    sent->count = count;
    memcpy(sent->values, values, (size_t)count * sizeof *values);
    q->spans[(q->first + q->n++) % DDL__LINK_SPANS] = sent;
}

static void add(execution *s, uint32_t r, uint32_t operand, const uint64_t *own, uint64_t *sum,
                int64_t count)
{
    span *came = NULL;
    if (operand != r) {
        queue *q = queue_of(s, operand, r);
        came = q->spans[q->first];
        q->first = (q->first + 1) % DDL__LINK_SPANS;
        q->n--;
        if (came->count != count)
            fail(s, "a span has another length");
    }
    for (int64_t i = 0; i < count && !s->error; i++)
        sum[i] += came ? came->values[i] : own[i];
    free(came);
}

/* Run one segment of a step. False if it has to wait or is wrong. */
static bool step_run(execution *s, uint32_t r, const ddl__step *step, int64_t k, int64_t count)
{
    const rank_state *me = &s->ranks[r];
    int64_t src = step->src + k * step->stride, dst = step->dst + k * step->stride;
    bool reads = step->kind != DDL__TAKE;
    bool writes = step->kind == DDL__REDUCE ? step->keep : step->kind != DDL__PUBLISH;
    bool from_scratch = step->space == DDL__SCRATCH, to_scratch = step->to_scratch;
    int64_t readable = from_scratch ? me->plan->scratch : s->length;
    int64_t writable = to_scratch ? me->plan->scratch : s->length;
    if ((reads && (src < 0 || src + count > readable)) ||
        (writes && (dst < 0 || dst + count > writable)))
        return fail(s, "a step lies outside of its buffer");
    const uint64_t *from = reads ? (from_scratch ? me->scratch : me->buffer) + src : NULL;
    if (!step_can_run(s, r, step))
        return false;
    uint64_t *result = calloc((size_t)count, sizeof *result);
    if (!result)
        return fail(s, "out of memory");
    for (uint32_t i = 0; i < step->operands && !s->error; i++)
        add(s, r, me->plan->ranks[step->operand + i], from, result, count);
    if (!step->operands)
        memcpy(result, from, (size_t)count * sizeof *result);
    for (int64_t i = 0; step->kind == DDL__REDUCE && step->finish && i < count; i++)
        result[i] += finished;
    if (writes)
        memcpy((to_scratch ? me->scratch : me->buffer) + dst, result,
               (size_t)count * sizeof *result);
    for (uint32_t i = 0; i < step->targets && !s->error; i++)
        send(s, r, me->plan->ranks[step->target + i], result, count);
    free(result);
    return !s->error;
}

static bool rank_run(execution *s, uint32_t r)
{
    rank_state *me = &s->ranks[r];
    bool moved = false;
    for (; me->wave < me->plan->waves; me->wave++, me->step = 0)
        for (; me->step < me->plan->n_steps; me->step++) {
            const ddl__step *step = &me->plan->steps[me->step];
            int64_t k = me->wave - step->skew, count = ddl__segment_length(step, k);
            if (count && !step_run(s, r, step, k, count))
                return moved;
            moved = moved || count;
        }
    return moved;
}

/* The final value of element i of a rank's buffer; false if any will do. */
static bool expected(const execution *s, int rank, int64_t i, uint64_t *value)
{
    const ddl__request *q = &s->request;
    int block = q->count ? (int)(i / q->count) : 0;
    *value = finished;
    switch (q->kind) {
    case DDL__ALLREDUCE:
    case DDL__REDUCE_TO_ROOT:
    case DDL__REDUCE_SCATTER:
        for (int r = 0; r < q->size; r++)
            *value += input(r, i);
        return q->kind == DDL__ALLREDUCE ||
               (q->kind == DDL__REDUCE_TO_ROOT ? rank == q->root : rank == block);
    case DDL__ALLGATHER: *value = input(block, i); return true;
    case DDL__BROADCAST: *value = input(q->root, i); return true;
    case DDL__ALLTOALL: *value = input(block, rank * q->count + i % q->count); return true;
    case DDL__GATHER: *value = input(block, i % (q->count ? q->count : 1)); return rank == q->root;
    case DDL__SCATTER: *value = input(q->root, rank * q->count + i); return block == 0;
    case DDL__BARRIER:
    case DDL__SEND:
    case DDL__RECV:
    case DDL__ORDERED_ALLREDUCE: break; /* no tool plans these */
    }
    return false;
}

static void verify(execution *s)
{
    for (int r = 0; r < s->request.size && !s->error; r++) {
        const rank_state *me = &s->ranks[r];
        uint64_t value;
        if (me->wave < me->plan->waves)
            fail(s, "the plans do not end");
        for (int64_t i = 0; i < s->length && !s->error; i++)
            if (expected(s, r, i, &value) && me->buffer[i] != value)
                fail(s, "an element does not have every contribution once");
    }
    for (int i = 0; i < s->request.size * s->request.size && !s->error; i++)
        if (s->queues[i].n)
            fail(s, "a span is never taken");
}

static bool rank_create(execution *s, int r, const char *algorithm)
{
    rank_state *me = &s->ranks[r];
    s->request.rank = r;
    me->plan =
        algorithm ? ddl__plan_create_as(&s->request, algorithm) : ddl__plan_create(&s->request);
    me->buffer = malloc((size_t)(s->length + 1) * sizeof *me->buffer);
    me->scratch = me->plan ? calloc((size_t)me->plan->scratch + 1, sizeof *me->scratch) : NULL;
    if (!me->plan || !me->buffer || !me->scratch)
        return fail(s, algorithm ? "that plan cannot do it" : "out of memory");
    for (int64_t i = 0; i < s->length; i++)
        me->buffer[i] = input(r, i);
    return true;
}

const char *ddl_check(const ddl_machine *machine, const ddl_question *question, int64_t segment)
{
    size_t size = (size_t)machine->size;
    ddl__topology *topology = ddl_topology_of(machine);
    execution s = {.ranks = calloc(size, sizeof *s.ranks),
                   .queues = calloc(size * size, sizeof *s.queues)};
    if (!topology || !s.ranks || !s.queues)
        fail(&s, "out of memory");
    if (!s.error) {
        s.request = ddl_request_of(machine, question, topology);
        s.request.segment_bytes = segment;
        bool blocks = s.request.kind != DDL__ALLREDUCE && s.request.kind != DDL__BROADCAST &&
                      s.request.kind != DDL__REDUCE_TO_ROOT;
        s.length = s.request.count * (blocks ? s.request.size : 1);
    }
    for (int r = 0; r < machine->size && !s.error; r++)
        rank_create(&s, r, question->algorithm);
    for (bool moved = !s.error; moved && !s.error;) {
        moved = false;
        for (int r = 0; r < machine->size && !s.error; r++)
            moved = rank_run(&s, (uint32_t)r) || moved;
    }
    if (!s.error)
        verify(&s);
    for (size_t r = 0; s.ranks && r < size; r++) {
        ddl__plan_destroy(s.ranks[r].plan);
        free(s.ranks[r].buffer);
        free(s.ranks[r].scratch);
    }
    for (size_t i = 0; s.queues && i < size * size; i++)
        for (; s.queues[i].n; s.queues[i].n--)
            free(s.queues[i].spans[s.queues[i].first++ % DDL__LINK_SPANS]);
    free(s.ranks);
    free(s.queues);
    free(topology);
    return s.error;
}
