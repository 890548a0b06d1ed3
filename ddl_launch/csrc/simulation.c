/* SPDX-License-Identifier: Apache-2.0 */
/* A discrete-event simulation of the plans of all ranks.
 *
 * Each rank executes its plan as the engine does: in order, blocked by a missing span, a full link,
 * or shared memory that is not released. A step occupies its rank for its passes over memory. Spans
 * on wires go through ports, out of the sender's host (rack, aisle) and into the receiver's. A port
 * serves spans in the order of their arrival, and forwards the beginning of a span before it has
 * its end. Switches buffer spans that wait for a port, and lose none. */
#include "simulation.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "event_queue.h"
#include "machine.h"
#include "reduce/reduce.h"

enum { LEVELS = DDL__DIMENSIONS, NOBODY = -1 };

static const char no_memory[] = "out of memory";

typedef struct span {
    int64_t bytes;
    uint32_t sender, readers;
    double start;
    bool shared;
} span;

typedef struct link {
    uint32_t from, to;
    int level;
    unsigned first, published, arrived; /* of the published ones */
    uint32_t spans[DDL__LINK_SPANS];
} link;

typedef struct port {
    double free; /* time at which it becomes free */
    int64_t bytes;
    int busy; /* its last record in answer->busy, + 1 */
} port;

/* The cores of a machine, and the list of ranks that wait for one. */
typedef struct cores {
    int idle;
    uint32_t first, last; /* rank + 1; 0: none */
} cores;

typedef enum state { BLOCKED, WOKEN, BUSY, ENDED } state;

typedef struct rank {
    ddl__plan *plan;
    uint32_t *links; /* for each of plan->ranks */
    int64_t wave;
    uint32_t step;
    state state;
    int64_t window, sent;  /* bytes in shared memory: not released, in all */
    double work;           /* seconds of the step for which it needs a core */
    uint32_t next_waiting; /* the next rank that waits for a core, + 1 */
} rank;

typedef struct simulation {
    const ddl_machine *machine;
    const ddl_question *question;
    ddl_answer *answer;
    ddl__topology *topology;
    rank *ranks;
    link *links;
    uint32_t n_links, link_room;
    uint32_t *table; /* [size * from + to]: the number of the link, from 1 on; 0: none */
    span *spans;
    uint32_t n_spans, span_room, *unused, n_unused, unused_room;
    port *ports[LEVELS]; /* [2 * group + inward] */
    cores *machines;     /* NULL: enough cores */
    event_queue events;
    double now;
    const char *error;
} simulation;

/* Make room for one more item. False, with the error set, when out of memory. */
static bool reserve(simulation *s, void *items, uint32_t n, uint32_t *room, size_t size)
{
    void **array = items;
    if (n < *room)
        return true;
    uint32_t more = *room ? 2 * *room : 64;
    void *moved = realloc(*array, more * size);
    if (!moved) {
        s->error = no_memory;
        return false;
    }
    *array = moved;
    *room = more;
    return true;
}

/* --------------------------------------------------------------------------------------- events */

static void event_push(simulation *s, event e)
{
    if (!event_queue_push(&s->events, e))
        s->error = no_memory;
}

static void rank_wake(simulation *s, uint32_t r)
{
    if (s->ranks[r].state != BLOCKED)
        return;
    s->ranks[r].state = WOKEN;
    event_push(s, (event){.time = s->now, .kind = RANK_CONTINUES, .target = r});
}

/* ---------------------------------------------------------------------------------------- links */

static int group_of(const simulation *s, int grouping, uint32_t r)
{
    return ddl__topology_group(s->topology, grouping, (int)r);
}

static int level_of(const simulation *s, uint32_t a, uint32_t b)
{
    for (int g = 0; g < DDL__GROUPINGS; g++)
        if (group_of(s, g, a) == group_of(s, g, b))
            return g;
    return DDL__GROUPINGS;
}

static uint32_t link_between(simulation *s, uint32_t from, uint32_t to)
{
    uint32_t *number = &s->table[(size_t)from * (size_t)s->machine->size + to];
    if (!*number) {
        if (!reserve(s, &s->links, s->n_links, &s->link_room, sizeof *s->links))
            return 0;
        s->links[s->n_links++] = (link){.from = from, .to = to, .level = level_of(s, from, to)};
        *number = s->n_links;
    }
    return *number - 1;
}

static uint32_t span_create(simulation *s, uint32_t sender, int64_t bytes, bool shared)
{
    uint32_t index = 0;
    if (s->n_unused)
        index = s->unused[--s->n_unused];
    else if (reserve(s, &s->spans, s->n_spans, &s->span_room, sizeof *s->spans))
        index = s->n_spans++;
    else
        return 0;
    s->spans[index] = (span){.bytes = bytes, .sender = sender, .start = s->now, .shared = shared};
    return index;
}

static void link_release(simulation *s, link *l)
{
    uint32_t index = l->spans[l->first];
    span *released = &s->spans[index];
    l->first = (l->first + 1) % DDL__LINK_SPANS;
    l->published--;
    l->arrived--;
    if (--released->readers == 0) {
        if (released->shared)
            s->ranks[released->sender].window -= released->bytes;
        if (reserve(s, &s->unused, s->n_unused, &s->unused_room, sizeof *s->unused))
            s->unused[s->n_unused++] = index;
    }
    rank_wake(s, l->from);
}

static void link_arrive(simulation *s, link *l, const span *arrived)
{
    ddl_answer *answer = s->answer;
    if (answer->n_sent < s->question->sent_max)
        answer->sent[answer->n_sent++] =
            (ddl_sent){(int)l->from, (int)l->to, arrived->bytes, arrived->start, s->now};
    l->arrived++;
    rank_wake(s, l->to);
}

/* The port of a hop: up from the sender's host to the common level, then down. */
static port *link_port(simulation *s, const link *l, int hop, int *level, int *group)
{
    bool inward = hop >= l->level;
    *level = inward ? 2 * l->level - hop : hop + 1;
    *group = group_of(s, *level - 1, inward ? l->to : l->from);
    return &s->ports[*level][2 * *group + inward];
}

/* Spans that a port forwards without a pause share one record. */
static void port_record(simulation *s, port *p, ddl_busy busy)
{
    ddl_answer *answer = s->answer;
    if (p->busy && answer->busy[p->busy - 1].end >= busy.start) {
        answer->busy[p->busy - 1].end = busy.end;
    } else if (answer->n_busy < s->question->busy_max) {
        answer->busy[answer->n_busy++] = busy;
        p->busy = answer->n_busy;
    }
}

static void port_forward(simulation *s, event e)
{
    const link *l = &s->links[e.target];
    int64_t bytes = s->spans[e.span].bytes;
    int level, group;
    port *p = link_port(s, l, e.hop, &level, &group);
    double start = s->now > p->free ? s->now : p->free;
    p->free = start + (double)bytes / s->machine->bandwidth[level];
    p->bytes += bytes;
    port_record(s, p, (ddl_busy){level, group, e.hop >= l->level, start, p->free});
    double way = ++e.hop == l->level ? s->machine->latency[level] : 0;
    e.tail = (e.tail > p->free ? e.tail : p->free) + way;
    e.time = start + way;
    if (e.hop == 2 * l->level) {
        e.kind = SPAN_ARRIVES;
        e.time = e.tail;
    }
    event_push(s, e);
}

/* ---------------------------------------------------------------------------------------- steps */

static const link *rank_link(const simulation *s, const rank *me, uint32_t i)
{
    return &s->links[me->links[i]];
}

/* The results of a fold that are stored or sent one behind the other; 1 of other steps. */
static int step_results(const rank *me, const ddl__step *step)
{
    return step->kind == DDL__FOLD ? me->plan->folds[step->fold]->results : 1;
}

/* The parts of operand i of a fold that come in one span; 1 of other steps. */
static int operand_parts(const rank *me, const ddl__step *step, uint32_t i)
{
    const ddl__fold *fold = step->kind == DDL__FOLD ? me->plan->folds[step->fold] : NULL;
    return fold ? fold->first[i + 1] - fold->first[i] : 1;
}

/* The bytes of a span between hosts that holds `bytes` of elements. */
static int64_t packed(const rank *me, const simulation *s, int64_t bytes)
{
    size_t count = (size_t)(bytes / s->question->element);
    return (int64_t)ddl__packed_bytes(count, me->plan->bits);
}

/* The bytes of what a step sends to a target, and of what it receives from others. */
static int64_t bytes_out(const rank *me, const simulation *s, const ddl__step *step, int64_t bytes)
{
    bool packs = step->kind == DDL__PACK || step->kind == DDL__REDUCE_PACK;
    return packs ? packed(me, s, bytes) : bytes * step_results(me, step);
}

static int64_t bytes_in(const rank *me, const simulation *s, const ddl__step *step, int64_t bytes)
{
    bool unpacks = step->kind == DDL__UNPACK || step->kind == DDL__ADD_UNPACKED;
    return unpacks ? packed(me, s, bytes) : bytes;
}

static bool step_can_run(const simulation *s, uint32_t r, const ddl__step *step, int64_t bytes)
{
    const rank *me = &s->ranks[r];
    for (uint32_t i = step->operand; i < step->operand + step->operands; i++)
        if (me->plan->ranks[i] != r && rank_link(s, me, i)->arrived == 0)
            return false;
    for (uint32_t i = step->target; i < step->target + step->targets; i++) {
        const link *l = rank_link(s, me, i);
        if (l->published == DDL__LINK_SPANS ||
            (l->level == 0 && me->window + bytes_out(me, s, step, bytes) > MACHINE_WINDOW))
            return false;
    }
    return true;
}

/* The core's seconds for one end of a message. */
static double end_seconds(const simulation *s, int64_t bytes)
{
    return (s->machine->message + (double)bytes * s->machine->byte) / 2;
}

/* The seconds of a step with operands of `bytes`: one pass for storing in shared memory, unless a
 * reduction stores there anyway, one for packing what no reduction packs, and one for each operand,
 * over memory or a wire. */
static double step_seconds(const simulation *s, uint32_t r, const ddl__step *step, int64_t bytes)
{
    const rank *me = &s->ranks[r];
    double own = (double)bytes / s->machine->memory, seconds = 0;
    if (step->kind == DDL__COPY || step->kind == DDL__PACK)
        seconds = own;
    bool stores = false;
    for (uint32_t i = 0; i < step->operands; i++) {
        uint32_t at = step->operand + i;
        if (me->plan->ranks[at] == r)
            continue;
        double pass = rank_link(s, me, at)->level
                          ? own + end_seconds(s, bytes_in(me, s, step, bytes))
                          : (double)bytes / s->machine->bandwidth[0];
        seconds += pass * operand_parts(me, step, i);
    }
    for (uint32_t i = step->target; i < step->target + step->targets; i++) {
        stores = stores || rank_link(s, me, i)->level == 0;
        if (rank_link(s, me, i)->level)
            seconds += end_seconds(s, bytes_out(me, s, step, bytes));
    }
    return stores && step->kind == DDL__PUBLISH ? seconds + own : seconds;
}

static cores *cores_of(const simulation *s, uint32_t r)
{
    return s->machines ? &s->machines[group_of(s, DDL__HOSTS, r) / s->machine->machine_hosts]
                       : NULL;
}

/* Occupy a core for the step, as soon as there is one. */
static void core_take(simulation *s, uint32_t r, double seconds)
{
    cores *c = cores_of(s, r);
    if (!c || c->idle) {
        if (c)
            c->idle--;
        event_push(s, (event){.time = s->now + seconds, .kind = STEP_ENDS, .target = r});
        return;
    }
    s->ranks[r].work = seconds;
    s->ranks[r].next_waiting = 0;
    if (c->first)
        s->ranks[c->last - 1].next_waiting = r + 1;
    else
        c->first = r + 1;
    c->last = r + 1;
}

/* Give the rank's core to the rank that waits longest. */
static void core_release(simulation *s, uint32_t r)
{
    cores *c = cores_of(s, r);
    if (!c)
        return;
    c->idle++;
    if (!c->first)
        return;
    uint32_t next = c->first - 1;
    c->first = s->ranks[next].next_waiting;
    core_take(s, next, s->ranks[next].work);
}

static void link_publish(simulation *s, uint32_t r, uint32_t target, int64_t bytes, int64_t *shared)
{
    rank *me = &s->ranks[r];
    uint32_t to = me->links[target];
    int level = s->links[to].level;
    int64_t index = level ? NOBODY : *shared;
    if (index == NOBODY) {
        index = span_create(s, r, bytes, level == 0);
        if (level == 0) {
            *shared = index;
            me->window += bytes;
        }
    }
    if (s->error)
        return;
    link *l = &s->links[to];
    s->spans[index].readers++;
    l->spans[(l->first + l->published++) % DDL__LINK_SPANS] = (uint32_t)index;
    s->answer->bytes[level] += bytes;
    s->answer->spans++;
    me->sent += level ? 0 : bytes;
    event_push(s, (event){.time = s->now + (level ? 0 : s->machine->latency[0]),
                          .kind = level ? HEAD_AT_PORT : SPAN_ARRIVES,
                          .target = to,
                          .span = (uint32_t)index});
}

static void step_end(simulation *s, uint32_t r, const ddl__step *step, int64_t bytes)
{
    rank *me = &s->ranks[r];
    int64_t shared = NOBODY;
    for (uint32_t i = step->operand; i < step->operand + step->operands; i++)
        if (me->plan->ranks[i] != r)
            link_release(s, &s->links[me->links[i]]);
    for (uint32_t i = step->target; i < step->target + step->targets && !s->error; i++)
        link_publish(s, r, i, bytes_out(me, s, step, bytes), &shared);
    me->step++;
}

static int64_t step_bytes(const simulation *s, const rank *me)
{
    const ddl__step *step = &me->plan->steps[me->step];
    return ddl__segment_length(step, me->wave - step->skew) * s->question->element;
}

/* Run a rank until it is blocked or a step takes time. */
static void rank_run(simulation *s, uint32_t r)
{
    rank *me = &s->ranks[r];
    for (; me->wave < me->plan->waves; me->wave++, me->step = 0)
        while (me->step < me->plan->n_steps && !s->error) {
            const ddl__step *step = &me->plan->steps[me->step];
            int64_t bytes = step_bytes(s, me);
            if (bytes == 0) {
                me->step++;
                continue;
            }
            me->state = BLOCKED;
            if (!step_can_run(s, r, step, bytes))
                return;
            me->state = BUSY;
            double seconds = step_seconds(s, r, step, bytes);
            if (seconds > 0) {
                core_take(s, r, seconds);
                return;
            }
            step_end(s, r, step, bytes);
        }
    me->state = ENDED;
}

static void event_handle(simulation *s, event e)
{
    rank *me = &s->ranks[e.target];
    s->now = e.time;
    switch (e.kind) {
    case HEAD_AT_PORT: port_forward(s, e); return;
    case SPAN_ARRIVES: link_arrive(s, &s->links[e.target], &s->spans[e.span]); return;
    case STEP_ENDS:
        core_release(s, e.target);
        step_end(s, e.target, &me->plan->steps[me->step], step_bytes(s, me));
        break;
    case RANK_CONTINUES: break;
    }
    rank_run(s, e.target);
}

/* ------------------------------------------------------------------------------- the simulation */

static uint32_t plan_ranks(const ddl__plan *plan)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        uint32_t end = plan->steps[i].target + plan->steps[i].targets;
        n = end > n ? end : n;
    }
    return n;
}

static void rank_connect(simulation *s, uint32_t r)
{
    rank *me = &s->ranks[r];
    for (uint32_t i = 0; i < me->plan->n_steps && !s->error; i++) {
        const ddl__step *step = &me->plan->steps[i];
        for (uint32_t o = step->operand; o < step->operand + step->operands; o++)
            if (me->plan->ranks[o] != r)
                me->links[o] = link_between(s, me->plan->ranks[o], r);
        for (uint32_t t = step->target; t < step->target + step->targets; t++)
            me->links[t] = link_between(s, r, me->plan->ranks[t]);
    }
}

static int64_t plan_spans(const ddl__plan *plan)
{
    int64_t spans = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const ddl__step *step = &plan->steps[i];
        spans += (step->count + step->piece - 1) / step->piece * step->targets;
    }
    return spans;
}

/* Before any plan is kept: all together may need too much memory. */
static void count_spans(simulation *s)
{
    int64_t spans = 0;
    for (int r = 0; r < s->machine->size && !s->error; r++) {
        ddl__plan *plan = machine_plan(s->question, s->topology, s->answer->name, r);
        if (!plan) {
            s->error = s->question->algorithm ? "that plan cannot do it" : no_memory;
            return;
        }
        strncpy(s->answer->name, plan->name, sizeof s->answer->name - 1);
        s->answer->piece = plan->segment * s->question->element;
        spans += plan_spans(plan);
        if (spans > s->question->spans_max)
            s->error = "so many messages that simulating them would take too long";
        ddl__plan_destroy(plan);
    }
}

static void make_plans(simulation *s)
{
    for (int r = 0; r < s->machine->size && !s->error; r++) {
        rank *me = &s->ranks[r];
        me->plan = machine_plan(s->question, s->topology, s->answer->name, r);
        me->links = me->plan ? calloc(plan_ranks(me->plan) + 1, sizeof *me->links) : NULL;
        if (me->links)
            rank_connect(s, (uint32_t)r);
        else
            s->error = no_memory;
    }
}

static bool simulation_prepare(simulation *s)
{
    s->topology = machine_topology(s->machine);
    s->ranks = calloc((size_t)s->machine->size, sizeof *s->ranks);
    s->table = calloc((size_t)s->machine->size * (size_t)s->machine->size, sizeof *s->table);
    if (!s->topology || !s->ranks || !s->table) {
        s->error = no_memory;
        return false;
    }
    for (int level = 1; level < LEVELS; level++) {
        s->ports[level] = calloc(2 * (size_t)s->topology->groups[level - 1], sizeof(port));
        if (!s->ports[level])
            s->error = no_memory;
    }
    if (s->machine->cores) {
        int hosts = s->topology->groups[DDL__HOSTS];
        s->machines = calloc((size_t)hosts, sizeof *s->machines);
        if (!s->machines)
            s->error = no_memory;
        for (int m = 0; s->machines && m < hosts; m++)
            s->machines[m].idle = s->machine->cores;
    }
    if (!s->error)
        count_spans(s);
    if (!s->error)
        s->answer->estimated = machine_estimate(s->question, s->topology, s->answer->name);
    make_plans(s);
    return !s->error;
}

static void simulation_run(simulation *s)
{
    for (int r = 0; r < s->machine->size && !s->error; r++)
        rank_run(s, (uint32_t)r);
    while (s->events.n && !s->error)
        event_handle(s, event_queue_pop(&s->events));
    for (int r = 0; r < s->machine->size && !s->error; r++)
        if (s->ranks[r].state != ENDED)
            s->error = "the plans do not end";
}

static void simulation_summarize(simulation *s)
{
    ddl_answer *answer = s->answer;
    answer->seconds = s->now;
    for (int r = 0; r < s->machine->size; r++)
        if (s->ranks[r].sent > answer->busiest[0])
            answer->busiest[0] = s->ranks[r].sent;
    for (int level = 1; level < LEVELS; level++)
        for (int i = 0; i < 2 * s->topology->groups[level - 1]; i++)
            if (s->ports[level][i].bytes > answer->busiest[level])
                answer->busiest[level] = s->ports[level][i].bytes;
}

static void simulation_destroy(simulation *s)
{
    for (int r = 0; s->ranks && r < s->machine->size; r++) {
        ddl__plan_destroy(s->ranks[r].plan);
        free(s->ranks[r].links);
    }
    for (int level = 0; level < LEVELS; level++)
        free(s->ports[level]);
    free(s->machines);
    free(s->ranks);
    free(s->topology);
    free(s->links);
    free(s->table);
    free(s->spans);
    free(s->unused);
    free(s->events.heap);
}

const char *ddl_simulate(const ddl_machine *machine, const ddl_question *question,
                         ddl_answer *answer)
{
    simulation s = {.machine = machine, .question = question, .answer = answer};
    *answer = (ddl_answer){.busy = answer->busy, .sent = answer->sent};
    if (simulation_prepare(&s))
        simulation_run(&s);
    if (!s.error)
        simulation_summarize(&s);
    simulation_destroy(&s);
    return s.error;
}
