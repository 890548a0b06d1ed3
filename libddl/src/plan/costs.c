/* How long each algorithm is predicted to take. Two times, of which the longer one counts: that of
 * the longest chain of messages, in which each waits for one before it, and that of the cores,
 * which have to send and receive them all: where ranks share a core, it does the work of several.
 *
 * For a choice between algorithms, not for a clock. A pure function of what all members of a comm
 * know equally; only + - * / and comparisons of doubles, hence with the same result on all. */
#include "plan/costs.h"

#include <stdlib.h>

#include "plan/builder.h"
#include "plan/exchanges.h"

typedef struct model {
    const ddl__request *request;
    double n;       /* bytes: of the buffer, or of all blocks together */
    double p, each; /* ranks; those of the largest host */
    int hosts;
    double segment; /* bytes */
    ddl__speed net; /* the slowest that joins any two */
    /* Of the chain, in seconds: its messages; what goes on at once, long messages being pipelined:
       its bytes over wires and the passes over memory. */
    double path, wires, memory;
    double work, hops; /* seconds of each rank on average; messages in the chain */
} model;

/* ---------------------------------------------------------------------------------- the machine */

/* Of the innermost levels those described; of an outer one without a description, the next inner
 * one's. */
static ddl__speed slowest_wire(const ddl__topology *t)
{
    bool near = t && t->machines == 1;
    ddl__speed wire = {near ? DDL__NEAR_LATENCY : DDL__FAR_LATENCY,
                       near ? DDL__NEAR_BANDWIDTH : DDL__FAR_BANDWIDTH};
    if (t && t->wires[DDL__HOSTS].bandwidth > 0)
        wire = t->wires[DDL__HOSTS];
    for (int l = DDL__RACKS; t && l < DDL__GROUPINGS; l++) {
        const ddl__speed *outer = &t->wires[l];
        if (t->groups[l] < 2 || outer->bandwidth <= 0)
            continue;
        if (outer->latency > wire.latency)
            wire.latency = outer->latency;
        if (outer->bandwidth < wire.bandwidth)
            wire.bandwidth = outer->bandwidth;
    }
    return wire;
}

static int64_t sum(const ddl__share *blocks, int n)
{
    int64_t all = 0;
    for (int i = 0; i < n; i++)
        all += blocks[i].count;
    return all;
}

/* Of uneven blocks, only of those kinds whose counts all ranks know. */
static double bytes_of(const ddl__request *request)
{
    double element = (double)request->element;
    bool gathers = request->kind == DDL__ALLGATHER;
    if (!gathers && request->kind != DDL__REDUCE_SCATTER)
        return element * (double)request->count;
    const ddl__share *blocks = gathers ? request->received : request->sent;
    return request->sent ? element * (double)sum(blocks, request->size)
                         : element * (double)request->count * request->size;
}

/* The most ranks that any host has; or of those of which the next is on another host. Out of
 * memory: as if there were one. */
static int most_on_a_host(const ddl__topology *t, bool only_crossing)
{
    int most = 1, *ranks = calloc((size_t)t->groups[DDL__HOSTS], sizeof *ranks);
    for (int r = 0; ranks && r < t->size; r++) {
        int host = ddl__topology_group(t, DDL__HOSTS, r);
        if (only_crossing && ddl__topology_group(t, DDL__HOSTS, (r + 1) % t->size) == host)
            continue;
        ranks[host]++;
        most = ranks[host] > most ? ranks[host] : most;
    }
    free(ranks);
    return most;
}

static model model_of(const ddl__request *request, double segment)
{
    const ddl__topology *t = request->topology;
    model m = {.request = request,
               .n = bytes_of(request),
               .p = request->size,
               .segment = segment,
               .each = t                     ? most_on_a_host(t, false)
                       : request->all_shared ? request->size
                                             : 1,
               .hosts = t                     ? t->groups[DDL__HOSTS]
                        : request->all_shared ? 1
                                              : request->size,
               .net = slowest_wire(t)};
    return m;
}

static double doublings(int n)
{
    int d = 0;
    while (1 << d < n)
        d++;
    return d;
}

static double pieces_of(const model *m, double bytes)
{
    double whole = (double)(int64_t)(bytes / m->segment);
    return whole + (whole * m->segment < bytes || bytes <= 0);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ------------------------------------------------------------------------------------- the parts
 */

/* `hops` messages in a chain, over wires; `wire` bytes on the busiest of them; the longest of the
 * chain's ranks sends `messages` in all, of `bytes`. */
static void chain_of(model *m, double hops, double messages, double bytes, double wire)
{
    m->hops += hops;
    m->path += hops * m->net.latency + messages * DDL__WIRE_MESSAGE;
    m->wires += larger(wire / m->net.bandwidth, bytes * DDL__WIRE_BYTE);
}

/* What a rank sends and receives over wires, on average. */
static void work_of(model *m, double messages, double bytes)
{
    m->work += messages * DDL__WIRE_MESSAGE + bytes * DDL__WIRE_BYTE;
}

/* A hop in shared memory: so many messages, passes over so many bytes. */
static void in_memory(model *m, double messages, double passes)
{
    m->path += DDL__SHARED_LATENCY + messages * DDL__SHARED_MESSAGE;
    m->memory += passes * DDL__MEMORY_BYTE;
    m->work += messages * DDL__SHARED_MESSAGE + passes * DDL__MEMORY_BYTE;
}

/* Passes of every rank over its own memory. */
static void passes_over(model *m, double bytes)
{
    m->path += bytes * DDL__MEMORY_BYTE;
    m->work += bytes * DDL__MEMORY_BYTE;
}

/* Within the hosts, there and back: the leader reads all others, and they it. */
static void with_leaders(model *m, double ways)
{
    for (double way = 0; m->each > 1 && way < ways; way++)
        in_memory(m, m->each - 1, 2 * m->n);
}

/* -------------------------------------------------------------------------------- the algorithms
 */

/* Everybody's `n` bytes go to everybody else, or to the root alone. */
static void straight(model *m, double n, bool to_one)
{
    double away = m->p - m->each, local = m->each - 1, pieces = pieces_of(m, n);
    double part = to_one ? 1 / m->p : 1;
    if (local > 0)
        in_memory(m, local * pieces * part, m->p * n * part);
    if (away <= 0)
        return;
    double wire = away * n * (to_one ? 1 : m->each);
    chain_of(m, 1, away * pieces, away * n, wire * (1 + (away - 1) * DDL__WIRE_JAM));
    work_of(m, away * pieces * part, away * n * part);
}

static void one_shot(model *m)
{
    bool to_one = m->request->kind == DDL__REDUCE_TO_ROOT;
    straight(m, m->n, to_one);
    passes_over(m, m->n + (to_one ? 1 : m->p) * m->n); /* a copy of the own; the sum */
}

static void direct(model *m)
{
    ddl__kind kind = m->request->kind;
    if (kind == DDL__BROADCAST)
        straight(m, m->n, true);
    else if (kind == DDL__ALLGATHER || kind == DDL__REDUCE_SCATTER)
        straight(m, m->n / m->p, false);
    else
        for (int way = 0; way < 2; way++)
            in_memory(m, m->p - 1, 2 * m->n / m->p * (m->p - 1));
}

/* `c` groups exchange `n` bytes that a rank of each holds, there and back, in `chunks`; `level` is
 * 0 for the first such exchange. */
static void exchange(model *m, int c, double n, double chunks, int level)
{
    double part = 2 * n * (c - 1) / c, messages = 2 * chunks * (c - 1);
    chain_of(m, 2, messages, part, part * m->each * (1 + (c - 2) * DDL__WIRE_JAM));
    if (level) /* what it costs all of them */
        m->wires += DDL__WIRE_LEVEL * 2 * m->n / m->net.bandwidth;
    work_of(m, messages, part);
}

static void hierarchical(model *m, bool halves)
{
    double left = m->n, chunks = pieces_of(m, m->n / m->p);
    if (m->each > 1)
        for (int way = 0; way < 2; way++)
            in_memory(m, (m->each - 1) * chunks, 2 * left / m->each * (m->each - 1));
    left /= m->each;
    for (int groups = m->hosts, level = 0; groups > 1; level++) {
        int joined = ddl__hierarchy_radix(groups), c = halves ? 2 : joined > 1 ? joined : groups;
        exchange(m, c, left, chunks, level);
        left /= c;
        groups = (groups + c - 1) / c;
    }
}

static void tree(model *m)
{
    double ways = m->request->kind == DDL__ALLREDUCE ? 2 : 1, levels = doublings(m->hosts);
    double pieces = pieces_of(m, m->n), part = ways * (m->hosts - 1) / m->p;
    chain_of(m, ways * levels, ways * levels * pieces, ways * levels * m->n, ways * levels * m->n);
    work_of(m, part * pieces, part * m->n);
    with_leaders(m, ways);
}

static void ring(model *m)
{
    const ddl__topology *t = m->request->topology;
    double ways = m->request->kind == DDL__ALLREDUCE ? 2 : 1, steps = ways * (m->p - 1);
    double share = m->n / m->p, messages = steps * pieces_of(m, share);
    double crossing = t ? most_on_a_host(t, true) : 1;
    if (m->hosts <= 1) {
        for (double i = 0; i < steps; i++)
            in_memory(m, 1, 2 * share);
        return;
    }
    chain_of(m, steps, messages, steps * share, steps * share * crossing);
    work_of(m, messages, steps * share);
}

static void chain(model *m, int links)
{
    double pieces = pieces_of(m, m->n), piece = m->n / pieces, part = (links - 1) / m->p;
    chain_of(m, links - 1, links - 2 + pieces, (links - 2 + pieces) * piece,
             (links - 2 + pieces) * piece);
    work_of(m, part * pieces, part * m->n);
}

static void over_hosts(model *m)
{
    double block = m->n / m->p, pieces = pieces_of(m, block), rounds = m->hosts - 1;
    in_memory(m, m->each * pieces, m->n);
    chain_of(m, 1, rounds * pieces, rounds * block, rounds * block * m->each);
    work_of(m, rounds * pieces, rounds * block);
    in_memory(m, m->each * pieces, m->n);
}

/* An all-to-all of blocks of `n` bytes: to the agents, from agent to agent, to all. While a host
 * deals with itself, its wire has nothing to do for as long as a message takes. */
static void exchange_hosts(model *m)
{
    double far = m->hosts - 1, turns = (double)(int64_t)((far + m->each - 1) / m->each);
    double block = m->n, message = m->each * m->each * block, pieces = pieces_of(m, message);
    in_memory(m, far + m->each - 1, 2 * m->p * block);
    chain_of(m, 1, turns * pieces, turns * message, (far + 1) * message);
    work_of(m, far / m->each * pieces, far * m->each * block);
    in_memory(m, far * m->each, 2 * far * m->each * block);
}

/* Blocks of `n` bytes to the root or from it: the longest message has half of all, and waits for
 * one of a quarter or is waited for by it. */
static void tree_of_blocks(model *m)
{
    double levels = doublings(m->hosts), far = m->hosts - 1;
    double below = levels * m->hosts / 2 * m->each * m->n; /* what all messages carry */
    double all = (m->p - m->each) * m->n, pieces = pieces_of(m, all / 2);
    if (m->each > 1)
        in_memory(m, m->each - 1, 2 * m->each * m->n);
    chain_of(m, levels, levels - 1 + pieces, all, all * (levels > 1 ? 1.25 : 1));
    work_of(m, far / m->p, below / m->p);
    passes_over(m, 2 * all);
}

static void dissemination(model *m)
{
    double rounds = doublings((int)m->p);
    if (m->hosts > 1) {
        chain_of(m, rounds, rounds, 0, 0);
        work_of(m, rounds, 0);
    } else {
        m->path += rounds * DDL__SHARED_LATENCY;
    }
}

static void add_up(model *m, ddl__algorithm by)
{
    switch (by) {
    case DDL__ALGORITHM_DISSEMINATION: dissemination(m); return;
    case DDL__ALGORITHM_PAIRWISE: straight(m, m->n, m->request->kind != DDL__ALLTOALL); return;
    case DDL__ALGORITHM_ONE_SHOT: one_shot(m); return;
    case DDL__ALGORITHM_DIRECT: direct(m); return;
    case DDL__ALGORITHM_HIERARCHICAL: hierarchical(m, false); return;
    case DDL__ALGORITHM_HALVING: hierarchical(m, true); return;
    case DDL__ALGORITHM_TREE:
        if (m->request->kind == DDL__GATHER || m->request->kind == DDL__SCATTER)
            tree_of_blocks(m);
        else
            tree(m);
        return;
    case DDL__ALGORITHM_RING: ring(m); return;
    case DDL__ALGORITHM_HOSTS:
        if (m->request->kind == DDL__ALLTOALL)
            exchange_hosts(m);
        else
            over_hosts(m);
        return;
    case DDL__ALGORITHM_LEADERS:
        chain(m, m->hosts);
        with_leaders(m, 1);
        return;
    case DDL__ALGORITHM_CHAIN: chain(m, m->request->size); return;
    case DDL__ALGORITHM_NONE:
    case DDL__ALGORITHM_LOCAL:
    case DDL__ALGORITHMS: return;
    }
}

static double cost_of(ddl__algorithm by, const ddl__request *request, double segment)
{
    const ddl__topology *t = request->topology;
    double oversubscription = t && t->oversubscription > 1 ? t->oversubscription : 1;
    model m = model_of(request, segment);
    add_up(&m, by);
    return larger(m.path + larger(m.wires, m.memory),
                  oversubscription * (m.work + m.hops * DDL__SWITCH));
}

/* A chain fills with its first segment and empties with its last, so shorter ones may pay there;
 * elsewhere they are only more messages. */
int64_t ddl__algorithm_segment(ddl__algorithm by, const ddl__request *request)
{
    bool chained = by == DDL__ALGORITHM_CHAIN || by == DDL__ALGORITHM_LEADERS;
    if (request->segment_bytes > 0)
        return request->segment_bytes;
    if (request->all_shared)
        return DDL__SEGMENT_SHARED;
    return chained && cost_of(by, request, DDL__SEGMENT_WIRES_SHORT) <
                          cost_of(by, request, DDL__SEGMENT_WIRES)
               ? DDL__SEGMENT_WIRES_SHORT
               : DDL__SEGMENT_WIRES;
}

double ddl__algorithm_cost(ddl__algorithm by, const ddl__request *request)
{
    int64_t segment = ddl__algorithm_segment(by, request);
    bool is_shorter = !request->segment_bytes && segment < DDL__SEGMENT_WIRES;
    return cost_of(by, request, is_shorter ? DDL__SEGMENT_WIRES_SHORT : DDL__SEGMENT_WIRES);
}

/* Everybody reads the p operands and writes one, instead of reading and writing a p-th of them
 * twice; for that it saves a hop, the messages of one, and a turn of all ranks that share a core.
 */
bool ddl__one_shot_beats_direct(const ddl__request *request)
{
    const ddl__topology *t = request->topology;
    double n = (double)request->element * (double)request->count, p = request->size;
    double saved = DDL__SHARED_LATENCY + (p - 1) * DDL__SHARED_MESSAGE +
                   (t && t->oversubscription > 1 ? DDL__SHARED_SWITCH : 0);
    return n * (p + 1 - 4 * (p - 1) / p) * DDL__CACHED_BYTE <= saved;
}
